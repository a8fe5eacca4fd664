"""Reads one ring of the NCCL plugin from outside, without changing it.

The file is read with `pread` and never mapped: a truncated ring must not crash the agent. A record
that is still being written is waited for; one that was left unfinished (kill -9 at the wrong
moment) is counted as torn.
"""

import os
import stat
from collections import deque
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ingero.contract.nccl_ring import (
    COMM,
    HEADER,
    RECORD,
    Records,
    RingHeader,
    decode_comms,
    decode_counters,
    decode_header,
    usable_records,
)
from ingero.core.collectives.columns import Collectives, Recorder
from ingero.core.collectives.plugin_records import (
    SAME_CLOCK,
    GpuClock,
    fit_gpu_clock,
    to_collectives,
)
from ingero.errors import AuthError, ForeignFile
from ingero.files import open_regular

# a record takes well under a microsecond to write, unless the writer is stopped
UNFINISHED_TIMEOUT_S = 1.0
CLOCK_WINDOW = 16  # batches over which the GPU clock is fitted
MAX_OPERATIONS = 64  # names of operations in one ring; NCCL has a dozen
MAX_TORN = 1024  # in one poll: a writer leaves one per thread


class RingReader:
    """A cursor over one ring.

    `missed` counts overwritten records, `torn` unfinished and damaged ones, `copied` those that
    the last poll copied. A ring that no plugin can have written raises ForeignFile.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.copied = 0
        self.missed = 0
        self.torn = 0
        self.read = 0
        self.clock: GpuClock | None = None
        # first unfinished index, head at that time, and since when
        self._stall: tuple[int, int, float] | None = None
        self._recent: deque[Records] = deque(maxlen=CLOCK_WINDOW)
        self._operations: set[str] = set()
        self._fd, self.file = open_regular(str(path))
        try:
            _require_private(path, self.file)
            self.header: RingHeader = decode_header(self._bytes(HEADER.itemsize, 0), str(path))
            if self.file.st_size < self.header.file_bytes:
                raise ForeignFile(
                    f"{path}: truncated at {self.file.st_size} of {self.header.file_bytes} bytes"
                )
            self._next = self.oldest = max(self.counters()["head"] - self.header.slots, 0)
        except BaseException:
            os.close(self._fd)
            raise

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def counters(self) -> dict[str, int]:
        """Return the counters that the plugin keeps."""
        return decode_counters(self._bytes(HEADER.itemsize, 0), str(self.path))

    def comms(self) -> Records:
        """Return the communicators of the process, with what each has enqueued and finished."""
        return decode_comms(self._bytes(self.header.comms * COMM.itemsize, HEADER.itemsize))

    def poll(self, now_s: float, *, is_final: bool = False) -> Records:
        """Return the records since the last poll, oldest first.

        With `is_final`, unfinished records are not waited for.
        """
        self.copied = 0
        head = self.counters()["head"]
        if head < self._next:
            raise ForeignFile(f"{self.path}: the ring went backwards from {self._next} to {head}")
        self._skip_to(head - self.header.slots)
        first = self._next
        if first == head:
            return np.empty(0, RECORD)
        copied = self._copy(first, head)
        self.copied = len(copied)
        whole = usable_records(copied, first)
        end = len(copied)
        if not whole.all():
            end = self._settle(whole, first, head, now_s, is_final=is_final)
        self._next = first + end
        records: Records = copied[:end][whole[:end]]
        self.read += len(records)
        self._update_clock(records)
        return records

    def collectives(self, records: Records, node: str | None) -> Collectives:
        """Return records as columns; GPU times are fitted to the host clock over recent records."""
        recorder = Recorder(self.header.job, node, self.header.global_rank)
        columns = to_collectives(records, recorder, self.clock or SAME_CLOCK)
        self._operations.update(columns.ops)
        if len(self._operations) > MAX_OPERATIONS:
            raise ForeignFile(f"{self.path}: damaged; it names over {MAX_OPERATIONS} operations")
        return columns

    def _settle(
        self, whole: NDArray[np.bool_], first: int, head: int, now_s: float, *, is_final: bool
    ) -> int:
        """Count incomplete records as missed or torn; return how many records may be passed."""
        broken = first + np.flatnonzero(~whole)
        lapped = max(self.counters()["head"] - self.header.slots, 0)
        unfinished = broken[broken >= lapped]
        abandoned = head if is_final else self._abandoned_below(unfinished, head, now_s)
        waiting = unfinished[unfinished >= abandoned]
        end = int(waiting[0]) if len(waiting) else head
        passed = broken[broken < end]
        torn = int((passed >= lapped).sum())
        if torn > MAX_TORN:
            raise ForeignFile(f"{self.path}: damaged; {torn} of its records are not whole")
        self.missed += len(passed) - torn
        self.torn += torn
        return end - first

    def _abandoned_below(self, unfinished: NDArray[np.intp], head: int, now_s: float) -> int:
        """Return the index below which unfinished records are given up."""
        if not len(unfinished):
            self._stall = None
            return 0
        if self._stall is None or self._stall[0] != int(unfinished[0]):
            self._stall = (int(unfinished[0]), head, now_s)
        _, head_then, since_s = self._stall
        return head_then if now_s - since_s >= UNFINISHED_TIMEOUT_S else 0

    def _skip_to(self, oldest: int) -> None:
        if self._next < oldest:
            self.missed += oldest - self._next
            self._next = oldest

    def _copy(self, first: int, head: int) -> Records:
        """Return the slots of these indices in order; the ring may wrap once."""
        at, count = first % self.header.slots, head - first
        before_wrap = min(count, self.header.slots - at)
        parts = [self._slots(at, before_wrap), self._slots(0, count - before_wrap)]
        return np.concatenate(parts)

    def _slots(self, at: int, count: int) -> Records:
        data = self._bytes(count * RECORD.itemsize, self.header.records_at + at * RECORD.itemsize)
        return np.frombuffer(data, RECORD)

    def _bytes(self, size: int, offset: int) -> bytes:
        data = os.pread(self._fd, size, offset)
        if len(data) < size:
            raise ForeignFile(f"{self.path}: truncated while it was read")
        return data

    def _update_clock(self, records: Records) -> None:
        if len(records):
            self._recent.append(records[-512:])
            self.clock = fit_gpu_clock(np.concatenate(list(self._recent))) or self.clock


def _require_private(path: Path, file: os.stat_result) -> None:
    if file.st_nlink > 1:
        raise ForeignFile(f"{path}: not a file with a single link")
    if file.st_mode & 0o077:
        raise AuthError(
            f"{path}: not trusted, because others may read or write it "
            f"(mode {stat.S_IMODE(file.st_mode):o})"
        )
