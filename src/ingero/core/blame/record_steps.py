"""Own time per rank and step from collective records, with the steps of all ranks lined up.

A step ends with the rank's pacer, the collective it calls least often; steps of different ranks are lined up by the
pacer's sequence number. Where the end of an operation is known on the GPU's clock, own time is the gap between
operations. Where only durations are known it is the step's length less the time inside collectives: the length is the
same for everyone, so the differences between ranks are exact even then.
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

MIN_OWN_SHARE = 0.1  # of a step: own time is at least this, also where collectives overlap compute
REGULAR_SHARE = 0.6  # of a rank's steps that must hold the same number of records before others count as incomplete

Cell = tuple[NDArray[np.intp], Ints, NDArray[np.bool_]]


@dataclass(frozen=True, slots=True)
class RecordSteps:
    """The workers' matrix and where it comes from; each record has its column or -1, and its place within the step."""

    workers: WorkerSteps
    ranks: tuple[int, ...]
    row_step: NDArray[np.intp]
    row_place: NDArray[np.intp]
    waiting_s: Floats


def measure_steps(collectives: Collectives, exact_ends: bool) -> RecordSteps:
    """Own time of every rank in every step. `exact_ends` says that end times are the GPU's, not a poll's."""
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
    kept = whole.sum(axis=0) * 2 >= max(
        1, whole.any(axis=1).sum()
    )  # steps that at least half of the ranks saw whole
    remap = np.where(kept, np.cumsum(kept) - 1, -1)
    row_step = np.where(row_step >= 0, remap[row_step], -1) if len(remap) else row_step
    steps = tuple(int(n) for n in numbers[kept])
    matrix = WorkerSteps(own[:, kept], period[kept], cohort, steps)
    return RecordSteps(matrix, ranks, row_step, row_place, np.where(whole, inside, np.nan)[:, kept])


def _own_by_waiting(inside: Floats, period: Floats, whole: NDArray[np.bool_]) -> Floats:
    """Own time from durations alone: who waits longest in a step is taken to have had the usual own time.

    Enqueue times give the mean length of a step only, since hosts run ahead of their GPUs by varying amounts.
    """
    known = whole.any(axis=0)
    longest = np.where(whole, inside, 0.0).max(axis=0, initial=0.0)
    if not known.any():
        return np.full_like(inside, np.nan)
    typical = _mean_without_extremes(period[known])
    usual = max(typical - _mean_without_extremes(longest[known]), MIN_OWN_SHARE * typical)
    own: Floats = usual + longest - inside
    return own


def _mean_without_extremes(values: Floats) -> float:
    """The mean with the largest two percent cut to size: the first steps of a job are no measure."""
    return float(np.minimum(values, np.quantile(values, 0.98)).mean())


def _places(column: NDArray[np.intp]) -> NDArray[np.intp]:
    """Place of each row within its step."""
    if not len(column):
        return column
    begins = np.flatnonzero(np.r_[True, np.diff(column) != 0])
    return np.arange(len(column)) - np.repeat(begins, np.diff(np.r_[begins, len(column)]))


def _cells(
    collectives: Collectives, ranks: tuple[int, ...], cohort: NDArray[np.intp], exact_ends: bool
) -> list[Cell]:
    """Per rank its rows in time order, the step of each, and which of them close one."""
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
        at = np.searchsorted(
            marks, np.arange(len(rows))
        )  # a row belongs to the next pacer, itself included
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
    """Cells with as many records as that rank usually has: where one was lost, its time would count as own."""
    complete = np.ones(shape, bool)
    for i, (_, step, _) in enumerate(cells):
        counts = np.bincount(np.searchsorted(numbers, step[step >= 0]), minlength=len(numbers))
        seen = counts[counts > 0]
        usual = int(np.bincount(seen).argmax()) if len(seen) else 0
        if len(seen) and np.mean(seen == usual) >= REGULAR_SHARE:
            complete[i] = counts == usual
    return complete


def _pacer(
    collectives: Collectives, rows: NDArray[np.intp], is_edge: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Mask of the collective that closes a step: the rarest regular one, the widest and largest among equals."""
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
    """The pacers, but of a rank with few records the one of its role: in few, another collective may seem rarest."""
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
