"""Read collective records as CSV, one GPU-timed collective of one rank per line."""

import csv
import io
from pathlib import Path

from ingero.contract.collective import (
    DATATYPE_BYTES,
    CollectiveRecord,
    CollectiveSource,
    canonical_op,
    checked,
    decode_comm,
)
from ingero.errors import MalformedInput
from ingero.importers.left_out import BAD_ROW, LeftOut

REQUIRED = ("comm_hash", "seq", "op", "rank", "nranks", "enqueue_ns", "gpu_start_ns", "gpu_stop_ns")
MAX_COLUMNS = 1000


def read_csv(path: Path, text: str, problems: list[str] | None = None) -> list[CollectiveRecord]:
    """Return all records; bad lines are left out, and counted in `problems`.

    Raise MalformedInput without any good line, or for a first line without the needed columns.
    """
    reader = csv.DictReader(io.StringIO(text))
    try:
        header = reader.fieldnames or ()
    except csv.Error as error:
        raise MalformedInput(f"{path}: its first line cannot be read: {error}") from error
    if len(header) > MAX_COLUMNS:
        raise MalformedInput(f"{path}: {len(header)} columns, at most {MAX_COLUMNS}")
    missing = [name for name in REQUIRED if name not in header]
    if missing:
        raise MalformedInput(
            f"{path}: column {missing[0]!r} is missing; records have {', '.join(REQUIRED)}"
        )
    records: list[CollectiveRecord] = []
    left_out = LeftOut()
    while True:
        try:
            row = next(reader, None)
            if row is None:
                break
            records.append(checked(_record(row)))
        except (*BAD_ROW, csv.Error) as error:
            left_out.add(f"line {reader.line_num}", error)
    if left_out.count and not records:
        raise MalformedInput(f"{path}, {left_out.first}")
    note = left_out.note(path, len(records), "lines")
    if note and problems is not None:
        problems.append(note)
    return records


def _whole(row: dict[str, str], name: str) -> int:
    try:
        return int(row[name])
    except (TypeError, ValueError):  # None where the line ends early
        raise ValueError(f"{name} is {row[name] or 'empty'}, not a whole number") from None


def _known(row: dict[str, str], name: str) -> int | None:
    return _whole(row, name) if row.get(name) else None


def _record(row: dict[str, str]) -> CollectiveRecord:
    rank, begin, stop = (_whole(row, name) for name in ("rank", "gpu_start_ns", "gpu_stop_ns"))
    if stop < begin:
        raise ValueError(f"gpu_stop_ns {stop} is before gpu_start_ns {begin}")
    datatype = row.get("datatype") or "uint8"
    size, global_rank = _known(row, "size_bytes"), _known(row, "global_rank")
    return CollectiveRecord(
        job=row.get("job") or None,
        node=row.get("node") or None,
        global_rank=rank if global_rank is None else global_rank,
        comm=decode_comm(row["comm_hash"]),
        seq=_known(row, "seq"),
        op=canonical_op(row["op"]),
        rank=rank,
        nranks=_whole(row, "nranks"),
        peer=_known(row, "peer"),
        datatype=datatype,
        reduce_op=row.get("reduce_op") or None,
        size_bytes=(_known(row, "count") or 0) * DATATYPE_BYTES.get(datatype, 1)
        if size is None
        else size,
        start_ns=_whole(row, "enqueue_ns"),
        end_ns=stop,
        gpu_duration_ns=stop - begin,
        stream=_known(row, "stream"),
        source=CollectiveSource(row["source"]) if row.get("source") else CollectiveSource.PLUGIN,
    )
