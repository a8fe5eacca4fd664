"""Peer lag and lateness of each rank in a collective.

*Peer lag* is the published figure: the rank's own duration minus the median of its peers. The late
rank waits least, so its peer lag is the lowest. *Lateness* is our own figure: positive means that
the rank came late. Where the GPU timed the operation, lateness is the longest duration minus the
rank's own, each measured on its own clock. Otherwise it is the rank's entry minus the earliest
entry on aligned clocks, with the error of that alignment beside it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ingero.contract.collective import POINT_TO_POINT_OPS
from ingero.core.clocks.offsets import ClockFit
from ingero.core.collectives.columns import Collectives, Floats, Ints, Mask
from ingero.core.collectives.matching import Groups, count_ranks, find_whole_groups
from ingero.core.robust import group_medians

SYNCHRONISING_OPS = (
    frozenset({"AllReduce", "AllGather", "ReduceScatter", "AllToAll"}) | POINT_TO_POINT_OPS
)
GPU_TIMER_MS = 0.001  # the GPU's global timer ticks at up to one microsecond


@dataclass(frozen=True, slots=True)
class PeerLag:
    """One row per record.

    Lateness is NaN where it is unknown, and not significant below `error_ms`.
    """

    peer_lag_ms: Floats
    lateness_ms: Floats
    error_ms: Floats
    transfer_ms: Floats
    present: NDArray[np.int32]
    is_quorate: Mask

    @property
    def shown_lateness_ms(self) -> Floats:
        """Lateness above its error, zero where it is not significant, NaN where it is unknown."""
        shown = np.where(self.lateness_ms > self.error_ms, self.lateness_ms, self.lateness_ms * 0.0)
        return np.where(np.isinf(self.error_ms), np.nan, shown)


def measure_lag(
    collectives: Collectives, groups: Groups, clocks: Mapping[int, ClockFit] | None = None
) -> PeerLag:
    """Return peer lag and lateness of each row within its group.

    `clocks` maps recorders to their fitted clocks; None means that all rows come from one clock.
    """
    duration = np.maximum(collectives.duration_ns, 0)  # negative after a clock was set back
    size = int(groups.max(initial=-1)) + 1
    rows, whole = find_whole_groups(collectives, groups, size)
    present = rows if whole.all() else count_ranks(collectives, groups, size)
    median, longest, shortest = _duration_stats(collectives, groups, duration, rows, whole)
    needed = _quorum(collectives.nranks)
    quorate = present[groups] >= needed
    lag = np.where(quorate, (duration - median[groups]) / 1e6, np.nan)
    synchronising = collectives.has_op(SYNCHRONISING_OPS)
    all_gpu = (np.bincount(groups, collectives.is_gpu_timed, size) == rows)[groups]
    clock_free = quorate & synchronising & all_gpu
    lateness = np.where(clock_free, (longest[groups] - duration) / 1e6, np.nan)
    error = np.where(clock_free, GPU_TIMER_MS, np.nan)
    by_entry = quorate & ~clock_free
    if by_entry.any():
        entry, entry_error = _aligned_entries(collectives, clocks)
        first, _ = _extremes(groups, -entry, size)
        worst, _ = _extremes(groups, entry_error, size)
        lateness = np.where(by_entry, (entry + first[groups]) / 1e6, lateness)
        error = np.where(by_entry, worst[groups] / 1e6, error)
    transfer = np.where(quorate & synchronising, shortest[groups] / 1e6, np.nan)
    return PeerLag(lag, lateness, error, transfer, present[groups].astype(np.int32), quorate)


def _duration_stats(
    collectives: Collectives, groups: Groups, duration: Ints, counts: NDArray[np.intp], whole: Mask
) -> tuple[Floats, Floats, Floats]:
    """Return the median, longest and shortest duration of each group.

    Whole groups become rows of a matrix, which is faster than one sort over all rows.
    """
    median, longest, shortest = (np.zeros(len(counts)) for _ in range(3))
    for width in np.unique(counts[whole]).tolist():
        chosen = whole & (counts == width)
        place = np.cumsum(chosen) - 1
        rows = slice(None) if chosen.all() else np.flatnonzero(chosen[groups])
        cells = np.empty((int(place[-1]) + 1) * width, np.int64)
        cells[place[groups[rows]] * width + collectives.rank[rows]] = duration[rows]
        ordered = np.sort(cells.reshape(-1, width), axis=1)
        shortest[chosen], longest[chosen] = ordered[:, 0], ordered[:, -1]
        median[chosen] = (ordered[:, (width - 1) // 2] + ordered[:, width // 2]) / 2
    rest = np.flatnonzero(~whole[groups])
    if len(rest):
        code = np.cumsum(~whole) - 1
        few = int(code[-1]) + 1
        median[~whole] = group_medians(code[groups[rest]], duration[rest], few)
        longest[~whole], shortest[~whole] = _extremes(
            code[groups[rest]], duration[rest].astype(np.float64), few
        )
    return median, longest, shortest


def _quorum(nranks: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the quorum: at least three and half of the ranks, but no more than there are."""
    return np.minimum(nranks, np.maximum(3, (nranks + 1) // 2))


def _aligned_entries(
    collectives: Collectives, clocks: Mapping[int, ClockFit] | None
) -> tuple[Floats, Floats]:
    """Return entries on the reference clock and their error, infinite for a clock without a fit.

    Without `clocks` the caller states that all rows come from one clock; the error is then zero.
    """
    entry = collectives.entry_ns - collectives.entry_ns.min()
    if clocks is None:
        return entry.astype(np.float64), np.zeros(len(entry))
    aligned, error = entry.astype(np.float64), np.full(len(entry), np.inf)
    for who, fit in clocks.items():
        rows = collectives.who == who
        aligned[rows] = fit.to_reference(collectives.entry_ns[rows]) - collectives.entry_ns.min()
        error[rows] = fit.error_ns
    return aligned, error


def _extremes(groups: Groups, values: Floats, size: int) -> tuple[Floats, Floats]:
    highest, lowest = np.full(size, -np.inf), np.full(size, np.inf)
    np.maximum.at(highest, groups, values)
    np.minimum.at(lowest, groups, values)
    return highest, lowest
