"""Clock offsets between hosts from collectives, which end at the same instant on every rank.

The median difference of exits is the offset, its Theil–Sen slope is the drift, and the remaining
spread is the error.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ingero.core.collectives.columns import Floats, Ints
from ingero.core.robust import MAD_TO_SIGMA, group_medians

MAX_PAIRS = 200_000  # pairs of points for the slope; beyond that, evenly spaced points
MIN_EXITS_FOR_DRIFT = 8
MIN_ERROR_NS = 1_000.0  # two clocks cannot be compared more exactly


@dataclass(frozen=True, slots=True)
class ClockFit:
    """How far a clock is ahead of the reference.

    The offset is `offset_ns` at `origin_ns` and changes by `drift` per nanosecond.
    """

    origin_ns: int
    offset_ns: float
    drift: float
    error_ns: float

    def to_reference(self, times_ns: Ints) -> Ints:
        """Convert times of this clock to the reference clock."""
        ahead = self.offset_ns + self.drift * (times_ns - self.origin_ns)
        corrected: Ints = times_ns - np.rint(ahead).astype(np.int64)
        return corrected


def fit_clock(reference_exit_ns: Ints, exit_ns: Ints) -> ClockFit | None:
    """Fit a clock from the exits of the same collectives on two hosts, in the same order.

    Return None without exits.
    """
    if not len(exit_ns):
        return None
    origin = int(np.median(exit_ns))
    ahead = (exit_ns - reference_exit_ns).astype(np.float64)
    drift = (
        theil_sen((exit_ns - origin).astype(np.float64), ahead)
        if len(exit_ns) >= MIN_EXITS_FOR_DRIFT
        else 0.0
    )
    level = ahead - drift * (exit_ns - origin)
    offset = float(np.median(level))
    error = MAD_TO_SIGMA * float(np.median(np.abs(level - offset)))
    return ClockFit(origin, offset, drift, max(error, MIN_ERROR_NS))


def align_clocks(
    host: NDArray[np.int32], group: NDArray[np.intp], exit_ns: Ints
) -> dict[int, ClockFit]:
    """Fit every host against the one with the most exits, directly or through hosts already fitted.

    `group` is the collective of each row. Hosts that share no collective with the others are left
    out, because their offset is unknown.
    """
    if not len(host):
        return {}
    reference = int(np.bincount(host).argmax())
    fits = {reference: ClockFit(int(np.median(exit_ns)), 0.0, 0.0, 0.0)}
    base = int(exit_ns.min())  # doubles hold differences to the nanosecond, but not Unix time
    aligned = np.where(host == reference, (exit_ns - base).astype(np.float64), np.nan)
    groups = int(group.max()) + 1
    unfitted = set(np.unique(host).tolist()) - {reference}
    while unfitted:
        known = ~np.isnan(aligned)
        shared = group_medians(group[known], aligned[known], groups)[group]
        found: dict[int, ClockFit] = {}
        for who in sorted(unfitted):
            rows = np.flatnonzero((host == who) & ~np.isnan(shared))
            fit = fit_clock(shared[rows].astype(np.int64) + base, exit_ns[rows])
            if fit is not None:
                found[who] = fit
        if not found:
            return fits
        for who, fit in found.items():
            aligned[host == who] = fit.to_reference(exit_ns[host == who]) - base
        fits |= found
        unfitted -= found.keys()
    return fits


def theil_sen(x: Floats, y: Floats) -> float:
    """Return the median slope over pairs of points; zero when x does not vary.

    Up to 29 % of the points may be wrong.
    """
    step = max(1, int(np.ceil(len(x) / np.sqrt(2 * MAX_PAIRS))))
    x, y = x[::step], y[::step]
    left, right = np.triu_indices(len(x), 1)
    run = x[right] - x[left]
    kept = run != 0
    return float(np.median((y[right] - y[left])[kept] / run[kept])) if kept.any() else 0.0
