"""Percentiles from bucket counts that the kernel keeps, without a record per call."""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

WINDOW_TICKS = 10
BUCKETS: Final = 128  # as in agent/ebpf/probes/state.h
FIRST_OCTAVE: Final = 8


def bucket_floor_ns(bucket: int) -> int:
    """Return the smallest duration that falls into a bucket.

    There are four buckets per octave; the first one starts at zero.
    """
    if bucket == 0:
        return 0
    octave, quarter = divmod(bucket, 4)
    base: int = 1 << (octave + FIRST_OCTAVE)
    return base + quarter * base // 4


FLOORS_NS: Final = np.array([bucket_floor_ns(bucket) for bucket in range(BUCKETS)], np.int64)


def bucket_durations(durations: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return the bucket of each duration, as the kernel computes it."""
    return np.searchsorted(FLOORS_NS, np.maximum(durations, 0), side="right") - 1


def histogram_percentile(
    counts: NDArray[np.int64], floors_ns: NDArray[np.int64], share: float
) -> int:
    """Return the middle of the bucket that holds the percentile; 0 without counts."""
    total = int(counts.sum())
    if not total:
        return 0
    rank = max(int(np.ceil(share * total)), 1)
    bucket = int(np.searchsorted(np.cumsum(counts), rank))
    upper = (
        int(floors_ns[bucket + 1])
        if bucket + 1 < len(floors_ns)
        else int(floors_ns[bucket]) * 5 // 4
    )
    return (int(floors_ns[bucket]) + upper) // 2


@dataclass(slots=True)
class BucketWindow:
    """Bucket counts of the last ticks, computed from cumulative counters."""

    _last: NDArray[np.int64] | None = None
    _ticks: deque[NDArray[np.int64]] = field(default_factory=lambda: deque(maxlen=WINDOW_TICKS))

    def add(self, cumulative: NDArray[np.int64]) -> NDArray[np.int64]:
        """Add a reading and return the counts since the last one; a lower counter was reset."""
        before = self._last if self._last is not None and (cumulative >= self._last).all() else 0
        fresh: NDArray[np.int64] = cumulative - before
        self._last = cumulative
        self._ticks.append(fresh)
        return fresh

    def recent(self) -> NDArray[np.int64]:
        """Return the counts of the whole window."""
        total: NDArray[np.int64] = np.sum(np.stack(list(self._ticks)), axis=0)
        return total
