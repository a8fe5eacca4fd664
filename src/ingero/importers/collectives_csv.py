"""Read collective records as CSV, one GPU-timed collective of one rank per line.

Values may be separated by commas, semicolons or tabs, and whole numbers may be written as 12.0 or
1.2e1, as spreadsheets and data frames do where a column has gaps.
"""

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
SEPARATORS = ",;\t"
MAX_LINE = 1 << 16  # of the first line, in which the separator is looked for


def read_csv(path: Path, text: str, problems: list[str] | None = None) -> list[CollectiveRecord]:
    """Return all records; bad lines are left out, and counted in `problems`.

    Raise MalformedInput without any good line, or for a first line without the needed columns.
    """
    first_line = text[:MAX_LINE].split("\n", 1)[0]
    reader = csv.DictReader(io.StringIO(text), delimiter=max(SEPARATORS, key=first_line.count))
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
    if "global_rank" not in header:
        _refuse_groups(path, records)
    note = left_out.note(path, len(records), "lines")
    if note and problems is not None:
        problems.append(note)
    return records


def _refuse_groups(path: Path, records: list[CollectiveRecord]) -> None:
    """Refuse ranks that are numbered within groups of several sizes: several processes have one."""
    sizes = sorted({record.nranks for record in records})
    if len(sizes) > 1:
        raise MalformedInput(
            f"{path}: column 'global_rank' is missing; 'rank' counts within communicators of "
            f"{sizes[0]} to {sizes[-1]} ranks, and does not tell which process a line is of"
        )


def _whole(row: dict[str, str], name: str) -> int:
    text = row[name] or ""  # None where the line ends early
    try:
        return int(text)
    except ValueError:
        pass
    try:
        value = float(text)
    except ValueError:
        value = 0.5
    if not value.is_integer():
        raise ValueError(f"{name} is {text or 'empty'}, not a whole number")
    return int(value)


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
