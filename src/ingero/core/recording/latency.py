"""Latency of each operation: percentiles over a bounded window, exact totals over all calls."""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ingero.contract.events import OpKey
from ingero.core.recording.event_columns import EventColumns

WINDOW = 1000
ANOMALY_RATIO = 3.0
ANOMALY_MIN_COUNT = 10
MAX_SPIKES = 1000
MAX_KEYS = 4096  # (pid, source, op): beyond this the least recently used is dropped

StatKey = tuple[int, int, int]  # (pid, source, op)


def percentile(ordered: NDArray[np.int64], share: float) -> int:
    """Return the nearest-rank percentile of a sorted array; 0 if it is empty."""
    if not len(ordered):
        return 0
    rank = int(np.ceil(share * len(ordered))) - 1
    return int(ordered[min(max(rank, 0), len(ordered) - 1)])


def spike_period(positions: list[int]) -> int | None:
    """Return the number of events between spikes, if 60 % of the distances agree within 30 %.

    Consecutive slow calls are not a pattern.
    """
    if len(positions) < 3:
        return None
    distances = np.diff(np.array(positions))
    typical = int(np.sort(distances)[len(distances) // 2])
    close = np.abs(distances - typical) <= 0.3 * typical
    return typical if typical > 1 and close.mean() >= 0.6 else None


@dataclass(frozen=True, slots=True)
class SlowCalls:
    """Start and end of the slow calls of an operation."""

    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class OpSummary:
    """Statistics of an operation of one process; `pid` 0 stands for all processes together."""

    key: OpKey
    count: int
    p50_ns: int
    p99_ns: int
    p95_ns: int = 0
    min_ns: int = 0
    max_ns: int = 0
    total_ns: int = 0
    pid: int = 0
    anomalies: int = 0
    period: int | None = None
    slow: SlowCalls | None = None
    tids: frozenset[int] = frozenset()

    @property
    def tail_ratio(self) -> float:
        """The 99th percentile divided by the median."""
        return self.p99_ns / self.p50_ns if self.p50_ns else 0.0


@dataclass(slots=True)
class OpWindow:
    """The last durations of one operation, and its totals since the start."""

    size: int = WINDOW
    count: int = 0
    total_ns: int = 0
    min_ns: int = 0
    max_ns: int = 0
    anomalies: int = 0
    cached_p50_ns: int = 0
    spikes: list[int] = field(default_factory=list)
    tids: set[int] = field(default_factory=set)
    _durations: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    _starts: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    _last: OpSummary | None = None  # valid until the next call
    _period: tuple[int, int | None] = (0, None)  # number of spikes, and their period

    def add(self, durations: NDArray[np.int64], starts: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Count calls and return which of them are far above the median of the last summary."""
        self._last = None
        counts = self.count + 1 + np.arange(len(durations))
        unusual = (
            durations > ANOMALY_RATIO * self.cached_p50_ns
            if self.cached_p50_ns
            else np.zeros(len(counts), bool)
        )
        unusual &= counts > ANOMALY_MIN_COUNT
        self.anomalies += int(unusual.sum())
        room = MAX_SPIKES - len(self.spikes)
        self.spikes += [int(position) for position in counts[unusual][:room]]
        low, high = int(durations.min()), int(durations.max())
        self.min_ns = low if not self.count else min(self.min_ns, low)
        self.max_ns = max(self.max_ns, high)
        self.count += len(durations)
        self.total_ns += int(durations.sum())
        self._durations = np.concatenate([self._durations, durations])[-self.size :]
        self._starts = np.concatenate([self._starts, starts])[-self.size :]
        return unusual

    def summary(self, key: OpKey, pid: int = 0) -> OpSummary:
        """Return the current statistics; later calls are compared with this median."""
        if self._last is not None:
            return self._last
        ordered = np.sort(self._durations)
        p50, p95, p99 = (percentile(ordered, share) for share in (0.50, 0.95, 0.99))
        self.cached_p50_ns = p50
        is_slow = self._durations >= ANOMALY_RATIO * p50 if p50 else np.zeros(len(ordered), bool)
        starts = self._starts[is_slow]
        self._last = OpSummary(
            key, self.count, p50, p99, p95, self.min_ns, self.max_ns, self.total_ns, pid,
            self.anomalies, self._spike_period(),
            SlowCalls(starts, starts + self._durations[is_slow]), frozenset(self.tids),
        )  # fmt: skip
        return self._last

    def _spike_period(self) -> int | None:
        """Return the period of the spikes, computed again only where there are more of them."""
        if self._period[0] != len(self.spikes):
            self._period = len(self.spikes), spike_period(self.spikes)
        return self._period[1]


class TraceStats:
    """Windows of every process and operation; the least recently used are dropped first."""

    def __init__(self) -> None:
        self._ops: OrderedDict[StatKey, OpWindow] = OrderedDict()
        self.forgotten = 0

    def add(self, events: EventColumns) -> NDArray[np.bool_]:
        """Count a batch and return which rows are anomalies."""
        unusual = np.zeros(len(events), bool)
        if not len(events):
            return unusual
        start, _ = events.intervals()
        keys = (events.pid << 16) | events.code
        distinct = np.unique(keys)
        for key in distinct:
            rows = np.flatnonzero(keys == key) if len(distinct) > 1 else np.arange(len(keys))
            pid, source, op = int(key) >> 16, (int(key) >> 8) & 0xFF, int(key) & 0xFF
            window = self._window_of((pid, source, op))
            unusual[rows] = window.add(events.duration[rows], start[rows])
            if len(window.tids) < 256:
                window.tids.update(int(tid) for tid in np.unique(events.tid[rows]))
        return unusual

    def expect(self, medians: Mapping[StatKey, int]) -> None:
        """Set the medians with which the first calls are compared."""
        for key, median_ns in medians.items():
            self._window_of(key).cached_p50_ns = median_ns

    def _window_of(self, key: StatKey) -> OpWindow:
        window = self._ops.get(key)
        if window is None:
            window = self._ops[key] = OpWindow()
            if len(self._ops) > MAX_KEYS:
                self._ops.popitem(last=False)
                self.forgotten += 1
        self._ops.move_to_end(key)
        return window

    def summaries(self) -> list[OpSummary]:
        """Return one summary per process and operation, longest total time first."""
        found = [
            window.summary((source, op), pid) for (pid, source, op), window in self._ops.items()
        ]
        return sorted(found, key=lambda summary: -summary.total_ns)

    def __len__(self) -> int:
        return len(self._ops)


def summarise(events: EventColumns) -> list[OpSummary]:
    """Summarise a finished recording; every call is compared with the median of its operation."""
    stats = TraceStats()
    stats.add(events)
    medians = {(summary.pid, *summary.key): summary.p50_ns for summary in stats.summaries()}
    again = TraceStats()
    again.expect(medians)
    again.add(events)
    return again.summaries()
