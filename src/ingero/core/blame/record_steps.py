"""Own time per rank and step from collective records, with the steps of all ranks aligned.

A step ends with the pacer of a rank: the collective it calls least often. Steps of different ranks
are aligned by the sequence number of the pacer. Where the end of an operation is known on the GPU's
clock, own time is the gap between operations. Where only durations are known, own time is the
length of the step minus the time inside collectives. That length is the same for all ranks, so
differences between ranks are exact even then.
"""

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ingero.contract.collective import POINT_TO_POINT_OPS
from ingero.core.blame.roles import find_roles
from ingero.core.blame.suspects import WorkerSteps
from ingero.core.collectives.columns import Collectives, Floats, Ints
from ingero.core.collectives.own_time import own_segments

MIN_OWN_SHARE = 0.1  # of a step: the least own time, also where collectives overlap compute
REGULAR_SHARE = 0.6  # of a rank's steps must have equally many records, or none is incomplete

Cell = tuple[NDArray[np.intp], Ints, NDArray[np.bool_]]


@dataclass(frozen=True, slots=True)
class RecordSteps:
    """Own times of all workers, and the step of each record.

    `row_step` is the column of a record in `workers`, or -1; `row_place` its place in the step.
    """

    workers: WorkerSteps
    ranks: tuple[int, ...]
    row_step: NDArray[np.intp]
    row_place: NDArray[np.intp]
    waiting_s: Floats


def measure_steps(collectives: Collectives, exact_ends: bool) -> RecordSteps:
    """Return the own time of each rank in each step.

    `exact_ends` says that end times are the GPU's, not a poll's.
    """
    ranks = tuple(int(w) for w in np.unique(collectives.who))
    cohort = find_roles(collectives, ranks)
    cells = _cells(collectives, ranks, cohort, exact_ends)
    numbers = (
        np.unique(np.concatenate([step[step >= 0] for _, step, _ in cells]))
        if cells
        else np.empty(0, np.int64)
    )
    shape = (len(ranks), len(numbers))
    own, length, inside = (np.full(shape, np.nan) for _ in range(3))
    segments = own_segments(collectives)
    own_of = np.full(len(collectives), np.nan)
    own_of[segments.row] = segments.own_s
    row_step, row_place = (
        np.full(len(collectives), -1, np.intp),
        np.zeros(len(collectives), np.intp),
    )
    for i, (rows, step, is_pacer) in enumerate(cells):
        column = np.where(step >= 0, np.searchsorted(numbers, step), -1)
        row_step[rows] = column
        inside[i] = _sums(collectives.duration_ns[rows] / 1e9, column, len(numbers))
        own[i] = _sums(own_of[rows], column, len(numbers))
        row_place[rows] = _places(column)
        clock = (collectives.end_ns if exact_ends else collectives.start_ns)[rows][is_pacer]
        length[i, column[is_pacer][1:]] = np.diff(clock) / 1e9
    whole = np.isfinite(length) & _complete(cells, numbers, shape)
    with np.errstate(all="ignore"):
        period = (
            np.nanmedian(np.where(whole.any(axis=0), length, 0.0), axis=0) if ranks else np.empty(0)
        )
    if not exact_ends:
        own = _own_by_waiting(inside, period, whole)
    own = np.maximum(own, MIN_OWN_SHARE * _mean_without_extremes(period) if len(period) else 0.0)
    own = np.where(whole, own, np.nan)
    # Steps that at least half of the ranks recorded completely.
    kept = whole.sum(axis=0) * 2 >= max(1, whole.any(axis=1).sum())
    remap = np.where(kept, np.cumsum(kept) - 1, -1)
    row_step = np.where(row_step >= 0, remap[row_step], -1) if len(remap) else row_step
    steps = tuple(int(n) for n in numbers[kept])
    matrix = WorkerSteps(own[:, kept], period[kept], cohort, steps)
    return RecordSteps(matrix, ranks, row_step, row_place, np.where(whole, inside, np.nan)[:, kept])


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


def _places(column: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the place of each row in its step."""
    if not len(column):
        return column
    begins = np.flatnonzero(np.r_[True, np.diff(column) != 0])
    return np.arange(len(column)) - np.repeat(begins, np.diff(np.r_[begins, len(column)]))


def _cells(
    collectives: Collectives, ranks: tuple[int, ...], cohort: NDArray[np.intp], exact_ends: bool
) -> list[Cell]:
    """Return for each rank its rows in time order, the step of each, and which rows end a step."""
    clock = collectives.entry_ns if exact_ends else collectives.start_ns
    order = np.lexsort((collectives.seq, clock, collectives.who))
    bounds = np.searchsorted(collectives.who[order], [*ranks, np.iinfo(np.int32).max])
    is_edge = np.isin(
        collectives.op, [i for i, op in enumerate(collectives.ops) if op in POINT_TO_POINT_OPS]
    )
    found = [order[begin:stop] for begin, stop in itertools.pairwise(bounds)]
    pacers = _agreed(
        collectives, found, [_pacer(collectives, rows, is_edge[rows]) for rows in found], cohort
    )
    cells = []
    for rows, pacer in zip(found, pacers, strict=True):
        sequence = collectives.seq[rows]
        marks = np.flatnonzero(pacer)
        at = np.searchsorted(marks, np.arange(len(rows)))  # the next pacer, or the row itself
        numbered = (
            sequence[marks]
            if len(marks) and (sequence[marks] >= 0).all()
            else np.arange(len(marks))
        )
        numbered = numbered if len(np.unique(numbered)) == len(marks) else np.arange(len(marks))
        step = (
            np.where(at < len(marks), numbered[np.minimum(at, len(marks) - 1)], -1)
            if len(marks)
            else np.full(len(rows), -1)
        )
        cells.append((rows, step.astype(np.int64), pacer))
    return cells


def _complete(cells: list[Cell], numbers: Ints, shape: tuple[int, int]) -> NDArray[np.bool_]:
    """Tell which cells have as many records as most of their rank's.

    Where a record was lost, its time would count as own time.
    """
    complete = np.ones(shape, bool)
    for i, (_, step, _) in enumerate(cells):
        counts = np.bincount(np.searchsorted(numbers, step[step >= 0]), minlength=len(numbers))
        seen = counts[counts > 0]
        typical = int(np.bincount(seen).argmax()) if len(seen) else 0
        if len(seen) and np.mean(seen == typical) >= REGULAR_SHARE:
            complete[i] = counts == typical
    return complete


def _pacer(
    collectives: Collectives, rows: NDArray[np.intp], is_edge: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Return a mask of the collective that ends a step: the rarest regular one.

    Among equally rare ones it is the widest, then the largest.
    """
    usable = ~is_edge if (~is_edge).any() else np.ones(len(rows), bool)
    key = np.stack(
        [collectives.comm[rows].view(np.int64), collectives.op[rows], collectives.size_bytes[rows]],
        axis=1,
    )
    found, inverse, counts = np.unique(key, axis=0, return_inverse=True, return_counts=True)
    inverse = inverse.reshape(-1)
    allowed = np.bincount(inverse[usable], minlength=len(found)) > 0
    regular = allowed & (counts >= max(3, counts[allowed].max(initial=0) // 50))
    candidates = np.flatnonzero(regular if regular.any() else allowed)
    width = np.zeros(len(found), np.int64)
    np.maximum.at(width, inverse, collectives.nranks[rows])
    best = min(candidates, key=lambda i: (counts[i], -width[i], -found[i, 2], found[i, 0]))
    result: NDArray[np.bool_] = inverse == best
    return result


def _agreed(
    collectives: Collectives,
    found: list[NDArray[np.intp]],
    pacers: list[NDArray[np.bool_]],
    cohort: NDArray[np.intp],
) -> list[NDArray[np.bool_]]:
    """Return the pacers, with that of the role for ranks with few records.

    In few records another collective may seem to be the rarest.
    """
    kinds = np.stack([collectives.op, collectives.nranks, collectives.size_bytes], axis=1)
    lengths, agreed = np.array([len(rows) for rows in found]), list(pacers)
    for code in np.unique(cohort):
        members = np.flatnonzero(cohort == code)
        longest = members[lengths[members].argmax()]
        model = found[longest][pacers[longest]][0]
        for rank in members[lengths[members] * 2 < lengths[longest]].tolist():
            alike, comm = (
                (kinds[found[rank]] == kinds[model]).all(axis=1),
                collectives.comm[found[rank]],
            )
            is_plain = len(np.unique(comm[alike])) == 1
            agreed[rank] = alike if is_plain else alike & (comm == collectives.comm[model])
    return agreed


def _sums(values: Floats, column: NDArray[np.intp], size: int) -> Floats:
    inside = column >= 0
    total = np.bincount(column[inside], np.nan_to_num(values[inside]), size).astype(np.float64)
    broken = np.bincount(column[inside], np.isnan(values[inside]), size) > 0
    return np.where(broken, np.nan, total)
