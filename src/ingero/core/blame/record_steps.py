"""Own time per rank and step from collective records, with the steps of all ranks aligned.

Steps come from the grid of the job. Where the end of an operation is known on the GPU's
clock, own time is the gap between operations. Where only durations are known, own time is the
length of the step minus the time inside collectives. That length is the same for all ranks, so
differences between ranks are exact even then.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ingero.core.blame.recorded.grid import RecordGrid, build_grid
from ingero.core.blame.recorded.parts import join_parts
from ingero.core.blame.roles import find_roles
from ingero.core.blame.suspects import WorkerSteps
from ingero.core.collectives.arrivals import measure_arrivals
from ingero.core.collectives.columns import Collectives, Floats, Ints
from ingero.core.collectives.matching import match_collectives
from ingero.core.collectives.own_time import own_segments
from ingero.core.collectives.step_kinds import LIGHT_BYTES
from ingero.core.robust import nan_median

MIN_OWN_SHARE = 0.1  # of a step: the least own time, also where collectives overlap compute
MOST = (0.1, 0.9)  # quantiles between which the differences of neighbouring steps lie
STEADIER = 0.5  # of the scatter of steps by their last call: then another call times them


@dataclass(frozen=True, slots=True)
class RecordSteps:
    """Own times of all workers, and the step of each record.

    `row_step` is the column of a record in `workers`, or -1; `row_place` its place in the step.
    `flag_step` is the column of the step that follows a flag: a light call outside the pattern.
    """

    workers: WorkerSteps
    ranks: tuple[int, ...]
    row_step: NDArray[np.intp]
    row_place: NDArray[np.intp]
    waiting_s: Floats
    flag_step: NDArray[np.intp]


def measure_steps(collectives: Collectives, exact_ends: bool) -> RecordSteps:
    """Return the own time of each rank in each step.

    `exact_ends` says that end times are the GPU's, not a poll's.
    """
    ranks = tuple(int(w) for w in np.unique(collectives.who))
    cohort = find_roles(collectives, ranks)
    groups = match_collectives(collectives)
    grid = build_grid(collectives, groups, ranks, cohort)
    times = _measure(collectives, grid, ranks, exact_ends)
    if exact_ends:
        late_s = measure_arrivals(collectives, groups).start_late_s
        joined = join_parts(collectives, grid, times.steady_s, late_s, times.flag_step, ranks)
        if joined is not grid:
            grid, times = joined, _measure(collectives, joined, ranks, exact_ends)
    own, whole, period = times.own_s, times.whole, times.period_s
    # Steps that at least half of the ranks recorded completely.
    kept = (whole.sum(axis=0) * 2 >= max(1, whole.any(axis=1).sum())) & np.isfinite(period)
    remap = np.append(np.where(kept, np.cumsum(kept) - 1, -1), -1)
    matrix = WorkerSteps(own[:, kept], period[kept], cohort, tuple(np.flatnonzero(kept).tolist()))
    waiting = np.where(whole, times.inside_s, np.nan)[:, kept]
    return RecordSteps(matrix, ranks, remap[grid.step], grid.place, waiting, remap[times.flag_step])


@dataclass(frozen=True, slots=True)
class _Times:
    """What is measured of each step, as [rank, step]; `flag_step` is of each row.

    `steady_s` is the length of each step by the calls that scatter least.
    """

    own_s: Floats
    inside_s: Floats
    whole: NDArray[np.bool_]
    period_s: Floats
    steady_s: Floats
    flag_step: NDArray[np.intp]


def _measure(
    collectives: Collectives, grid: RecordGrid, ranks: tuple[int, ...], exact_ends: bool
) -> _Times:
    shape = grid.whole.shape
    own, length, steady, inside = (np.full(shape, np.nan) for _ in range(4))
    segments = own_segments(collectives)
    own_of = np.full(len(collectives), np.nan)
    own_of[segments.row] = segments.own_s
    flag = _flag_steps(collectives, grid.step)
    clock = collectives.end_ns if exact_ends else collectives.start_ns
    for i, code in enumerate(ranks):
        rows = np.flatnonzero((collectives.who == code) & (grid.step >= 0))
        column = grid.step[rows]
        inside[i] = _sums(collectives.duration_ns[rows] / 1e9, column, shape[1])
        flags = np.flatnonzero((collectives.who == code) & (flag >= 0))
        before = np.bincount(flag[flags], np.nan_to_num(own_of[flags]), shape[1])
        own[i] = _sums(own_of[rows], column, shape[1]) + before
        ends = np.full((grid.length(i), shape[1]), np.nan)
        ends[grid.place[rows], column] = (clock[rows] - clock.min()) / 1e9
        length[i, 1:], steady[i, 1:] = _steadiest(np.diff(ends, axis=1), grid.last[i])
    whole = np.isfinite(length) & grid.whole
    period, usual = (
        nan_median(np.where(whole, each, np.nan), 0) if shape[1] else np.empty(0)
        for each in (length, steady)
    )
    if not exact_ends:
        own = _own_by_waiting(inside, np.nan_to_num(period), whole)
    own = np.maximum(own, MIN_OWN_SHARE * _typical(period))
    return _Times(np.where(whole, own, np.nan), inside, whole, period, usual, flag)


def _steadiest(lengths: Floats, last: int) -> tuple[Floats, Floats]:
    """Return the lengths of the steps at the last place, or where they scatter far less.

    The second result is always where they scatter least.

    Calls that need no compute, such as gathers ahead of it, follow a host that runs ahead.
    """
    counted = np.isfinite(np.diff(lengths, axis=1)).sum(axis=1)
    scatter = np.full(len(lengths), np.inf)
    for place in np.flatnonzero(counted >= max(1, counted[last])).tolist():
        low, high = np.nanquantile(np.diff(lengths[place]), MOST)
        scatter[place] = high - low
    best = int(scatter.argmin())
    return lengths[best if scatter[best] < STEADIER * scatter[last] else last], lengths[best]


def _flag_steps(collectives: Collectives, step: Ints) -> NDArray[np.intp]:
    """Return the step that follows each light call outside the pattern of its rank, else -1.

    Ranks that check a flag before a step meet there first: who comes late to it is late.
    """
    result = np.full(len(step), -1, np.intp)
    order = np.lexsort((collectives.start_ns, collectives.who))
    size = len(order)
    if not size:
        return result
    who, of_step = collectives.who[order], step[order]
    following = np.where(of_step >= 0, np.arange(size), size)
    following = np.minimum.accumulate(following[::-1])[::-1]
    at = np.minimum(following, size - 1)
    is_flag = (of_step < 0) & (following < size) & (who[at] == who)
    is_flag &= collectives.size_bytes[order] <= LIGHT_BYTES
    result[order[is_flag]] = of_step[at[is_flag]]
    return result


def _typical(period: Floats) -> float:
    known = period[np.isfinite(period)]
    return _mean_without_extremes(known) if len(known) else 0.0


def _own_by_waiting(inside: Floats, period: Floats, whole: NDArray[np.bool_]) -> Floats:
    """Return own times from durations: the rank that waits longest has the typical own time.

    Enqueue times give only the mean length of a step, because hosts run ahead of their GPUs by
    varying amounts.
    """
    known = whole.any(axis=0)
    longest = np.where(whole, inside, 0.0).max(axis=0, initial=0.0)
    if not known.any():
        return np.full_like(inside, np.nan)
    length = _mean_without_extremes(period[known])
    typical = max(length - _mean_without_extremes(longest[known]), MIN_OWN_SHARE * length)
    own: Floats = typical + longest - inside
    return own


def _mean_without_extremes(values: Floats) -> float:
    """Return the mean with the largest two percent clipped: the first steps of a job are slow."""
    return float(np.minimum(values, np.quantile(values, 0.98)).mean())


def _sums(values: Floats, column: NDArray[np.intp], size: int) -> Floats:
    inside = column >= 0
    total = np.bincount(column[inside], np.nan_to_num(values[inside]), size).astype(np.float64)
    broken = np.bincount(column[inside], np.isnan(values[inside]), size) > 0
    return np.where(broken, np.nan, total)
