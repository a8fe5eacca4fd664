"""Steps whose calls are all alike, such as gradient buckets of one size: told by their rhythm.

Where every call has the same kind, the kinds do not show where a step begins. The host does: it is
silent for longer before the first bucket of a step, while it runs the forward pass.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ingero.core.collectives.columns import Collectives, Ints
from ingero.core.collectives.own_time import own_segments
from ingero.core.collectives.step_kinds import LIGHT_BYTES

LONGER, USUAL = 2.5, 0.25  # times this quantile: of two calls a step, one follows a long silence
# A host that looks at a loss every few steps is silent there as well. If its GPU works no longer
# before those calls, they begin no step, unless there are two or three of them.
FEW_CALLS, WORK = 3, 0.10  # of the time between two calls
REGULAR = 0.9  # of the long silences must be equally many calls apart
MIN_STEPS = 8


def mark_first_calls(collectives: Collectives, ranks: tuple[int, ...]) -> Collectives:
    """Return the collectives with the first call of each step as a kind of its own: a byte larger.

    Nothing changes unless every rank has calls of one kind alone, beside flags, and all have one
    rhythm with the same first calls.
    """
    first, periods = np.zeros(len(collectives), bool), set[int]()
    numbers: list[Ints] = []
    for who in ranks:
        rows = np.flatnonzero((collectives.who == who) & (collectives.size_bytes > LIGHT_BYTES))
        kinds = {
            len(np.unique(column[rows]))
            for column in (collectives.op, collectives.size_bytes, collectives.comm)
        }
        if kinds != {1} or (collectives.peer[rows] >= 0).any():
            return collectives
        rows = rows[np.argsort(collectives.start_ns[rows], kind="stable")]
        begins, period = _begins(collectives, rows)
        periods.add(period)
        if period < 2 or len(periods) > 1:
            return collectives
        if period > FEW_CALLS and not _works_longer(collectives, rows, begins):
            return collectives
        first[rows[begins]] = True
        numbers.append(collectives.seq[rows[begins]])
    if not all(_are_same(numbers[0], other) for other in numbers[1:]):
        return collectives  # a rank that stops delays the next call of the others, not the same one
    return replace(collectives, size_bytes=collectives.size_bytes + first)


def _are_same(one: Ints, other: Ints) -> bool:
    """Whether most calls of the shorter list are in both; recordings begin and end apart."""
    common = len(np.intersect1d(one, other))
    return common >= REGULAR * min(len(one), len(other))


def _works_longer(
    collectives: Collectives, rows: NDArray[np.intp], begins: NDArray[np.intp]
) -> bool:
    """Whether a GPU works for longer before the first calls; True where that is not known.

    Between two calls its rank may have waited for others at flags.
    """
    if not collectives.is_gpu_timed[rows].all():
        return True
    mine = collectives.take(np.flatnonzero(collectives.who == collectives.who[rows[0]]))
    segments = own_segments(mine)
    own = np.zeros(len(mine))
    own[segments.row] = np.nan_to_num(segments.own_s)
    order = np.argsort(mine.start_ns, kind="stable")
    is_call = mine.size_bytes[order] > LIGHT_BYTES
    gap = np.diff(np.cumsum(own[order])[is_call])
    is_first = np.zeros(len(gap), bool)
    is_first[begins - 1] = True
    more = np.median(gap[is_first]) - np.median(gap[~is_first])
    return bool(more > WORK * np.mean(np.diff(mine.end_ns[order][is_call])) / 1e9)


def _begins(collectives: Collectives, rows: NDArray[np.intp]) -> tuple[NDArray[np.intp], int]:
    """Return which calls follow a long silence, and how many calls apart; 0 where that varies."""
    silence = np.diff(collectives.start_ns[rows])
    if not len(silence):
        return np.empty(0, np.intp), 0
    begins = np.flatnonzero(silence > LONGER * np.quantile(silence, USUAL)) + 1
    if len(begins) < MIN_STEPS:
        return begins, 0
    apart = np.diff(begins)
    usual = int(np.median(apart))
    return begins, usual if float((apart == usual).mean()) >= REGULAR else 0
