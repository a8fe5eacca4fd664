"""Read NCCL kernels of one rank from Kineto (PyTorch profiler) traces in Chrome's JSON."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingero.contract.collective import (
    DATATYPE_BYTES,
    CollectiveRecord,
    CollectiveSource,
    canonical_op,
    checked,
)
from ingero.errors import MalformedInput
from ingero.importers.flight_recorder import TORCH_DATATYPES, TORCH_OPS, comm_hash
from ingero.importers.left_out import BAD_ROW, LeftOut

_RANK_IN_NAME = re.compile(r"rank[-_]?(\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class KinetoTrace:
    """NCCL kernels of one rank; `nameless` counts kernels without collective metadata.

    `left_out` says how many events make no sense, None where all do.
    """

    rank: int
    world: int | None
    records: tuple[CollectiveRecord, ...]
    nameless: int
    left_out: str | None = None


def read_kineto(path: Path, content: Mapping[str, Any]) -> KinetoTrace:
    """Return all NCCL kernels of a trace, in time order."""
    if not isinstance(content.get("traceEvents"), list):
        raise MalformedInput(f"{path}: 'traceEvents' is not a list")
    try:
        return _interpret(path, content)
    except BAD_ROW as error:
        raise MalformedInput(
            f"{path}: an event lacks or misuses a field ({type(error).__name__}: {error})"
        ) from error


def _interpret(path: Path, content: Mapping[str, Any]) -> KinetoTrace:
    info = content.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    rank = _rank_of(path, info)
    base_ns = int(content.get("baseTimeNanoseconds") or 0)
    left_out = LeftOut()
    launches, kernels = _launches_and_kernels(content["traceEvents"], left_out)
    counts: dict[str, int] = {}
    records: list[CollectiveRecord] = []
    nameless, wrong = 0, None
    for event in kernels:
        try:
            record = _record(event, rank, base_ns, launches, counts, info)
        except BAD_ROW as error:
            left_out.add("a kernel", error)
            wrong = wrong or error
            continue
        nameless += record is None
        records += [] if record is None else [record]
    if wrong is not None and not records:
        raise wrong
    world = info.get("world_size")
    note = left_out.note(path, len(records), "events")
    return KinetoTrace(rank, int(world) if world else None, tuple(records), nameless, note)


def _launches_and_kernels(
    events: Sequence[Any], left_out: LeftOut
) -> tuple[dict[Any, float], list[Mapping[str, Any]]]:
    """Return when each kernel was launched, and the NCCL kernels in time order."""
    launches: dict[Any, float] = {}
    kernels: list[tuple[float, int, Mapping[str, Any]]] = []
    at_us = -math.inf
    for number, event in enumerate(events):
        if not isinstance(event, dict) or event.get("ph") != "X":
            continue
        try:
            args, kind = event.get("args") or {}, str(event.get("cat", "")).lower()
            if kind in ("cuda_runtime", "cuda_driver") and "correlation" in args:
                launches[args["correlation"]] = float(event["ts"])
            elif kind in ("kernel", "gpu_op") and _is_nccl(event):
                at_us = _place_us(event, at_us)
                kernels.append((at_us, number, event))
        except BAD_ROW as error:
            left_out.add(f"event {number}", error)
    return launches, [event for *_, event in sorted(kernels, key=lambda each: each[:2])]


def _place_us(event: Mapping[str, Any], before_us: float) -> float:
    """Return when a kernel began; one without a time is placed after the one before it.

    It is left out later, but counts among those of its group, as it does on all other ranks.
    """
    try:
        at_us = float(event["ts"])
    except BAD_ROW:
        return before_us
    return at_us if math.isfinite(at_us) else before_us


def _is_nccl(event: Mapping[str, Any]) -> bool:
    return str(event.get("name", "")).lower().startswith(("nccl", "rccl"))


def _rank_of(path: Path, info: Mapping[str, Any]) -> int:
    if "rank" in info:
        return int(info["rank"])
    named = _RANK_IN_NAME.search(path.name)
    if named:
        return int(named.group(1))
    raise MalformedInput(
        f"{path}: the rank is neither in 'distributedInfo' nor in the file name (as rank3.json)"
    )


def _record(
    event: Mapping[str, Any],
    rank: int,
    base_ns: int,
    launches: Mapping[Any, float],
    counts: dict[str, int],
    info: Mapping[str, Any],
) -> CollectiveRecord | None:
    args = event.get("args") or {}
    called = args.get("Collective name")
    if not called:
        return None
    group = str(
        args.get("Process Group Name") or args.get("Process Group Description") or "default"
    )
    members = _members(args.get("Process Group Ranks"))
    key = f"{group}|{','.join(map(str, members))}"
    counts[key] = counts.get(key, -1) + 1
    datatype = TORCH_DATATYPES.get(str(args.get("dtype")), str(args.get("dtype", "uint8")).lower())
    elements = max(int(args.get("In msg nelems") or 0), int(args.get("Out msg nelems") or 0))
    begin_us, duration_us = float(event["ts"]), float(event["dur"])
    enqueue_us = launches.get(args.get("correlation"), begin_us)
    record = CollectiveRecord(
        job=None,
        node=str(info["hostname"]) if info.get("hostname") else None,
        global_rank=rank,
        comm=comm_hash(key),
        seq=int(args["Seq"]) if "Seq" in args else counts[key],
        op=TORCH_OPS.get(str(called)) or canonical_op(str(called)),
        rank=members.index(rank) if rank in members else rank,
        nranks=int(args.get("Group size") or len(members) or 0),
        peer=_peer(args, rank),
        datatype=datatype,
        reduce_op=None,
        size_bytes=elements * DATATYPE_BYTES.get(datatype, 1),
        start_ns=base_ns + round(enqueue_us * 1000),
        end_ns=base_ns + round((begin_us + duration_us) * 1000),
        gpu_duration_ns=round(duration_us * 1000),
        stream=int(args["stream"]) if str(args.get("stream", "")).isdigit() else None,
        source=CollectiveSource.KINETO,
    )
    return checked(record)


def _members(ranks: object) -> tuple[int, ...]:
    """Return the ranks of the group; none where the trace abbreviates a long list."""
    text = ranks if isinstance(ranks, str) else str(ranks or "")
    return () if "..." in text else tuple(int(n) for n in re.findall(r"\d+", text))


def _peer(args: Mapping[str, Any], rank: int) -> int | None:
    ends = [
        int(args[name])
        for name in ("Src Rank", "Dst Rank")
        if str(args.get(name, "")).lstrip("-").isdigit()
    ]
    others = [end for end in ends if end not in (rank, -1)]
    return others[0] if others else None
