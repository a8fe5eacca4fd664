"""How long Fleet's own operations take: counts per range of time, and the last slow or failed ones.

Plain pushes are not timed here: their path is compiled, and a clock would be a good part of it.
"""

import time
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

BOUNDS_S: Final = (0.0001, 0.001, 0.01, 0.1, 1.0, 10.0)
MAX_OPERATIONS = 64
KEPT = 10  # of the slowest range, and of the failed ones, per operation


@dataclass(frozen=True, slots=True)
class Sample:
    """One operation that was slow or failed."""

    at_unix_s: float
    took_s: float
    outcome: str


@dataclass(slots=True)
class Operation:
    """The times of one kind of operation since the start of Fleet."""

    running: int = 0
    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    failed: int = 0
    slowest: list[Sample] = field(default_factory=list)
    failures: deque[Sample] = field(default_factory=lambda: deque(maxlen=KEPT))

    def add(self, sample: Sample, *, is_failed: bool) -> None:
        """Count one that has ended."""
        self.counts[bisect_right(BOUNDS_S, sample.took_s)] += 1
        if is_failed:
            self.failed += 1
            self.failures.append(sample)
        if len(self.slowest) < KEPT or sample.took_s > self.slowest[-1].took_s:
            self.slowest.append(sample)
            self.slowest.sort(key=lambda each: -each.took_s)
            del self.slowest[KEPT:]


class Operations:
    """All operations by name. The number of names is bounded; those beyond it count as `other`."""

    def __init__(self) -> None:
        self.by_name: dict[str, Operation] = {}

    @contextmanager
    def measured(self, name: str) -> Iterator[list[str]]:
        """Time a block. An exception, or a word that the block adds to the list, is a failure."""
        operation = self._operation(name)
        operation.running += 1
        failed: list[str] = []
        began_s = time.perf_counter()
        try:
            yield failed
        except BaseException as error:
            failed.append(type(error).__name__)
            raise
        finally:
            operation.running -= 1
            took_s = time.perf_counter() - began_s
            outcome = failed[0] if failed else "ok"
            operation.add(Sample(time.time(), took_s, outcome), is_failed=bool(failed))

    def _operation(self, name: str) -> Operation:
        if name not in self.by_name and len(self.by_name) >= MAX_OPERATIONS:
            name = "other"
        return self.by_name.setdefault(name, Operation())


class Timed:
    """An ASGI application whose requests are timed by listener and method.

    Paths are no part of the name: callers choose them, and streams never end.
    """

    def __init__(self, app: ASGIApp, operations: Operations, listener: str) -> None:
        self._app, self._operations, self._listener = app, operations, listener

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        method = scope["method"] if scope["method"] in ("GET", "POST") else "other method"
        with self._operations.measured(f"{self._listener} {method}") as failed:

            async def noted(message: Message) -> None:
                if message["type"] == "http.response.start" and message["status"] >= 400:
                    failed.append(f"HTTP {message['status']}")
                await send(message)

            await self._app(scope, receive, noted)
