"""Whole recordings of a job's rings in small files, and back.

    python -m tests.hardware.real_jobs.archive ddp-1.tar … FOLDER    # into ring files

The files of a job hold every record of every rank from its first step to its last, each at most
PART_BYTES large. `truth.json` says who was slowed, when and how, and what the job measured itself.
As ring files, a recording is what the rings would hold at the end of a phase if they were larger.
"""

import argparse
import io
import json
import lzma
import tarfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ingero.contract.nccl_ring import COMM, HEADER, MAX_SLOTS, RECORD, Records, record_checks

DERIVED = ("check",)  # computed again when a file is unpacked
MIN_SLOTS = 1024
PART_BYTES = 15 << 20
THREADS = 4  # the next job starts meanwhile
COLUMNS, HEAD = ".columns.xz", ".head.xz"
Marks = Sequence[tuple[str, dict[str, int]]]


@dataclass(frozen=True)
class Archive:
    """Everything that was kept of a job; `marks` are the heads of rings at the ends of phases."""

    heads: dict[str, bytes]
    records: dict[str, Records]
    marks: Marks
    files: dict[str, bytes]


def pack(
    heads: dict[str, bytes],
    records: dict[str, Records],
    marks: Marks,
    extra: dict[str, bytes],
    folder: Path,
    name: str,
) -> list[Path]:
    """Write all records, and further files into the first part; returns the parts."""
    with ThreadPoolExecutor(THREADS) as pool:
        packed = dict(zip(records, pool.map(_pack_ring, records.values()), strict=True))
    index = {"marks": [{"name": phase, "heads": at} for phase, at in marks]}
    parts: list[dict[str, bytes]] = [{"index.json": json.dumps(index).encode()} | extra]
    for ring, data in packed.items():
        files = {ring + HEAD: lzma.compress(heads[ring], preset=1), ring + COLUMNS: data}
        size = sum(len(each) for each in (*parts[-1].values(), *files.values()))
        if size > PART_BYTES:
            parts.append({})
        parts[-1] |= files
    paths = [folder / f"{name}-{number}.tar" for number in range(1, len(parts) + 1)]
    for path, files in zip(paths, parts, strict=True):
        _write(path, files)
    return paths


def _write(path: Path, files: dict[str, bytes]) -> None:
    unfinished = path.with_suffix(".part")
    with tarfile.open(unfinished, "w") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    unfinished.rename(path)


def read(paths: Iterable[Path]) -> Archive:
    """Read the parts of one job; one that was lost takes its ranks along."""
    files: dict[str, bytes] = {}
    for path in paths:
        with tarfile.open(path) as opened:
            files |= {
                entry.name: opened.extractfile(entry).read()  # type: ignore[union-attr]  # all are files
                for entry in opened
            }
    index: dict[str, Any] = json.loads(files.pop("index.json"))
    rings = [name.removesuffix(COLUMNS) for name in files if name.endswith(COLUMNS)]
    return Archive(
        {ring: lzma.decompress(files.pop(ring + HEAD)) for ring in rings},
        {ring: records_of(lzma.decompress(files.pop(ring + COLUMNS))) for ring in rings},
        [(mark["name"], mark["heads"]) for mark in index["marks"]],
        files,
    )


def _pack_ring(records: Records) -> bytes:
    return lzma.compress(columns_of(records), preset=3)


def columns_of(records: Records) -> bytes:
    """Return the records field by field, numbers as differences: that compresses far better."""
    parts = [len(records).to_bytes(8, "little")]
    for name in RECORD.names or ():
        if name in DERIVED:
            continue
        column = np.ascontiguousarray(records[name])
        if column.dtype.kind in "ui" and column.dtype.itemsize == 8:
            column = np.diff(column.view("<i8"), prepend=np.int64(0))
            # byte by byte, the high ones are nearly always the same
            parts.append(column.view("u1").reshape(-1, 8).T.tobytes())
        else:
            parts.append(column.tobytes())
    return b"".join(parts)


def records_of(data: bytes) -> Records:
    """Return what `columns_of` wrote."""
    count, at = int.from_bytes(data[:8], "little"), 8
    records = np.zeros(count, RECORD)
    for name in RECORD.names or ():
        if name in DERIVED:
            continue
        kind = RECORD[name]
        raw = np.frombuffer(data, "u1", count * kind.itemsize, at)
        at += count * kind.itemsize
        if kind.kind in "ui" and kind.itemsize == 8:
            column = np.ascontiguousarray(raw.reshape(8, -1).T).view("<i8").reshape(-1)
            records[name] = column.cumsum().view("<u8")
        else:
            records[name] = raw.view(kind)
    records["check"] = record_checks(records)
    return records


def unpack(paths: Iterable[Path], folder: Path) -> list[str]:
    """Write a folder of ring files per phase, and the other files; returns the names."""
    archive = read(paths)
    folder.mkdir(parents=True, exist_ok=True)
    for name, at in archive.marks:
        target = folder / name
        target.mkdir(exist_ok=True)
        for ring, records in archive.records.items():
            header = bytearray(archive.heads[ring])
            (target / ring).write_bytes(map_sizes(header, records, at.get(ring, 0), MAX_SLOTS))
            (target / ring).chmod(0o600)
    for name, data in archive.files.items():
        (folder / name).write_bytes(data)
    return [name for name, _ in archive.marks]


def map_sizes(header: bytearray, records: Records, head: int, cap: int) -> bytes:
    """Return a ring file that holds the newest records before `head`, at most `cap` of them."""
    oldest = max(head - cap, 0)
    chosen = records[(records["stamp"] <= head) & (records["stamp"] > oldest)]
    slots = max(1 << max(len(chosen) - 1, 1).bit_length(), MIN_SLOTS)
    slots = slots if head < slots else min(slots, cap)
    raw = np.frombuffer(header, HEADER, 1)  # writable, because the header is a bytearray
    raw["slots"], raw["head"] = slots, head
    body = np.zeros(slots, RECORD)
    newest = chosen[chosen["stamp"] > max(head - slots, 0)]
    body[(newest["stamp"].astype(np.int64) - 1) % slots] = newest
    assert len(header) == HEADER.itemsize + int(raw["comms"][0]) * COMM.itemsize
    return bytes(header) + body.tobytes()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("archives", type=Path, nargs="+")
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    print("\n".join(unpack(args.archives, args.folder)))


if __name__ == "__main__":
    main()
