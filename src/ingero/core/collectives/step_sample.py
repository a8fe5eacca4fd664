"""Which steps of a rank are sent whole: a share of them that all ranks choose alike.

A step is chosen by its number alone: where the fraction of number × golden ratio is below the
share. Chosen steps are spread evenly, coincide with no period of the job, and a smaller share
chooses a subset of a larger one. So ranks with different shares have the steps of the smallest
share in common. Where one step has more collectives than may be sent, a share of its places is
chosen by the same rule, and one place of every kind of collective that would be left out.

A kind is an operation and a message size. `Weights` counts every collective of a rank by kind, so
that the weights of those that are sent add up to all of them.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np

from ingero.core.collectives.columns import Floats, Ints, Mask

GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)  # 2⁶⁴ / golden ratio, odd
STEPS_PER_S: Final = 1.0  # at least so many steps are sent, even if not all of their places are
# Whole steps may be fewer: who waited for whom is known only where no place is left out.
WHOLE_PER_S: Final = 0.5
FINER: Final = 4  # shares are powers of 2^(1/4), so that ranks of one job agree on them
HYSTERESIS: Final = 0.1  # a share is replaced only where it is wrong by more
SMOOTH: Final = 0.2
MAX_KINDS: Final = 256  # of one rank; beyond, kinds of one operation are counted together
MAX_COVERED: Final = 32  # kinds of one step for which a place is added
Kind = tuple[str, int]  # operation and bytes; -1 for all other sizes


def is_chosen(numbers: Ints, share: float) -> Mask:
    """Return which numbers belong to a share of all numbers; a smaller share is a subset."""
    if share >= 1.0:
        return np.ones(len(numbers), bool)
    spread = numbers.astype(np.uint64) * GOLDEN
    return np.asarray(spread < np.uint64(min(share, 1.0) * 2.0**64), bool) & (numbers >= 0)


class StepSample:
    """The share of steps and of places that one rank sends.

    `per_s` is how many collectives may be sent per second. `steps` and `places` are the shares in
    use.
    """

    def __init__(self, per_s: float) -> None:
        self.per_s = per_s
        self.steps = self.places = 1.0
        self._span_s = math.nan
        self._length = 0  # collectives of a step

    def choose(self, step: Ints, place: Ints, kind: Ints, span_s: Floats) -> Mask:
        """Return which collectives of finished steps are sent; `span_s` are those of the steps."""
        if not len(step):
            return np.zeros(0, bool)
        self._follow(step, span_s)
        of_steps = is_chosen(step, self.steps)
        return _covered(of_steps, of_steps & is_chosen(place, self.places), place, kind)

    def _follow(self, step: Ints, span_s: Floats) -> None:
        known = span_s[np.isfinite(span_s) & (span_s > 0)]
        self._length = len(step) // len(np.unique(step))
        if not len(known):
            return
        span = float(np.median(known))
        self._span_s = span if math.isnan(self._span_s) else _moved(self._span_s, span)
        whole_per_s = self.per_s / self._length
        steps_per_s = whole_per_s if whole_per_s >= WHOLE_PER_S else STEPS_PER_S
        steps_per_s = min(1.0 / self._span_s, steps_per_s)
        self.steps = _settle(self.steps, steps_per_s * self._span_s)
        self.places = _settle(self.places, self.per_s / (steps_per_s * self._length))


class Weights:
    """How many collectives of one rank each that is sent stands for."""

    def __init__(self) -> None:
        self._codes: dict[Kind, int] = {}
        self._open: Counter[int] = Counter()  # by kind: seen and not yet stood for

    def codes(self, ops: Sequence[str], op: Ints, size_bytes: Ints) -> Ints:
        """Return the kind of each collective as a number."""
        pairs, inverse = np.unique(np.stack((op, size_bytes)), axis=1, return_inverse=True)
        known = [self._code(ops[code], size) for code, size in pairs.T.tolist()]
        return np.array(known, np.int64)[inverse.reshape(-1)] if len(op) else np.zeros(0, np.int64)

    def seen(self, kinds: Ints) -> None:
        """Count collectives, whether they will be sent or not."""
        self._open.update(dict(zip(*map(np.ndarray.tolist, _counted(kinds)), strict=True)))

    def of(self, kinds: Ints) -> Floats:
        """Return the weights of collectives that are sent now; each is at least 1."""
        weights = np.ones(len(kinds))
        for kind, count in zip(*map(np.ndarray.tolist, _counted(kinds)), strict=True):
            weight = max(self._open[kind] / count, 1.0)
            self._open[kind] -= round(weight * count)  # negative where some were ahead
            weights[kinds == kind] = weight
        return weights

    def _code(self, op: str, size: int) -> int:
        kind = (op, size)
        if kind not in self._codes and len(self._codes) >= MAX_KINDS:
            kind = (op, -1)
        return self._codes.setdefault(kind, len(self._codes))


def _counted(kinds: Ints) -> tuple[Ints, Ints]:
    values, counts = np.unique(kinds, return_counts=True)
    return values, counts


def _covered(of_steps: Mask, chosen: Mask, place: Ints, kind: Ints) -> Mask:
    """Return the choice with the first place of every kind that it leaves out."""
    missing = of_steps & ~np.isin(kind, kind[chosen])
    for left_out in np.unique(kind[missing])[:MAX_COVERED]:
        own = missing & (kind == left_out)
        chosen = chosen | (own & (place == place[own].min()))
    return chosen


def _moved(before: float, value: float) -> float:
    return before + SMOOTH * (value - before)


def _settle(share: float, wanted: float) -> float:
    """Return a power of 2^(1/4) that is at most the wanted share, with some hysteresis."""
    if wanted >= 1.0:
        return 1.0
    if share < 1.0 and wanted * (1 - HYSTERESIS) <= share <= wanted * (1 + HYSTERESIS):
        return share
    return float(2.0 ** (math.floor(FINER * math.log2(wanted)) / FINER))
