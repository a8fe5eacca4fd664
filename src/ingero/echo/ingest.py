"""Ingest: check a request, write it to the journal, sync, then acknowledge it.

The event loop checks and queues requests. One thread writes all requests in flight and syncs them
together. Limits apply before memory is used: beyond them a request is refused with a time to retry,
and acknowledged data is not affected.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ingero.contract.otlp.columns import Columns, new_columns
from ingero.errors import MalformedInput, Overloaded, StoreError, StoreFull, TooLarge
from ingero.storage.journal.frames import MAX_BODY_BYTES, frame_bytes
from ingero.storage.journal.writer import JournalWriter
from ingero.transport.otlp.decoding import INLINE_BYTES, DecodingThread

log = logging.getLogger(__name__)

MAX_REQUEST_BYTES: Final = 8 * 1024 * 1024  # decoded; about 40,000 points
MAX_QUEUED_BYTES: Final = 64 * 1024 * 1024
GROUP_BYTES: Final = 16 * 1024 * 1024
PREPARE_EVERY_S: Final = 0.25
# after a full disk, requests are refused for this long before the next attempt
FULL_RETRY_S: Final = 1.0
OVERLOAD_RETRY_S: Final = 2
DRAIN_RETRY_S: Final = 5
assert MAX_REQUEST_BYTES <= MAX_BODY_BYTES


def request_too_large() -> TooLarge:
    """Return the error for a request beyond MAX_REQUEST_BYTES."""
    return TooLarge(f"the request is larger than {MAX_REQUEST_BYTES} bytes; send smaller batches")


@dataclass(frozen=True, slots=True)
class Accepted:
    """An acknowledged request, durable under this sequence."""

    seq: int
    events: int


@dataclass(slots=True)
class IngestCounters:
    """Counters since the start of this process."""

    requests: int = 0
    events: int = 0
    bytes: int = 0
    groups: int = 0
    refused_overload: int = 0
    refused_full: int = 0
    refused_malformed: int = 0


_Waiting = tuple[int, bytes, int, asyncio.Future[Accepted]]


class Ingest:
    """Accepts requests.

    `submit` runs in the event loop; `start` and `stop` control the writer thread.
    """

    def __init__(
        self,
        journal: JournalWriter,
        max_backlog_bytes: int,
        on_durable: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._journal = journal
        self._on_durable = on_durable
        self._max_backlog_bytes = max_backlog_bytes
        self._checker: Columns = new_columns()
        self._large_checker: Columns = new_columns()  # used in the thread only
        self._decoding = DecodingThread()
        self._queue: deque[_Waiting] = deque()
        self._queued_bytes = 0
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._full: tuple[float, str] | None = None
        self._thread = threading.Thread(target=self._write_forever, name="journal", daemon=True)
        self._preparer = threading.Thread(
            target=self._prepare_forever, name="segments", daemon=True
        )
        self._loop: asyncio.AbstractEventLoop
        # last sequence and size of each group that is not yet in the database
        self._backlog: deque[tuple[int, int]] = deque()
        self._applied_seq = journal.last_seq
        self.backlog_bytes = 0
        self.draining = False
        self.counters = IngestCounters()

    @property
    def durable_seq(self) -> int:
        return self._journal.last_seq

    @property
    def journal_bytes(self) -> int:
        return self._journal.size_bytes

    @property
    def problem(self) -> str:
        """Why new data is refused, or an empty string."""
        if self.draining:
            return "Echo is stopping"
        if self._full is not None and time.monotonic() < self._full[0]:
            return self._full[1]
        return (
            ""
            if self.backlog_bytes < self._max_backlog_bytes
            else "the store is behind; its backlog is full"
        )

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread.start()
        self._preparer.start()

    def resume(self, applied_seq: int, waiting_bytes: int) -> None:
        """Count the requests that an earlier process acknowledged and the store has yet to load."""
        self._applied_seq = applied_seq
        if waiting_bytes:
            self._backlog.append((self._journal.last_seq, waiting_bytes))
            self.backlog_bytes = waiting_bytes

    async def submit(self, signal: int, body: bytes) -> Accepted:
        """Write a request to the journal; it is durable when this returns.

        On MalformedPush, TooLarge, Overloaded or StoreFull it is not stored.
        """
        self._admit(len(body))
        try:
            if len(body) <= INLINE_BYTES:
                events = self._checker.check(signal, body)
            else:
                events = await self._decoding.run(self._large_checker.check, signal, body)
                self._admit(len(body))  # others were accepted meanwhile, or Echo is stopping
        except (MalformedInput, TooLarge):
            self.counters.refused_malformed += 1
            raise
        if not events:
            return Accepted(0, 0)  # nothing to store
        future: asyncio.Future[Accepted] = self._loop.create_future()
        self._queued_bytes += len(body)
        self._queue.append((signal, body, events, future))
        self._wake.set()
        return await future

    def set_applied(self, seq: int) -> None:
        """Note that the database holds everything up to `seq`."""
        self._applied_seq = seq
        while self._backlog and self._backlog[0][0] <= seq:
            self.backlog_bytes -= self._backlog.popleft()[1]

    def stop(self) -> None:
        """Write what is queued and end the threads; later requests are refused."""
        self.draining = True
        self._stopping.set()
        self._wake.set()
        self._thread.join()
        self._preparer.join()  # an unfinished segment must not appear while the next owner writes
        self._journal.close()

    def _admit(self, size: int) -> None:
        if size > MAX_REQUEST_BYTES:
            raise request_too_large()
        if self.draining:
            raise Overloaded("Echo is stopping", DRAIN_RETRY_S)
        if self._full is not None and time.monotonic() < self._full[0]:
            self.counters.refused_full += 1
            raise StoreFull(self._full[1])
        if (
            self._queued_bytes + size > MAX_QUEUED_BYTES
            or self.backlog_bytes > self._max_backlog_bytes
        ):
            self.counters.refused_overload += 1
            raise Overloaded("more arrives than the store can load", OVERLOAD_RETRY_S)

    # below: the journal thread
    def _write_forever(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            while self._queue:
                self._write_group()
            self._journal.recycle(self._applied_seq)
            if self._stopping.is_set():
                return

    def _write_group(self) -> None:
        group: list[_Waiting] = []
        size = 0
        while self._queue and size < GROUP_BYTES:
            group.append(self._queue.popleft())
            size += len(group[-1][1])
        failure: StoreError | None = None
        try:
            last = self._journal.append(
                [(signal, body) for signal, body, _, _ in group], time.time_ns() // 1000
            )
        except StoreError as error:
            failure = error
            last = 0
            log.error("journal_refused", extra={"reason": str(error)})
        self._loop.call_soon_threadsafe(self._settle, group, size, last, failure)

    def _settle(
        self, group: list[_Waiting], size: int, last: int, failure: StoreError | None
    ) -> None:
        """Acknowledge a group in the event loop, or report its error to every sender."""
        self._queued_bytes -= size
        if failure is not None:
            self._full = (time.monotonic() + FULL_RETRY_S, str(failure))
            self.counters.refused_full += len(group)
            for *_, future in group:
                if not future.done():
                    future.set_exception(failure)
            return
        self._full = None
        self._on_durable(last)
        self.counters.groups += 1
        self.counters.requests += len(group)
        self.counters.bytes += size
        written = sum(frame_bytes(body) for _, body, _, _ in group)
        self._backlog.append((last, written))
        self.backlog_bytes += written
        for position, (_, _, events, future) in enumerate(group):
            self.counters.events += events
            if not future.done():
                future.set_result(Accepted(last - len(group) + 1 + position, events))

    def _prepare_forever(self) -> None:
        """Keep a spare segment ready, and free old segments even when nothing arrives."""
        while not self._stopping.wait(PREPARE_EVERY_S):
            self._wake.set()
            try:
                self._journal.prepare()
            except StoreError as error:
                log.warning("no_spare_segment", extra={"reason": str(error)})
                self._stopping.wait(FULL_RETRY_S)
