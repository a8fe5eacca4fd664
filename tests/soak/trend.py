"""Does a measure of a process keep rising? Theil-Sen slopes with an interval.

Samples are first reduced to one median per minute. A minute holds exactly one fault, so that the
medians are about equally disturbed, and nearly independent of each other, as the interval assumes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import combinations
from statistics import median

MINUTE_S = 60.0
LIMIT = 0.02  # of the level, in ten minutes
SPAN_MINUTES = 10.0
FEWEST_BINS = 8
Z = 1.96  # two-sided 95 %


class Finding(Enum):
    """What a series shows."""

    STEADY = "steady"
    RISING = "RISING"
    UNCLEAR = "unclear"  # steeper than the limit, but no more than chance may do
    TOO_SHORT = "too short to tell"


@dataclass(frozen=True, slots=True)
class Trend:
    """Change of a measure in ten minutes, as a share of its level, with an interval of 95 %."""

    slope: float
    low: float
    high: float
    bins: int

    @property
    def finding(self) -> Finding:
        """Rising means: steeper than the limit, and certainly more than not at all."""
        if self.bins < FEWEST_BINS:
            return Finding.TOO_SHORT
        if self.slope <= LIMIT:
            return Finding.STEADY
        return Finding.RISING if self.low > 0 else Finding.UNCLEAR


def trend_of(times_s: Sequence[float], values: Sequence[float], bin_s: float = MINUTE_S) -> Trend:
    """Return the trend of samples in order of time."""
    minutes = medians_by_bin(times_s, values, bin_s)
    if len(minutes) < 2:
        return Trend(0.0, 0.0, 0.0, len(minutes))
    slope, low, high = theil_sen([float(minute) for minute, _ in minutes], [v for _, v in minutes])
    level = median(value for _, value in minutes)
    share = SPAN_MINUTES * MINUTE_S / bin_s / level if level else 0.0
    return Trend(slope * share, low * share, high * share, len(minutes))


def medians_by_bin(
    times_s: Sequence[float], values: Sequence[float], bin_s: float = MINUTE_S
) -> list[tuple[int, float]]:
    """Return the number of each bin that has samples, with their median."""
    bins: dict[int, list[float]] = {}
    for at_s, value in zip(times_s, values, strict=True):
        bins.setdefault(int(at_s // bin_s), []).append(value)
    return [(number, median(bins[number])) for number in sorted(bins)]


def theil_sen(x: Sequence[float], y: Sequence[float]) -> tuple[float, float, float]:
    """Return the median slope of all pairs of points, and the bounds of Sen's 95 % interval."""
    slopes = sorted((y[j] - y[i]) / (x[j] - x[i]) for i, j in combinations(range(len(x)), 2))
    pairs = len(slopes)
    spread = Z * math.sqrt(_variance_of_kendall(y))
    low = max(0, math.floor((pairs - spread) / 2) - 1)
    high = min(pairs - 1, math.ceil((pairs + spread) / 2))
    return median(slopes), slopes[low], slopes[high]


def _variance_of_kendall(y: Sequence[float]) -> float:
    """Return the variance of Kendall's S without a trend, for values with ties."""
    n = len(y)
    ties = [list(y).count(value) for value in set(y)]
    tied = sum(count * (count - 1) * (2 * count + 5) for count in ties)
    return (n * (n - 1) * (2 * n + 5) - tied) / 18
