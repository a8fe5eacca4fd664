"""Reads collective records as CSV, one GPU-timed collective of one rank per line."""

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

REQUIRED = ("comm_hash", "seq", "op", "rank", "nranks", "enqueue_ns", "gpu_start_ns", "gpu_stop_ns")


def read_csv(path: Path, text: str) -> list[CollectiveRecord]:
    """All records; a bad line stops with its number and what is wrong with it."""
    reader = csv.DictReader(io.StringIO(text))
    missing = [name for name in REQUIRED if name not in (reader.fieldnames or ())]
    if missing:
        raise MalformedInput(f"{path}: column {missing[0]!r} is missing; records have {', '.join(REQUIRED)}")
    records = []
    for row in reader:
        try:
            records.append(checked(_record(row)))
        except (ValueError, TypeError, KeyError) as error:
            raise MalformedInput(f"{path}, line {reader.line_num}: {error}") from error
    return records


def _record(row: dict[str, str]) -> CollectiveRecord:
    rank, begin, stop = int(row["rank"]), int(row["gpu_start_ns"]), int(row["gpu_stop_ns"])
    if stop < begin:
        raise ValueError(f"gpu_stop_ns {stop} lies before gpu_start_ns {begin}")
    datatype = row.get("datatype") or "uint8"
    count = int(row.get("count") or 0)
    return CollectiveRecord(
        job=row.get("job") or None,
        node=row.get("node") or None,
        global_rank=int(row["global_rank"]) if row.get("global_rank") else rank,
        comm=decode_comm(row["comm_hash"]),
        seq=int(row["seq"]) if row["seq"] else None,
        op=canonical_op(row["op"]),
        rank=rank,
        nranks=int(row["nranks"]),
        peer=int(row["peer"]) if row.get("peer") else None,
        datatype=datatype,
        reduce_op=row.get("reduce_op") or None,
        size_bytes=int(row["size_bytes"]) if row.get("size_bytes") else count * DATATYPE_BYTES.get(datatype, 1),
        start_ns=int(row["enqueue_ns"]),
        end_ns=stop,
        gpu_duration_ns=stop - begin,
        stream=int(row["stream"]) if row.get("stream") else None,
        source=CollectiveSource(row["source"]) if row.get("source") else CollectiveSource.PLUGIN,
    )
