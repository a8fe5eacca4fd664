"""Clock offsets between hosts for free: a synchronising collective ends at the same instant on every rank.

The median difference of exits is the offset, its Theil–Sen slope the drift, what is left over the error bar.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ingero.core.collectives.columns import Floats, Ints
from ingero.core.robust import MAD_TO_SIGMA, group_medians

MAX_PAIRS = 200_000  # of points for the slope; beyond, evenly spaced points stand for all
MIN_EXITS_FOR_DRIFT = 8
MIN_ERROR_NS = 1_000.0  # no reading of two clocks is worth more


@dataclass(frozen=True, slots=True)
class ClockFit:
    """How far a clock runs ahead of the reference: `offset_ns` at `origin_ns`, changing by `drift` per nanosecond."""

    origin_ns: int
    offset_ns: float
    drift: float
    error_ns: float

    def to_reference(self, times_ns: Ints) -> Ints:
        """Times of this clock as the reference clock would have read them."""
        ahead = self.offset_ns + self.drift * (times_ns - self.origin_ns)
        corrected: Ints = times_ns - np.rint(ahead).astype(np.int64)
        return corrected


def fit_clock(reference_exit_ns: Ints, exit_ns: Ints) -> ClockFit | None:
    """Fit over the exits of the same collectives on two hosts, in the same order; None without any."""
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

    `group` says which rows are the same collective. Hosts that share no collective with the rest are left out: their
    offset is unknown, not zero.
    """
    if not len(host):
        return {}
    reference = int(np.bincount(host).argmax())
    fits = {reference: ClockFit(int(np.median(exit_ns)), 0.0, 0.0, 0.0)}
    base = int(exit_ns.min())  # doubles hold differences to the nanosecond, but not Unix time
    aligned = np.where(host == reference, (exit_ns - base).astype(np.float64), np.nan)
    groups = int(group.max()) + 1
    waiting = set(np.unique(host).tolist()) - {reference}
    while waiting:
        known = ~np.isnan(aligned)
        shared = group_medians(group[known], aligned[known], groups)[group]
        found: dict[int, ClockFit] = {}
        for who in sorted(waiting):
            rows = np.flatnonzero((host == who) & ~np.isnan(shared))
            fit = fit_clock(shared[rows].astype(np.int64) + base, exit_ns[rows])
            if fit is not None:
                found[who] = fit
        if not found:
            return fits
        for who, fit in found.items():
            aligned[host == who] = fit.to_reference(exit_ns[host == who]) - base
        fits |= found
        waiting -= found.keys()
    return fits


def theil_sen(x: Floats, y: Floats) -> float:
    """Median slope over pairs of points: up to 29 % of them may be wrong. Zero when x does not vary."""
    step = max(1, int(np.ceil(len(x) / np.sqrt(2 * MAX_PAIRS))))
    x, y = x[::step], y[::step]
    left, right = np.triu_indices(len(x), 1)
    run = x[right] - x[left]
    kept = run != 0
    return float(np.median((y[right] - y[left])[kept] / run[kept])) if kept.any() else 0.0
