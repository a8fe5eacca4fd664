"""Read PyTorch Flight Recorder dumps, pickled or JSON, of one rank each.

A dump consists of plain containers, and everything else is refused. Versions 2.x differ in which
fields are present; what a dump lacks stays unknown.
"""

import hashlib
import json
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
from ingero.core.blame.wait_graph import Pending, ProcessGroup, RankProgress
from ingero.errors import ForeignFile, MalformedInput
from ingero.importers.left_out import BAD_ROW, LeftOut
from ingero.importers.plain_pickle import load_plain

MAX_ENTRIES = 2_000_000
MAX_RANKS = 1 << 20
TORCH_DATATYPES = {
    "BFloat16": "bfloat16", "Half": "float16", "Float": "float32", "Double": "float64",
    "Long": "int64", "Int": "int32", "Char": "int8", "Byte": "uint8", "Bool": "uint8",
    "Float8_e4m3fn": "float8_e4m3", "Float8_e5m2": "float8_e5m2",
}  # fmt: skip
_ARROW = re.compile(r"(\d+)\s*(->|<-)\s*(\d+)")
TORCH_OPS = {
    "_all_gather_base": "AllGather", "_allgather_base": "AllGather",
    "all_gather_into_tensor": "AllGather", "_reduce_scatter_base": "ReduceScatter",
    "reduce_scatter_tensor": "ReduceScatter", "barrier": "AllReduce",
    "allreduce_coalesced": "AllReduce", "alltoall_base": "AllToAll",
    "all_to_all_single": "AllToAll",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class FlightRecording:
    """The dump of one rank: timed records, and the progress of the rank.

    `left_out` says how many entries make no sense, None where all do.
    """

    rank: int
    world: int
    records: tuple[CollectiveRecord, ...]
    progress: RankProgress
    groups: dict[str, ProcessGroup]
    untimed: int
    left_out: str | None = None


def read_dump(path: Path, data: bytes) -> FlightRecording:
    """Decode the dump in `data`; `path` gives the rank where its name ends in one."""
    content = _decode(path, data)
    if not isinstance(content, dict) or not isinstance(content.get("entries"), list):
        raise ForeignFile(f"{path}: not a Flight Recorder dump: it has no list 'entries'")
    if len(content["entries"]) > MAX_ENTRIES:
        raise MalformedInput(f"{path}: {len(content['entries'])} entries, at most {MAX_ENTRIES}")
    try:
        return _interpret(path, content)
    except BAD_ROW as error:
        raise MalformedInput(
            f"{path}: an entry lacks or misuses a field ({type(error).__name__}: {error})"
        ) from error


def _interpret(path: Path, content: dict[str, Any]) -> FlightRecording:
    groups = _groups(content.get("pg_config"))
    rank = _rank_of(path, groups)
    world = 1 + max([rank, *(r for g in groups.values() for r in g.members)])
    keyed = {_key(g): g for g in groups.values()}
    found, left_out = _entries(content["entries"], groups, keyed, rank)
    rows = [row for row, _ in found]
    records = tuple(record for _, record in found if record is not None)
    progress = _progress(rank, rows, _status(content.get("pg_status"), groups, rows))
    done = sum(row.state == "completed" for row in rows)
    note = left_out.note(path, len(rows), "entries")
    return FlightRecording(rank, world, records, progress, keyed, done - len(records), note)


def _entries(
    entries: Sequence[Any],
    groups: Mapping[str, ProcessGroup],
    keyed: dict[str, ProcessGroup],
    rank: int,
) -> tuple[list[tuple["_Entry", CollectiveRecord | None]], LeftOut]:
    """Return the entries in their order with their records; groups without members are added.

    Entries that make no sense are left out. Where all are like that, it is not a dump.
    """
    found, left_out = [], LeftOut()
    wrong: Exception | None = None
    for number, entry in enumerate(entries):
        try:
            row = _entry(entry, groups)
            group = keyed.get(row.group) or ProcessGroup(row.group, row.desc, ())
            found.append((row, _record(row, rank, group)))
        except BAD_ROW as error:
            left_out.add(f"entry {number}", error)
            wrong = wrong or error
            continue
        keyed.setdefault(row.group, group)
    if wrong is not None and not found:
        raise wrong
    return sorted(found, key=lambda each: each[0].order), left_out


def _decode(path: Path, data: bytes) -> Any:  # containers of unknown shape; read_dump checks them
    if data.lstrip()[:1] in (b"{", b"["):
        try:
            return json.loads(data)
        except ValueError as error:
            raise MalformedInput(f"{path}: broken JSON ({error})") from error
    try:
        return load_plain(data)
    except MalformedInput as error:
        raise MalformedInput(f"{path}: cannot be read as a dump: {error}") from error


@dataclass(frozen=True, slots=True)
class _Entry:
    order: int
    group: str
    desc: str
    pg_id: str
    seq: int
    op: str
    shape: str
    peer: int | None
    size_bytes: int
    datatype: str
    created_ns: int
    started_ns: int | None
    completed_ns: int | None
    duration_ns: int | None
    state: str


def _entry(entry: Mapping[str, Any], groups: Mapping[str, ProcessGroup]) -> _Entry:
    name, desc = (_text(each) for each in ((*tuple(entry.get("process_group") or ()), "0", ""))[:2])
    group = groups.get(name)
    op = _text(entry["profiling_name"]).rsplit("nccl:", 1)[-1]
    is_p2p = bool(entry.get("is_p2p", False))
    peer = _peer(op, group) if is_p2p or op.startswith(("send", "recv")) else None
    sizes = [
        [int(extent) for extent in size]
        for size in entry.get("input_sizes") or entry.get("output_sizes") or ()
    ]
    kind = _text((entry.get("input_dtypes") or ["Byte"])[0])
    datatype = TORCH_DATATYPES.get(kind, kind.lower())
    duration = entry.get("duration_ms")
    state = _text(entry.get("state") or ("completed" if duration is not None else "scheduled"))
    seq = entry.get("p2p_seq_id") if is_p2p else entry.get("collective_seq_id", entry.get("seq_id"))
    return _Entry(
        order=int(entry.get("record_id", entry.get("id", 0))),
        group=_key(group) if group else name,
        desc=desc,
        pg_id=_text(entry.get("pg_id", "")),
        seq=int(seq or 0),
        op=_friendly(op, peer),
        shape=f"{sizes} {datatype}" if sizes else "",
        peer=peer,
        size_bytes=sum(math.prod(size) for size in sizes) * DATATYPE_BYTES.get(datatype, 1),
        datatype=datatype,
        created_ns=int(entry["time_created_ns"])
        if "time_created_ns" in entry
        else int(entry["time_created_us"]) * 1000,
        started_ns=_moment(entry.get("time_discovered_started_ns")),
        completed_ns=_moment(entry.get("time_discovered_completed_ns")),
        duration_ns=None if duration is None else round(float(duration) * 1e6),
        state="completed"
        if entry.get("time_discovered_completed_ns") and state != "completed"
        else state,
    )


def _text(value: object) -> str:
    """Return a name of a dump as text; anything but a string or number is refused.

    A list that contains itself many times over would have no end as text.
    """
    if not isinstance(value, str | int):
        raise TypeError(f"a {type(value).__name__} instead of a name")
    return str(value)


def _moment(value: Any) -> int | None:  # any number, or None
    return None if value is None else int(value)


def _friendly(op: str, peer: int | None) -> str:
    name = op.split(" ", maxsplit=1)[0]
    plain = TORCH_OPS.get(name) or canonical_op(name)
    return plain if peer is None else f"{plain} {'to' if plain == 'Send' else 'from'} rank {peer}"


def _peer(op: str, group: ProcessGroup | None) -> int | None:
    """Return the global rank of the other end; the arrow in the name counts within the group."""
    arrow = _ARROW.search(op)
    if not arrow:
        return None
    other = int(arrow.group(3))
    return group.members[other] if group and other < len(group.members) else other


def _groups(config: object) -> dict[str, ProcessGroup]:
    if not isinstance(config, dict):
        return {}
    groups = {}
    for name, item in config.items():
        ranks = item.get("ranks", ()) if isinstance(item, dict) else ()
        if isinstance(ranks, str):
            ranks = _listed(ranks)
        members = tuple(int(r) for r in ranks or ())
        if any(not 0 <= r < MAX_RANKS for r in members):
            raise ValueError(f"group {name} has a rank out of range")
        groups[str(name)] = ProcessGroup(
            str(name), _text(item.get("desc", "")) if isinstance(item, dict) else "", members
        )
    return groups


def _listed(text: str) -> list[str]:
    """Return the numbers of a list such as `[0, 1]`; none when it holds anything else."""
    numbers = [part.strip() for part in text.strip(" []()").split(",")]
    return numbers if all(number.isdecimal() for number in numbers) else []


def _key(group: ProcessGroup) -> str:
    """Return a unique key: in some set-ups names are per process, so the members are added."""
    return f"{group.name}|{','.join(map(str, group.members))}"


def _rank_of(path: Path, groups: Mapping[str, ProcessGroup]) -> int:
    """Return the number at the end of the file name, unless its groups do not contain it."""
    common = (
        set.intersection(*(set(g.members) for g in groups.values() if g.members))
        if any(g.members for g in groups.values())
        else set()
    )
    numbers = re.findall(r"\d+", path.name)
    named = int(numbers[-1]) if numbers else None
    if named is not None and (not common or named in common):
        return named
    if len(common) == 1:
        return common.pop()
    if named is not None:
        return named
    raise MalformedInput(
        f"{path}: the rank is neither in the name nor in the groups; "
        "end the file name with it, as in _dump_7"
    )


def _status(
    status: object, groups: Mapping[str, ProcessGroup], rows: Sequence[_Entry]
) -> dict[str, tuple[int, int]]:
    """Return the last enqueued and completed sequence number per group.

    The table is keyed by a local id. Entries say which group that is; otherwise the order of
    creation does, since ids and names both grow with it.
    """
    if not isinstance(status, dict):
        return {}
    ids = sorted((str(i) for i in status), key=_number)
    names = sorted(groups, key=_number)
    if len(names) == len(ids) + 1 and _number(names[0]) == 0 and _number(ids[0]) != 0:
        names = names[1:]  # the default group appears only when it is used
    known = {row.pg_id: row.group for row in rows if row.pg_id}
    guess = (
        {i: _key(groups[n]) for i, n in zip(ids, names, strict=True)}
        if len(ids) == len(names)
        else {}
    )
    if any(guess.get(i, key) != key for i, key in known.items()):
        guess = {}
    found = {}
    for i in ids:
        key, item = (
            known.get(i) or guess.get(i),
            status.get(i, status.get(int(i)) if i.isdigit() else None),
        )
        if key and isinstance(item, dict):
            found[key] = (
                int(item.get("last_enqueued_collective", -1)),
                int(item.get("last_completed_collective", -1)),
            )
    return found


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 1 << 60


def _progress(
    rank: int, rows: Sequence[_Entry], status: Mapping[str, tuple[int, int]]
) -> RankProgress:
    enqueued = {key: last for key, (last, _) in status.items()}
    completed = {key: last for key, (_, last) in status.items()}
    for row in rows:
        if row.peer is None:
            enqueued[row.group] = max(enqueued.get(row.group, -1), row.seq)
            if row.state == "completed":
                completed[row.group] = max(completed.get(row.group, -1), row.seq)
    # Without timing, a dump does not contain whether an operation started.
    is_timed = any(row.state == "started" or row.started_ns for row in rows)
    pending = tuple(
        Pending(
            row.group,
            row.seq,
            row.op,
            row.shape,
            row.peer,
            row.created_ns,
            row.state == "started" or row.started_ns is not None if is_timed else None,
        )
        for row in rows
        if row.state != "completed"
    )
    for row in rows:  # all operations of a group before its first pending one are done
        if row.state != "completed" and row.peer is None:
            completed.setdefault(row.group, row.seq - 1)
    stamps = [t for row in rows for t in (row.created_ns, row.started_ns, row.completed_ns) if t]
    spans = [
        row.completed_ns - row.created_ns
        for row in rows
        if row.state == "completed" and row.completed_ns
    ]
    return RankProgress(
        rank, enqueued, completed, pending, max(stamps, default=0), max(spans, default=None)
    )


def _record(row: _Entry, rank: int, group: ProcessGroup) -> CollectiveRecord | None:
    if row.state != "completed" or row.duration_ns is None:
        return None
    is_member = rank in group.members
    record = CollectiveRecord(
        job=None,
        node=None,
        global_rank=rank,
        comm=comm_hash(row.group),
        seq=row.seq if row.peer is None else None,
        op=row.op.split(" ")[0],
        rank=group.members.index(rank) if is_member else rank,
        nranks=len(group.members) or 0,
        peer=group.members.index(row.peer) if is_member and row.peer in group.members else row.peer,
        datatype=row.datatype,
        reduce_op=None,
        size_bytes=row.size_bytes,
        start_ns=row.created_ns,
        end_ns=max(row.completed_ns or 0, row.created_ns + row.duration_ns),
        gpu_duration_ns=row.duration_ns,
        stream=None,
        source=CollectiveSource.FLIGHT_RECORDER,
    )
    return checked(record)


def comm_hash(name: str) -> int:
    """Return a communicator hash for sources that name groups; it is the same on every rank."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest())
