"""Read the JSON of the NCCL (and RCCL) Inspector profiler: one object per collective and process.

The verbose form contains start and stop of the kernel. The plain form contains only durations,
which is enough to name a rank. So records without kernel times are left out only where few steps
lack one of them then; else nobody's kernel times are used.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingero.contract.collective import (
    CollectiveRecord,
    CollectiveSource,
    canonical_op,
    checked,
    decode_comm,
)
from ingero.core.counted import counted
from ingero.errors import MalformedInput
from ingero.importers.left_out import BAD_ROW, LeftOut

MAX_OBJECTS = 5_000_000
# A step of ten collectives is whole nine times in ten then, as often as it must repeat to be
# recognised. What comes three times at most is no part of a step: nothing that few repeats.
FEW, SELDOM = 0.01, 3


@dataclass(frozen=True, slots=True)
class Inspection:
    """The records of one file, and sentences about what was left out.

    `exact_ends` says that every record has the start and stop of its kernel.
    """

    records: tuple[CollectiveRecord, ...]
    exact_ends: bool
    notes: tuple[str, ...] = ()


def read_inspector(path: Path, text: str) -> Inspection:
    """Return all collectives of a file; objects that are damaged or cut off are left out."""
    objects, skipped = [], 0
    for item in _objects(path, text):
        if (
            isinstance(item, dict)
            and isinstance(item.get("coll_perf"), dict)
            and isinstance(item.get("header"), dict)
        ):
            objects.append(item)
        else:
            skipped += 1
    exact: list[CollectiveRecord] = []
    inexact: list[CollectiveRecord] = []
    left_out = LeftOut()
    ranks = _global_ranks(objects)
    for number, item in enumerate(objects):
        try:
            record, is_exact = _record(item, ranks)
        except BAD_ROW as error:
            left_out.add(f"object {number + 1}", error)
            continue
        (exact if is_exact else inexact).append(record)
    if left_out.count and not exact and not inexact:
        raise MalformedInput(f"{path}, {left_out.first}")
    kept = len(exact) + len(inexact)
    note = left_out.note(path, kept, "objects")
    notes = [note] if note else []
    if skipped:
        notes.append(f"{path}: {counted(skipped, 'object')} left out: no collective, or cut off")
    untimed = f"{path}: {len(inexact)} of {kept} collectives have no kernel times"
    if exact and _are_few(inexact, exact):
        notes += [f"{untimed}; left out"] if inexact else []
        return Inspection(tuple(exact), True, tuple(notes))
    notes += [f"{untimed}; those of the others are not used"] if exact else []
    records = sorted(exact + inexact, key=lambda record: record.end_ns)
    return Inspection(tuple(records), False, tuple(notes))


def _are_few(inexact: list[CollectiveRecord], exact: list[CollectiveRecord]) -> bool:
    """Whether few records lack kernel times, and not most of any operation of a step."""
    without, timed = (Counter(record.op for record in each) for each in (inexact, exact))
    is_known = all(count <= max(SELDOM, timed[op]) for op, count in without.items())
    return is_known and len(inexact) <= FEW * (len(inexact) + len(exact))


def _objects(path: Path, text: str) -> Iterator[Any]:
    """Yield the objects of a file, on lines of their own or not; None for one that is broken."""
    decoder = json.JSONDecoder()
    at, count = 0, 0
    while True:
        while at < len(text) and text[at] in " \t\r\n,[]\x00":
            at += 1
        if at >= len(text):
            return
        count += 1
        if count > MAX_OBJECTS:
            raise MalformedInput(f"{path}: more than {MAX_OBJECTS} collectives; cut the file")
        try:
            item, at = decoder.raw_decode(text, at)
        except ValueError:
            item, at = None, text.find("\n{", at + 1)
            if at < 0:
                yield None
                return
        yield item


def _process(item: Mapping[str, Any]) -> tuple[str, int]:
    meta = item.get("metadata") or {}
    return str(meta.get("hostname", "")), int(meta.get("pid", 0))


def _global_ranks(objects: list[dict[str, Any]]) -> dict[tuple[str, int], int]:
    """Return the rank of each process in its widest communicator, which is its rank in the job."""
    widest: dict[tuple[str, int], tuple[int, int]] = {}
    for item in objects:
        header = item["header"]
        try:
            width, rank = int(header.get("n_ranks", 0)), int(header.get("rank", 0))
            if width > widest.get(_process(item), (0, 0))[0]:
                widest[_process(item)] = (width, rank)
        except BAD_ROW:
            continue  # its record is left out for the same reason
    return {process: rank for process, (_, rank) in widest.items()}


def _record(
    item: Mapping[str, Any], ranks: Mapping[tuple[str, int], int]
) -> tuple[CollectiveRecord, bool]:
    header, perf = item["header"], item["coll_perf"]
    meta = item.get("metadata") or {}
    trace = perf.get("event_trace_ts") or {}
    kernels = [
        k
        for k in trace.get("kernel_events", ())
        if k.get("kernel_start_ts") and k.get("kernel_stop_ts")
    ]
    if kernels:
        begin_us = min(int(k["kernel_start_ts"]) for k in kernels)
        end_us = max(int(k["kernel_stop_ts"]) for k in kernels)
        duration_ns = round(float(perf.get("coll_exec_time_us", end_us - begin_us)) * 1000)
    else:
        end_us = int(meta.get("dump_timestamp_us", 0))
        duration_ns = round(float(perf["coll_exec_time_us"]) * 1000)
        begin_us = end_us - duration_ns // 1000
    hostname, pid = _process(item)
    record = CollectiveRecord(
        job=None,
        node=hostname or None,
        global_rank=ranks[hostname, pid],
        comm=decode_comm(str(header["id"])),
        seq=int(perf["coll_sn"]) if "coll_sn" in perf else None,
        op=canonical_op(str(perf["coll"])),
        rank=int(header["rank"]),
        nranks=int(header["n_ranks"]),
        peer=None,
        datatype="uint8",
        reduce_op=None,
        size_bytes=int(perf.get("coll_msg_size_bytes", 0)),
        start_ns=int(trace.get("coll_start_ts", begin_us)) * 1000,
        end_ns=end_us * 1000,
        gpu_duration_ns=duration_ns,
        stream=None,
        source=CollectiveSource.INSPECTOR,
    )
    return checked(record), bool(kernels)
