"""Keeps every record of a job's rings, and packs recordings of its phases into one small file.

    python -m tests.hardware.real_jobs.recorder ddp.tar FOLDER    # unpacks them into ring files

A recording is what the rings would hold at the end of a phase if they were larger: the newest
records of every rank. `truth.json` beside the recordings says who was slowed, when and how, and
what the job measured itself.
"""

import argparse
import io
import json
import lzma
import tarfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from ingero.agent.nccl.folders import ring_files
from ingero.agent.nccl.reader import RingReader
from ingero.contract.nccl_ring import COMM, HEADER, MAX_SLOTS, RECORD, Records, record_checks
from ingero.errors import IngeroError

POLL_S = 1.0
BUDGET_RECORDS = 1_400_000  # in one file: about 10 bytes each
DERIVED = ("check",)  # computed again when a file is unpacked
MIN_SLOTS = 1024


class Recorder:
    """Reads the rings of a job, or all in a folder, once a second, beside the agent."""

    def __init__(self, folder: Path, job: str | None = None) -> None:
        self.folder, self.job = folder, job
        self.others: set[str] = set()  # rings of other jobs
        self.readers: dict[str, RingReader] = {}
        self.parts: dict[str, list[Records]] = {}
        self.marks: list[tuple[str, dict[str, int]]] = []
        self.heads: dict[str, bytes] = {}
        self._lock, self._end = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def mark(self, name: str) -> None:
        """Remember how far every ring is at the end of a phase."""
        with self._lock:
            self._poll()
            at = {ring: int(parts[-1]["stamp"][-1]) for ring, parts in self.parts.items() if parts}
            self.marks.append((name, at))

    def close(self) -> None:
        self._end.set()
        self._thread.join()
        with self._lock:
            self._poll()
            for reader in self.readers.values():
                reader.close()

    def records(self) -> dict[str, Records]:
        """Return all records of every ring, oldest first."""
        return {ring: np.concatenate(parts) for ring, parts in self.parts.items() if parts}

    def _run(self) -> None:
        while not self._end.wait(POLL_S):
            with self._lock:
                self._poll()

    def _poll(self) -> None:
        for path in ring_files((self.folder,)):
            if path.name not in self.readers and path.name not in self.others:
                with suppress(IngeroError, OSError):
                    self._open(path)
        for name, reader in self.readers.items():
            with suppress(IngeroError, OSError):
                records = reader.poll(time.monotonic())
                if len(records):
                    self.parts.setdefault(name, []).append(records.copy())
                self.heads[name] = reader._bytes(reader.header.records_at, 0)

    def _open(self, path: Path) -> None:
        reader = RingReader(path)
        if self.job in (None, reader.header.job):
            self.readers[path.name] = reader
        else:
            reader.close()
            self.others.add(path.name)


def pack(
    heads: dict[str, bytes],
    records: dict[str, Records],
    marks: list[tuple[str, dict[str, int]]],
    extra: dict[str, bytes],
    target: Path,
) -> None:
    """Write the recordings named in `marks`, and further files, into one archive."""
    cap = MAX_SLOTS
    while cap > MIN_SLOTS and _count(records, marks, cap) > BUDGET_RECORDS:
        cap //= 2
    with ThreadPoolExecutor(8) as pool, tarfile.open(target, "w") as archive:
        packed = dict(
            zip(
                records,
                pool.map(lambda ring: _pack_ring(_kept(records[ring], ring, marks, cap)), records),
                strict=True,
            )
        )
        index = {"cap": cap, "marks": [{"name": name, "heads": at} for name, at in marks]}
        files = {"index.json": json.dumps(index).encode()} | extra
        for ring, data in packed.items():
            files[f"{ring}.head.xz"] = lzma.compress(heads[ring], preset=1)
            files[f"{ring}.columns.xz"] = data
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))


def _kept(
    records: Records, ring: str, marks: list[tuple[str, dict[str, int]]], cap: int
) -> Records:
    kept = np.zeros(len(records), bool)
    for _, at in marks:
        head = at.get(ring, 0)
        kept |= (records["stamp"] <= head) & (records["stamp"] > max(head - cap, 0))
    return records[kept]


def _count(records: dict[str, Records], marks: list[tuple[str, dict[str, int]]], cap: int) -> int:
    return sum(len(_kept(each, ring, marks, cap)) for ring, each in records.items())


def _pack_ring(records: Records) -> bytes:
    return lzma.compress(columns_of(records), preset=4)


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


def unpack(archive: Path, folder: Path) -> list[str]:
    """Write a folder of ring files per recording, and the other files; returns the names."""
    with tarfile.open(archive) as opened:
        files = {
            entry.name: opened.extractfile(entry).read()  # type: ignore[union-attr]  # all are files
            for entry in opened
        }
    index: dict[str, Any] = json.loads(files.pop("index.json"))
    folder.mkdir(parents=True, exist_ok=True)
    rings = {
        name.removesuffix(".columns.xz"): records_of(lzma.decompress(files[name]))
        for name in files
        if name.endswith(".columns.xz")
    }
    for mark in index["marks"]:
        target = folder / mark["name"]
        target.mkdir(exist_ok=True)
        for ring, records in rings.items():
            header = bytearray(lzma.decompress(files[f"{ring}.head.xz"]))
            (target / ring).write_bytes(
                map_sizes(header, records, mark["heads"].get(ring, 0), index["cap"])
            )
            (target / ring).chmod(0o600)
    for name, data in files.items():
        if not name.endswith((".columns.xz", ".head.xz")):
            (folder / name).write_bytes(data)
    return [mark["name"] for mark in index["marks"]]


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
    parser.add_argument("archive", type=Path)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    print("\n".join(unpack(args.archive, args.folder)))


if __name__ == "__main__":
    main()
