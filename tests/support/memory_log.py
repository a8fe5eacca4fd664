"""A cluster log in this process, for a Fleet of several replicas in one test."""

import asyncio
import bisect
from collections.abc import Callable, Sequence

from ingero.errors import Unavailable
from ingero.transport.cluster_log.port import (
    BEGINNING,
    PAUSED_S,
    RESUME_S,
    RETAINED_S,
    SLOWED,
    Appended,
    Snapshot,
)


class MemoryLog:
    """Shared by the replicas that use it; `clock` returns Unix time, `is_away` makes it fail.

    `skew_s` is how far the clock of the engine is ahead.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.entries: list[Appended] = []
        self.is_away = False
        self.skew_s = 0.0
        self._number = self._last_ms = self._engine_ms = self._order = 0
        self._ticked = self._resumes = 0
        self._snapshot: Snapshot | None = None
        self._more = asyncio.Event()

    async def append(self, bodies: Sequence[bytes], tick: bytes | None) -> float:
        """As `ClusterLog.append`."""
        self._reach()
        engine_ms = int((self._clock() + self.skew_s) * 1e3)
        now_s = self._now_ms(engine_ms) / 1e3
        entries = [*bodies, *([tick] if tick is not None and self._is_due(int(now_s)) else ())]
        for body in entries:
            self._add(now_s, body)
        if entries:
            self._engine_ms = engine_ms
        oldest = bisect.bisect_left(self.entries, now_s - RETAINED_S, key=lambda each: each.at_s)
        del self.entries[:oldest]
        self._more.set()
        self._more = asyncio.Event()
        return now_s

    async def read_after(self, position: str, wait_s: float) -> list[Appended]:
        """As `ClusterLog.read_after`."""
        self._reach()
        found = self._after(position)
        if not found and wait_s:
            more = self._more
            try:
                async with asyncio.timeout(wait_s):
                    await more.wait()
            except TimeoutError:
                return []
            self._reach()
            found = self._after(position)
        return found

    async def put_snapshot(self, snapshot: Snapshot) -> None:
        """As `ClusterLog.put_snapshot`."""
        self._reach()
        self._snapshot = snapshot

    async def get_snapshot(self) -> Snapshot | None:
        """As `ClusterLog.get_snapshot`."""
        self._reach()
        return self._snapshot

    async def close(self) -> None:
        """As `ClusterLog.close`; other replicas may go on."""

    def _reach(self) -> None:
        if self.is_away:
            raise Unavailable("the cluster log is away")

    def _after(self, position: str) -> list[Appended]:
        if position == BEGINNING:
            return self.entries[:128]
        key = _order_of(position)
        first = bisect.bisect_right(self.entries, key, key=lambda each: _order_of(each.position))
        return self.entries[first : first + 128]

    def _is_due(self, second: int) -> bool:
        """Tell whether a tick is due; the same rule as the script for Valkey."""
        if second <= self._ticked:
            return False
        if second - self._ticked > PAUSED_S:
            self._resumes = self._resumes or second + RESUME_S
            if second < self._resumes:
                return False
        self._ticked, self._resumes = second, 0
        return True

    def _now_ms(self, engine_ms: int) -> int:
        """Return the time of the log, which goes on where the engine's steps back."""
        if self._last_ms <= engine_ms:
            return engine_ms
        return self._last_ms + int(max(engine_ms - self._engine_ms, 0) * SLOWED)

    def _add(self, now_s: float, body: bytes) -> None:
        ms = round(now_s * 1e3)
        self._order = self._order + 1 if ms == self._last_ms else 0
        self._last_ms, self._number = ms, self._number + 1
        self.entries.append(Appended(f"{ms}-{self._order}", self._number, ms / 1e3, body))


def _order_of(position: str) -> tuple[int, int]:
    ms, _, order = position.partition("-")
    return int(ms), int(order)
