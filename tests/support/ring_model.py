"""A second writer of rings, in Python, that can stop at any byte."""

import os
from pathlib import Path

import numpy as np

from ingero.contract.nccl_ring import COMM, HEADER, MAGIC, RECORD, VERSION, record_checks

SLOTS = 64


class ModelRing:
    """Writes records like the plugin, but each step on its own."""

    def __init__(
        self, path: Path, slots: int = SLOTS, comms: int = 4, pid: int | None = None, ticks: int = 1
    ) -> None:
        self.path, self.slots, self.head = path, slots, 0
        self.records_at = HEADER.itemsize + comms * COMM.itemsize
        self.header = np.zeros(1, HEADER)
        facts = {
            "version": VERSION,
            "header_bytes": HEADER.itemsize,
            "comm_bytes": COMM.itemsize,
            "comms": comms,
            "record_bytes": RECORD.itemsize,
            "slots": slots,
            "pid": os.getpid() if pid is None else pid,
            "start_ticks": ticks,
            "pid_namespace": Path("/proc/self/ns/pid").stat().st_ino,
            "global_rank": 7,
            "local_rank": -1,
            "world_size": 16,
            "job": b"job-1",
            "uid": os.geteuid(),
            "magic": MAGIC,
        }
        for name, value in facts.items():
            self.header[name] = value
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.ftruncate(self.fd, self.records_at + slots * RECORD.itemsize)
        self.write_header()

    def write_header(self) -> None:
        self.header["head"] = self.head
        os.pwrite(self.fd, self.header.tobytes(), 0)

    def reserve(self) -> int:
        """Take the next index, as a writer does first."""
        self.head += 1
        self.write_header()
        return self.head - 1

    def fill(self, index: int, **values: object) -> bytes:
        """The finished bytes of the record at `index`."""
        record = np.zeros(1, RECORD)
        defaults = {
            "comm": 5,
            "seq": index,
            "count": index,
            "op": b"AllReduce",
            "datatype": b"Float32",
            "flags": 1,
        }
        times = {
            "enqueue_ns": 10**18 + index,
            "gpu_start_ns": 10**12 + index,
            "gpu_stop_ns": 10**12 + index + 5,
        }
        for name, value in (
            defaults | times | {"host_stop_ns": 10**18 + index + 10} | values
        ).items():
            record[name] = value
        record["stamp"] = index + 1
        record["check"] = record_checks(record)
        return record.tobytes()

    def put(self, index: int, data: bytes, cut: int | None = None) -> None:
        """Write the record, or the first `cut` bytes after the stamp; the stamp comes last."""
        at = self.records_at + index % self.slots * RECORD.itemsize
        os.pwrite(self.fd, data[8:] if cut is None else data[8 : 8 + cut], at + 8)
        if cut is None:
            os.pwrite(self.fd, data[:8], at)

    def write(self, **values: object) -> int:
        index = self.reserve()
        self.put(index, self.fill(index, **values))
        return index

    def close(self) -> None:
        os.close(self.fd)
