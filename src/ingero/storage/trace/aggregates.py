"""Launches, busy time and totals per process, read from the buckets of a live trace database."""

import sqlite3
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from ingero.contract.events import (
    GRAPH_LAUNCH,
    LAUNCH_OPS,
    MEMCPY_OPS,
    SCHED_SWITCH,
    SYNC_OPS,
    OpKey,
    Source,
)
from ingero.core.recording.gpu_memory import HeldMemory
from ingero.errors import StoreError
from ingero.storage.trace.query import RECORDER_SILENT_NS, recorded_until
from ingero.storage.trace.reading import READER_TIMEOUT_MS

# up to this window the five-second buckets are used, which are kept for ten minutes
SHORT_WINDOW_S = 60.0
SHORT_BUCKET_NS = 5 * 10**9
MEMORY_VALID_NS = 30 * 10**9  # it is recorded every ten seconds
_HAS_MEMORY_SQL = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'gpu_memory'"
_MEMORY_SQL = """SELECT blocks, allocated_bytes, reserved_bytes, largest_free_bytes
FROM gpu_memory WHERE timestamp = (SELECT max(timestamp) FROM gpu_memory
  WHERE timestamp BETWEEN ? AND ?)"""


@dataclass(frozen=True, slots=True)
class WindowTotals:
    """The GPU activity of this node within a window."""

    launches: int
    gpu_call_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessTotals:
    """What one process did in a range of buckets; copied bytes also by direction, if recorded."""

    pid: int
    launches: int
    switches: int
    stall_ns: int
    copied_bytes: int
    directed_bytes: dict[int, int]


@dataclass(frozen=True, slots=True)
class ProcessSteps:
    """Graph launches, waits for the GPU and their time, of one process in one bucket."""

    bucket_ns: int
    pid: int
    launches: int
    waits: int
    wait_ns: int


class TraceReader:
    """A reader connection that reopens the file after a rollover."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None

    def window(self, now_ns: int, window_s: float) -> WindowTotals:
        """Return the launches through runtime and driver, and the time inside GPU calls.

        Raises StoreError.
        """
        table = "event_aggregates_5s" if window_s <= SHORT_WINDOW_S else "event_aggregates"
        sql = f"""
            SELECT coalesce(sum(CASE WHEN {_is_one_of(LAUNCH_OPS)} THEN count END), 0),
                   coalesce(sum(CASE WHEN source IN ({Source.CUDA:d}, {Source.DRIVER:d})
                     THEN sum_dur END), 0)
            FROM {table} WHERE bucket >= ? AND bucket <= ?
        """
        row = self._query(sql, (now_ns - int(window_s * 1e9), now_ns))[0]
        return WindowTotals(max(int(row[0]), 0), max(int(row[1]), 0))

    def check_recorder(self, now_ns: int) -> None:
        """Raise StoreError if a recorder of ours wrote this file and has stopped.

        Without this check, no recorder would look like no work.
        """
        try:
            until_ns = recorded_until(self._connect())
        except sqlite3.Error as error:
            self.close()
            raise StoreError(f"{self.path} cannot be read: {error}") from None
        if until_ns is not None and now_ns - until_ns > RECORDER_SILENT_NS:
            at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(until_ns / 1e9))
            raise StoreError(
                f"nothing was recorded to {self.path} since {at}; is `ingero trace` running?"
            )

    def processes(self, first_bucket_ns: int, end_ns: int) -> list[ProcessTotals]:
        """Return totals per process of the buckets in [first, end). Raises StoreError."""
        sql = f"""
            SELECT pid,
                   coalesce(sum(CASE WHEN {_is_one_of(LAUNCH_OPS)} THEN count END), 0),
                   coalesce(sum(CASE WHEN {_is_one_of([SCHED_SWITCH])} THEN count END), 0),
                   coalesce(sum(CASE WHEN {_is_one_of([SCHED_SWITCH])} THEN sum_dur END), 0),
                   coalesce(sum(CASE WHEN {_is_one_of(MEMCPY_OPS)} THEN sum_arg0 END), 0)
            FROM event_aggregates_5s WHERE bucket >= ? AND bucket < ? GROUP BY pid
        """
        directed: dict[int, dict[int, int]] = {}
        for pid, direction, size in self._query(_DIRECTIONS_SQL, (first_bucket_ns, end_ns)):
            directed.setdefault(pid, {})[direction] = size
        return [
            ProcessTotals(
                pid=pid,
                launches=launches,
                switches=switches,
                stall_ns=stall,
                copied_bytes=copied,
                directed_bytes=directed.get(pid, {}),
            )
            for pid, launches, switches, stall, copied in self._query(
                sql, (first_bucket_ns, end_ns)
            )
        ]

    def steps(self, first_bucket_ns: int, end_ns: int) -> list[ProcessSteps]:
        """Return what the steps of inference engines are told by. Raises StoreError."""
        return [ProcessSteps(*row) for row in self._query(_STEPS_SQL, (first_bucket_ns, end_ns))]

    def memory(self, now_ns: int) -> list[HeldMemory]:
        """Return the GPU memory that each process held when it was last looked at.

        Raises StoreError. It is empty where nothing was recorded lately, or by another recorder.
        """
        if not self._has_memory():
            return []
        return [
            HeldMemory(*row) for row in self._query(_MEMORY_SQL, (now_ns - MEMORY_VALID_NS, now_ns))
        ]

    def _has_memory(self) -> bool:
        return bool(self._query(_HAS_MEMORY_SQL, ()))

    def preemptors(self, pid: int, first_bucket_ns: int, end_ns: int) -> list[int]:
        """Return the processes that ran instead of `pid`, longest first.

        Raises StoreError. Only switches that were stored as rows count.
        """
        return [
            other for (other,) in self._query(_PREEMPTORS_SQL, (first_bucket_ns, end_ns, pid, pid))
        ]

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _query(self, sql: str, values: tuple[int, ...]) -> list[tuple[int, ...]]:
        try:
            return self._connect().execute(sql, values).fetchall()
        except sqlite3.Error as error:
            self.close()
            raise StoreError(f"{self.path} cannot be read: {error}") from None

    def _connect(self) -> sqlite3.Connection:
        try:
            status = self.path.stat()
        except OSError as error:
            self.close()
            raise StoreError(f"{self.path} cannot be read: {error.strerror}") from None
        identity = (status.st_dev, status.st_ino)
        if self._connection is None or identity != self._identity:
            self.close()
            self._connection = sqlite3.connect(
                f"file:{quote(str(self.path))}?mode=ro",
                uri=True,
                timeout=READER_TIMEOUT_MS / 1000,
                check_same_thread=False,
            )
            self._identity = identity
        return self._connection


def _is_one_of(keys: Iterable[OpKey]) -> str:
    return (
        "("
        + " OR ".join(f"(source = {source:d} AND op = {op:d})" for source, op in sorted(keys))
        + ")"
    )


_STEPS_SQL = f"""
    SELECT bucket, pid, coalesce(sum(CASE WHEN {_is_one_of([GRAPH_LAUNCH])} THEN count END), 0),
           coalesce(sum(CASE WHEN {_is_one_of(SYNC_OPS)} THEN count END), 0),
           coalesce(sum(CASE WHEN {_is_one_of(SYNC_OPS)} THEN sum_dur END), 0)
    FROM event_aggregates_5s
    WHERE bucket >= ? AND bucket < ? AND {_is_one_of([GRAPH_LAUNCH, *SYNC_OPS])}
    GROUP BY bucket, pid
"""
MAX_PREEMPTORS = 8
# arg1 of a switch is the process that ran next; 0 is the idle task
_PREEMPTORS_SQL = f"""
    SELECT arg1 FROM events
    WHERE timestamp >= ? AND timestamp < ? AND pid = ? AND {_is_one_of([SCHED_SWITCH])} AND arg1 > 0
    AND arg1 <> ?
    GROUP BY arg1 ORDER BY sum(duration) DESC, arg1 LIMIT {MAX_PREEMPTORS}
"""
# arg1 of a copy is its direction only for cudaMemcpy and cudaMemcpyAsync
_DIRECTIONS_SQL = f"""
    SELECT pid, arg1, sum(arg0) FROM events
    WHERE timestamp >= ? AND timestamp < ? AND {_is_one_of([(1, 4), (1, 7)])} GROUP BY pid, arg1
"""
