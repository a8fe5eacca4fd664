"""The thread that writes a trace, so that tracing never waits for a disk.

Batches wait in a bounded queue; those that do not fit are counted. A batch that the disk refuses is
kept in memory, within limits, and retried every second. The log is moved into the file every few
seconds.
"""

import queue
import sqlite3
import threading
import time
from dataclasses import dataclass
from typing import Final

from ingero.errors import StoreError
from ingero.storage.trace.database import Batch, RecordingState, TraceDb
from ingero.storage.trace.prune import compact, drop_short_aggregates, prune, roll_over

CHECKPOINT_S: Final = 5.0
RETRY_S: Final = 1.0
TIDY_S: Final = 30.0
MAX_QUEUED_BATCHES: Final = 256
MAX_HELD_ROWS: Final = 20_000


@dataclass(frozen=True, slots=True)
class SizePolicy:
    """The size at which rows are deleted or a new file is started; 0 is no limit."""

    max_bytes: int = 10 * 2**30
    rollover_bytes: int = 0
    rollover_keep: int = 6


@dataclass(slots=True)
class WriterCounters:
    """What happened to the rows that were submitted."""

    written: int = 0
    dropped: int = 0  # the queue was full
    failed: int = 0  # the disk refused them for too long
    pruned: int = 0
    rollovers: int = 0
    rollover_failures: int = 0


class TraceWriter:
    """Writes to a `TraceDb`, and closes it in the end."""

    def __init__(
        self,
        db: TraceDb,
        policy: SizePolicy | None = None,
        *,
        checkpoint_s: float = CHECKPOINT_S,
        retry_s: float = RETRY_S,
    ) -> None:
        self.counters = WriterCounters()
        self._db = db
        self._policy = policy or SizePolicy()
        self._queue: queue.Queue[Batch | None] = queue.Queue(MAX_QUEUED_BATCHES)
        self._held: list[Batch] = []
        self._held_rows = 0
        self._checkpoint_s, self._retry_s = checkpoint_s, retry_s
        self._next_checkpoint_s = time.monotonic() + checkpoint_s
        self._next_retry_s = 0.0
        self._next_tidy_s = 0.0
        self._thread = threading.Thread(target=self._run, name="trace-writer", daemon=True)
        self._thread.start()

    @property
    def state(self) -> RecordingState:
        """Whether rows reach the disk at the moment."""
        return self._db.state

    def submit(self, batch: Batch) -> bool:
        """Queue a batch; return False if the queue is full and the batch was dropped."""
        try:
            self._queue.put_nowait(batch)
        except queue.Full:
            self.counters.dropped += _rows(batch)
            return False
        return True

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Wait until all submitted batches were written or refused; False after the timeout."""
        deadline_s = time.monotonic() + timeout_s
        while self._queue.unfinished_tasks and time.monotonic() < deadline_s:
            time.sleep(0.005)
        return not self._queue.unfinished_tasks

    def close(self) -> None:
        """Write what is left, compact and close the file."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            try:
                batch = self._queue.get(timeout=self._retry_s)
            except queue.Empty:
                self._maintain(time.monotonic())
                continue
            try:
                if batch is None:
                    self._finish()
                    return
                self._write(batch, time.monotonic())
            finally:
                self._queue.task_done()
            self._maintain(time.monotonic())

    def _write(self, batch: Batch, now_s: float) -> None:
        if self._held and now_s < self._next_retry_s:
            self._hold(batch)
            return
        while self._held:
            if not self._db.write(self._held[0]):
                self._next_retry_s = now_s + self._retry_s
                self._hold(batch)
                return
            written = self._held.pop(0)
            self._held_rows -= _rows(written)
            self.counters.written += _rows(written)
        if self._db.write(batch):
            self.counters.written += _rows(batch)
        else:
            self._next_retry_s = now_s + self._retry_s
            self._hold(batch)

    def _hold(self, batch: Batch) -> None:
        rows = _rows(batch)
        if self._held_rows + rows > MAX_HELD_ROWS:
            self.counters.failed += rows
        elif rows:
            self._held.append(batch)
            self._held_rows += rows

    def _maintain(self, now_s: float) -> None:
        if self._held and now_s >= self._next_retry_s:
            self._write([], now_s)
        if now_s < self._next_checkpoint_s:
            return
        self._db.checkpoint()
        self._next_checkpoint_s = now_s + self._checkpoint_s
        try:
            self._keep_size(now_s)
        except sqlite3.OperationalError:
            self._next_tidy_s = now_s + TIDY_S  # not even room to delete; `state` already shows it

    def _keep_size(self, now_s: float) -> None:
        if now_s >= self._next_tidy_s:
            drop_short_aggregates(self._db, time.time_ns())
            self._next_tidy_s = now_s + TIDY_S
        if self._policy.rollover_bytes and self._db.size_bytes() >= self._policy.rollover_bytes:
            try:
                roll_over(self._db, self._policy.rollover_keep)
                self.counters.rollovers += 1
            except StoreError:
                self.counters.rollover_failures += 1
        elif self._policy.max_bytes:
            self.counters.pruned += prune(self._db, self._policy.max_bytes)

    def _finish(self) -> None:
        self._write([], float("inf"))
        self.counters.failed += self._held_rows
        if self._db.state is RecordingState.RECORDING:
            compact(self._db)
        self._db.close()


def _rows(batch: Batch) -> int:
    return sum(len(rows) for _, rows in batch)
