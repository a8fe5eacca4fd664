"""What a step of one engine usually takes, learned from its own steps; outliers never enter it."""

import math
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final

WARM_UP: Final = 30  # samples before anything is an outlier
SMOOTHING: Final = 0.05
QUANTILE: Final = 0.95
OUTLIER: Final = 1.5  # times the 95th percentile
MAX_BASELINES: Final = 1024


@dataclass(slots=True)
class Quantile:
    """One quantile of a stream in five numbers: the P² algorithm, whose middle marker it is."""

    p: float = QUANTILE
    _heights: list[float] = field(default_factory=list)
    _places: list[int] = field(default_factory=lambda: [1, 2, 3, 4, 5])

    @property
    def value(self) -> float:
        """The estimate; NaN before five samples."""
        return self._heights[2] if len(self._heights) == 5 else math.nan

    def add(self, sample: float) -> None:
        """Take one sample."""
        heights, places = self._heights, self._places
        if len(heights) < 5:
            heights.append(sample)
            heights.sort()
            return
        heights[0], heights[4] = min(heights[0], sample), max(heights[4], sample)
        cell = next((i for i in range(3) if sample < heights[i + 1]), 3)
        for i in range(cell + 1, 5):
            places[i] += 1
        for i, share in ((1, self.p / 2), (2, self.p), (3, (1 + self.p) / 2)):
            off = 1 + (places[4] - 1) * share - places[i]
            if (off >= 1 and places[i + 1] - places[i] > 1) or (
                off <= -1 and places[i - 1] - places[i] < -1
            ):
                self._move(i, 1 if off > 0 else -1)

    def _move(self, i: int, step: int) -> None:
        heights, places = self._heights, self._places
        before, here, after = places[i - 1], places[i], places[i + 1]
        moved = heights[i] + step / (after - before) * (
            (here - before + step) * (heights[i + 1] - heights[i]) / (after - here)
            + (after - here - step) * (heights[i] - heights[i - 1]) / (here - before)
        )
        if not heights[i - 1] < moved < heights[i + 1]:
            other = i + step
            moved = heights[i] + step * (heights[other] - heights[i]) / (places[other] - here)
        heights[i] = moved
        places[i] += step


@dataclass(slots=True)
class StepBaseline:
    """Mean and 95th percentile of ordinary steps."""

    count: int = 0
    mean_s: float = math.nan
    p95: Quantile = field(default_factory=Quantile)

    def judge(self, step_s: float) -> float | None:
        """Return how many times the 95th percentile a step took, None while that is learned.

        Steps of at least `OUTLIER` times are not learned from.
        """
        ratio = step_s / self.p95.value if self.count >= WARM_UP else None
        if ratio is None or ratio < OUTLIER:
            self._learn(step_s)
        return ratio

    def _learn(self, step_s: float) -> None:
        self.count += 1
        # the weight of the first samples is corrected, so that the mean starts at the first one
        weight = SMOOTHING / (1 - (1 - SMOOTHING) ** self.count)
        self.mean_s = step_s if self.count == 1 else self.mean_s + weight * (step_s - self.mean_s)
        self.p95.add(step_s)


class Baselines:
    """Baselines by engine and size of batch; the one that was used least recently goes first."""

    def __init__(self, limit: int = MAX_BASELINES) -> None:
        self._kept: OrderedDict[Hashable, StepBaseline] = OrderedDict()
        self._limit = limit

    def __len__(self) -> int:
        return len(self._kept)

    def of(self, key: Hashable) -> StepBaseline:
        """Return the baseline of a key, a new one where it is not known."""
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = StepBaseline()
            if len(self._kept) > self._limit:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return found


def batch_bucket(batch: float) -> int:
    """Return the bucket of a batch; batches of one bucket differ by less than a third.

    A step takes longer with more requests, so that only equal batches are compared.
    """
    return round(math.log(max(batch, 1.0)) / math.log(4 / 3))
