"""The heartbeat of an engine: for how long it has made no step although requests wait for one.

An engine without requests is idle, and never stalled. How long a step may take is learned: an
engine with steps of four seconds is not stalled after five. Where a page counts nothing before a
request ends, it takes a minute at least, and three times as long as its requests take.
"""

import math
from dataclasses import dataclass
from typing import Final

from ingero.core.inference.metric_table import PROGRESS, STEP_BEATS, Value
from ingero.core.inference.page import EnginePage, Values

STALL_AFTER_S: Final = 5.0
FIRST_STEP_S: Final = 60.0  # a first request may compile kernels
GAPS: Final = 3.0  # times the longest gap between two steps of late
LONGEST_LIMIT_S: Final = 60.0
KEPT: Final = 0.993  # of the longest gap, with every later one: half is forgotten after 100


@dataclass(slots=True)
class Heartbeat:
    """The steps of one rank of an engine, as seen page by page."""

    stall_after_s: float = STALL_AFTER_S
    since_s: float = math.nan  # the last step, or the last moment without requests
    longest_gap_s: float = 0.0
    has_stepped: bool = False
    is_busy: bool = False
    request_s: float | None = None  # mean of a request, where the page counts no steps
    _progress: tuple[float, ...] = ()

    @property
    def limit_s(self) -> float:
        """How long a busy engine may go without a step."""
        if self.request_s is not None:
            return max(self.stall_after_s, FIRST_STEP_S, GAPS * self.request_s)
        if not self.has_stepped:
            return max(self.stall_after_s, FIRST_STEP_S)
        return max(self.stall_after_s, min(GAPS * self.longest_gap_s, LONGEST_LIMIT_S))

    def see(self, values: Values, now_s: float) -> float | None:
        """Take a page; return how long the engine has been stalled, or None."""
        self.request_s = None if counts_steps(values) else _request_s(values)
        progress = tuple(values.get(name, 0.0) for name in PROGRESS)
        has_moved = bool(self._progress) and progress != self._progress
        if has_moved or any(progress):
            self.has_stepped = True
        if has_moved and self.is_busy:
            gap_s = now_s - self.since_s
            if gap_s < self.limit_s:  # a stall is no example of an ordinary gap
                self.longest_gap_s = max(KEPT * self.longest_gap_s, gap_s)
        self._progress = progress
        was_busy, self.is_busy = self.is_busy, requests_of(values) > 0
        if has_moved or not (was_busy and self.is_busy):
            self.since_s = now_s
        return self.stalled_for(now_s)

    def stalled_for(self, now_s: float) -> float | None:
        """Return how long the engine has been stalled; also while its page does not answer."""
        waited_s = now_s - self.since_s
        return waited_s if self.is_busy and waited_s >= self.limit_s else None


def requests_of(values: Values) -> float:
    """Return the requests that an engine has, running, waiting or paused."""
    return sum(values.get(name, 0.0) for name in (Value.RUNNING, Value.WAITING, Value.PAUSED))


def counts_steps(values: Values) -> bool:
    """Return whether a page shows each step, not only requests that ended."""
    return any(name in values for name in STEP_BEATS)


def _request_s(values: Values) -> float:
    """Return how long a request takes; without end where none has ended yet."""
    count = values.get(Value.REQUEST_COUNT)
    return values.get(Value.REQUEST_SUM, math.inf) / count if count else math.inf


def without_step(before: EnginePage, after: EnginePage) -> list[int | None]:
    """Return the ranks that had and have requests, and made no step between two pages.

    A rank that counts no steps may have made some.
    """
    found = []
    for rank, values in after.ranks.items():
        earlier = before.ranks.get(rank)
        is_busy = requests_of(values) > 0 and earlier is not None and requests_of(earlier) > 0
        if is_busy and earlier is not None and counts_steps(values):
            has_moved = any(values.get(name) != earlier.get(name) for name in PROGRESS)
            found += [] if has_moved else [rank]
    return found
