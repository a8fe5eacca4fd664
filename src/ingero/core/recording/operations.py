"""The figures of an operation: how often it was called, how long it took.

Every command, page and tool shows the figures of this module, so that they agree. They come from
the counts of every call where a recording has them, because kept rows favour slow calls.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ingero.contract.events import FIRST_SUMMARY_OP, PAGE_ALLOC, OpKey, Source, op_name
from ingero.core.recording.latency import WINDOW, percentile

SHARES = (0.50, 0.95, 0.99)
# number of calls by the bounds of their duration: (from, to) in nanoseconds, `to` excluded
Buckets: TypeAlias = dict[tuple[int, int], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpFigures:
    """What every surface shows about an operation; a percentile of None was not measured.

    `pid` 0 stands for all processes.
    """

    key: OpKey
    pid: int = 0
    node: str = ""
    count: int
    total_ns: int
    min_ns: int
    max_ns: int
    p50_ns: int | None = None
    p95_ns: int | None = None
    p99_ns: int | None = None

    @property
    def mean_ns(self) -> float:
        return self.total_ns / self.count if self.count else 0.0


@dataclass(slots=True)
class OpTotals:
    """Totals of one operation that still grow."""

    count: int = 0
    total_ns: int = 0
    min_ns: int = 0
    max_ns: int = 0
    buckets: Buckets = field(default_factory=dict)

    def add(self, count: int, total_ns: int, min_ns: int, max_ns: int) -> None:
        """Add calls; zero calls change nothing."""
        if not count:
            return
        self.min_ns = min(self.min_ns, min_ns) if self.count else min_ns
        self.max_ns = max(self.max_ns, max_ns)
        self.count += count
        self.total_ns += total_ns

    def add_buckets(self, buckets: Mapping[tuple[int, int], int]) -> None:
        for bounds, count in buckets.items():
            self.buckets[bounds] = self.buckets.get(bounds, 0) + count

    def figures(self, key: OpKey, pid: int = 0, node: str = "") -> OpFigures:
        """Return the figures of everything added so far."""
        found = bucket_percentiles(self.buckets, self.min_ns, self.max_ns)
        p50, p95, p99 = found or (None, None, None)
        return OpFigures(
            key=key, pid=pid, node=node, count=self.count, total_ns=self.total_ns,
            min_ns=self.min_ns, max_ns=self.max_ns, p50_ns=p50, p95_ns=p95, p99_ns=p99,
        )  # fmt: skip


def is_timed(key: OpKey) -> bool:
    """Return whether the duration of this operation is a time: summaries and pages have none."""
    source, op = key
    return key != PAGE_ALLOC and not (source == Source.HOST and op >= FIRST_SUMMARY_OP)


def to_buckets(counts: NDArray[np.int64], floors_ns: NDArray[np.int64]) -> Buckets:
    """Return bucket counts with their bounds; the last bucket is a quarter as wide as its floor."""
    last = len(floors_ns) - 1
    return {
        (
            int(floors_ns[index]),
            int(floors_ns[index + 1]) if index < last else int(floors_ns[index]) * 5 // 4,
        ): int(counts[index])
        for index in np.flatnonzero(counts)
    }


def bucket_percentiles(buckets: Buckets, low_ns: int, high_ns: int) -> tuple[int, int, int] | None:
    """Return p50, p95 and p99 of bucketed calls, between the shortest and the longest call.

    Inside a bucket, calls count as evenly spread. None without calls.
    """
    if not buckets:
        return None
    bounds = sorted(buckets)
    counts = np.array([buckets[one] for one in bounds])
    ends = np.cumsum(counts)
    found = []
    for share in SHARES:
        rank = max(int(np.ceil(share * ends[-1])), 1)
        index = int(np.searchsorted(ends, rank))
        floor_ns, ceiling_ns = bounds[index]
        inside = (rank - (ends[index] - counts[index]) - 0.5) / counts[index]
        value = int(floor_ns + inside * (ceiling_ns - floor_ns))
        found.append(max(min(value, high_ns), low_ns))
    p50, p95, p99 = found
    return p50, p95, p99


def figures_of_rows(durations: NDArray[np.int64], key: OpKey, pid: int, node: str) -> OpFigures:
    """Return the figures of a recording that has only its rows, in the order of time.

    Percentiles are those of the latest calls, as other readers of such files compute them.
    """
    latest = np.sort(durations[-WINDOW:])
    p50, p95, p99 = (percentile(latest, share) for share in SHARES)
    return OpFigures(
        key=key, pid=pid, node=node, count=len(durations), total_ns=int(durations.sum()),
        min_ns=int(durations.min()), max_ns=int(durations.max()),
        p50_ns=p50, p95_ns=p95, p99_ns=p99,
    )  # fmt: skip


def most_time_first(figures: Iterable[OpFigures]) -> list[OpFigures]:
    """Sort by total time; equal totals by name of node and operation, and by process."""
    return sorted(figures, key=lambda one: (-one.total_ns, one.node, op_name(*one.key), one.pid))
