"""Forwarding of received requests: a bounded queue, batches and retries, outside the push path.

Requests are sent as protobuf, and protobuf messages of one type concatenate: a batch is the joined
bytes of its requests, which are never decoded again. JSON is converted to protobuf here.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from ingero.contract.exposition import Family, counter, gauge
from ingero.contract.otlp.body import Encoding, decode
from ingero.contract.otlp.codec import encode_protobuf
from ingero.contract.otlp.values import Kind, count_items
from ingero.errors import IngeroError, MalformedPush, TooLarge, Unavailable
from ingero.fleet.processor import Taken
from ingero.transport.otlp.decoding import INLINE_BYTES

BATCH_REQUESTS = 256
BATCH_BYTES = 1 << 20
FLUSH_S = 0.2  # how long a request may wait for others to share its batch
DRAIN_S = 5.0
log = logging.getLogger(__name__)


class Refused(Unavailable):
    """The backend refuses this batch, and would refuse it again."""


class Busy(Unavailable):
    """The backend cannot accept a batch now; `retry_after_s` is the delay that it asked for."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


Send = Callable[[Kind, bytes], Awaitable[int]]  # returns how many items the backend rejected


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardPolicy:
    """Limits of the queue and of the retries of one exporter."""

    queue_size: int = 10_000
    queue_bytes: int = 32 << 20
    initial_s: float = 1.0
    max_s: float = 30.0
    max_elapsed_s: float = 300.0


@dataclass(slots=True)
class ForwardCounters:
    """Counts of one exporter; dropped requests by reason."""

    sent: int = 0
    retries: int = 0
    rejected_items: int = 0
    dropped: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(
            ("queue_full", "refused", "gave_up", "malformed", "failed"), 0
        )
    )


class Forwarder:
    """A sink with one worker. `send` raises Busy to get a batch again, and Refused to drop it."""

    def __init__(
        self, name: str, send: Send, policy: ForwardPolicy, chance: random.Random | None = None
    ) -> None:
        self.name = name
        self.send = send
        self.policy = policy
        self.counters = ForwardCounters()
        self._chance = chance or random.Random()  # noqa: S311 - jitter, not a secret
        self._queue: deque[tuple[Kind, bytes, Encoding, Callable[[], None] | None]] = deque()
        self._queued_bytes = 0
        self._wake = asyncio.Event()
        self._closing = False
        self._task: asyncio.Task[None] | None = None

    def offer(self, kind: Kind, body: bytes, encoding: Encoding, taken: Taken) -> None:
        """Queue a request; a full queue drops its oldest, because recent data is worth more."""
        self._put(kind, body, encoding, None)

    def offer_followed(self, kind: Kind, body: bytes, done: Callable[[], None]) -> None:
        """Queue a request in protobuf; `done` is called as soon as nobody need send it again."""
        self._put(kind, body, Encoding.PROTOBUF, done)

    def _put(
        self, kind: Kind, body: bytes, encoding: Encoding, done: Callable[[], None] | None
    ) -> None:
        self._queue.append((kind, body, encoding, done))
        self._queued_bytes += len(body)
        while (
            len(self._queue) > self.policy.queue_size
            or self._queued_bytes > self.policy.queue_bytes
        ):
            _, dropped, _, follower = self._queue.popleft()
            self._queued_bytes -= len(dropped)
            self.counters.dropped["queue_full"] += 1
            if follower is not None:
                follower()
        if len(self._queue) == 1:
            self._wake.set()

    def start(self) -> None:
        """Start the worker inside the running event loop."""
        self._task = asyncio.create_task(self._run(), name=f"forward {self.name}")

    async def stop(self, within_s: float = DRAIN_S) -> None:
        """Send what is queued, for at most `within_s`, then stop the worker."""
        self._closing = True
        self._wake.set()
        if self._task is not None:
            done, _ = await asyncio.wait({self._task}, timeout=within_s)
            if not done:
                self._task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await self._task
                self.counters.dropped["gave_up"] += len(self._queue)

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            if not self._closing:
                await asyncio.sleep(FLUSH_S)
            while self._queue:
                kind, count, body, followers = await self._next_batch()
                try:
                    if body:
                        await self._deliver(kind, count, body)
                    else:
                        await asyncio.sleep(0)
                except asyncio.CancelledError:  # the batch may or may not have arrived
                    self.counters.dropped["gave_up"] += count
                    raise
                for done in followers:
                    done()
            self._wake.clear()
            if self._closing:
                return

    async def _next_batch(self) -> tuple[Kind, int, bytes, list[Callable[[], None]]]:
        """Take requests of one kind from the head of the queue and join their bytes."""
        kind = self._queue[0][0]
        parts: list[bytes] = []
        followers: list[Callable[[], None]] = []
        size = 0
        while (
            self._queue
            and self._queue[0][0] is kind
            and len(parts) < BATCH_REQUESTS
            and size < BATCH_BYTES
        ):
            _, body, encoding, done = self._queue.popleft()
            self._queued_bytes -= len(body)
            try:
                if encoding is Encoding.JSON:
                    body = await _as_protobuf(kind, body)
            except (MalformedPush, TooLarge):
                self.counters.dropped["malformed"] += 1
                continue
            except Exception:  # a body that fails must not block later ones
                log.exception("export_failed", extra={"exporter": self.name})
                self.counters.dropped["failed"] += 1
                continue
            parts.append(body)
            size += len(body)
            if done is not None:
                followers.append(done)
        return kind, len(parts), b"".join(parts), followers

    async def _deliver(self, kind: Kind, count: int, body: bytes) -> None:
        began_s, wait_s = time.monotonic(), self.policy.initial_s
        while True:
            try:
                self.counters.rejected_items += await self.send(kind, body)
            except Refused as error:
                log.warning("export_refused", extra={"exporter": self.name, "why": str(error)})
                self.counters.dropped["refused"] += count
                return
            except IngeroError as error:  # the backend is busy, or a token file cannot be read
                if time.monotonic() - began_s + wait_s > self.policy.max_elapsed_s:
                    log.warning("export_gave_up", extra={"exporter": self.name, "why": str(error)})
                    self.counters.dropped["gave_up"] += count
                    return
                self.counters.retries += 1
                pause_s = wait_s * self._chance.uniform(0.5, 1.5)
                asked_s = getattr(error, "retry_after_s", None) or 0.0
                await asyncio.sleep(max(pause_s, min(asked_s, self.policy.max_s)))
                wait_s = min(wait_s * 1.5, self.policy.max_s)
            except Exception:  # a batch that fails must not block later ones
                log.exception("export_failed", extra={"exporter": self.name})
                self.counters.dropped["failed"] += count
                return
            else:
                self.counters.sent += count
                return

    @property
    def queued(self) -> int:
        """The number of requests that wait to be sent."""
        return len(self._queue)


def forward_families(forwarders: list[Forwarder]) -> list[Family]:
    """Return the metrics of every forwarding exporter, labelled with its name."""
    by_name = [((("exporter", forwarder.name),), forwarder) for forwarder in forwarders]
    return [
        counter(
            "ingero_fleet_export_sent_total",
            "Requests delivered",
            ((n, f.counters.sent) for n, f in by_name),
        ),
        counter(
            "ingero_fleet_export_retries_total",
            "Batches sent again after a failure",
            ((n, f.counters.retries) for n, f in by_name),
        ),
        counter(
            "ingero_fleet_export_rejected_items_total",
            "Items that the backend rejected",
            ((n, f.counters.rejected_items) for n, f in by_name),
        ),
        counter(
            "ingero_fleet_export_dropped_total",
            "Requests dropped, by reason",
            (
                ((*n, ("reason", reason)), count)
                for n, f in by_name
                for reason, count in sorted(f.counters.dropped.items())
            ),
        ),
        gauge("ingero_fleet_export_queue", "Requests waiting", ((n, f.queued) for n, f in by_name)),
    ]


async def _as_protobuf(kind: Kind, body: bytes) -> bytes:
    def convert() -> bytes:
        return encode_protobuf(decode(kind, body, Encoding.JSON))

    return convert() if len(body) <= INLINE_BYTES else await asyncio.to_thread(convert)


class DebugSink:
    """Logs kind, size and item count of each request, at most ten lines a second.

    The first line after a pause counts the lines that were suppressed.
    """

    def __init__(self, verbosity: str) -> None:
        self.verbosity = verbosity
        self._suppressed = 0  # since the last line
        self._second = 0
        self._lines = 0

    def offer(self, kind: Kind, body: bytes, encoding: Encoding, taken: Taken) -> None:
        """Log what arrived, but never its content."""
        second = int(time.monotonic())
        self._lines = self._lines + 1 if second == self._second else 1
        self._second = second
        if self._lines > 10:
            self._suppressed += 1
            return
        fields: dict[str, object] = {
            "kind": kind.__name__,
            "size_bytes": len(body),
            "encoding": encoding.name,
        }
        if self._suppressed:
            fields["suppressed"], self._suppressed = self._suppressed, 0
        if self.verbosity != "basic" and len(body) <= INLINE_BYTES:
            # accepted undecoded; only decoded here
            with contextlib.suppress(MalformedPush, TooLarge):
                fields["items"] = count_items(decode(kind, body, encoding))
        log.info("debug_export", extra=fields)
