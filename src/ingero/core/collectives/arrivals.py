"""Arrivals at collectives, without comparing clocks of two machines.

A collective ends for all its members together. Measured back from that common end, the kernel of a
rank that came late started late, and the duration of its kernel is short. The *advance* of a
collective is what its last member adds: its arrival minus that of the second last. It is charged
to the last member.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ingero.contract.collective import POINT_TO_POINT_OPS
from ingero.core.collectives.columns import Collectives, Floats, Ints
from ingero.core.collectives.lag import SYNCHRONISING_OPS
from ingero.core.collectives.matching import Groups

MOST, FEWEST = 0.75, 5  # of the members, and at least so many, are compared without the others
FEW = (4, 5)  # members: two that are late would be half of the others, but not of all


@dataclass(frozen=True, slots=True)
class Arrivals:
    """One row per record, in seconds; NaN where members of the collective left no record.

    Members of whom there are no records at all are left out, if they are few: those who are there
    can be compared without them.

    `start_late_s` and `enqueue_late_s` compare a rank with the median of the other members (of few,
    with the lower median of all): when its GPU started, and when its host enqueued. `advance_s` is
    zero for all but the last member.
    """

    advance_s: Floats
    start_late_s: Floats
    enqueue_late_s: Floats
    transfer_s: Floats  # the shortest duration among the members: what remains without waiting


def measure_arrivals(columns: Collectives, groups: Groups) -> Arrivals:
    """Return the arrivals of the rows; `groups` are the codes of `match_collectives`.

    Sends and receives must have been numbered before.
    """
    shape = len(columns)
    advance, start, enqueue, transfer = (np.full(shape, np.nan) for _ in range(4))
    synchronises = columns.has_op(SYNCHRONISING_OPS) & columns.is_gpu_timed
    for rows in _by_width(columns, groups, synchronises):
        arrival = -columns.duration_ns[rows] / 1e9
        enqueued = (columns.start_ns[rows] - columns.end_ns[rows]) / 1e9
        advance[rows] = _advances(arrival)
        usual = _lower_median if rows.shape[1] in FEW else _median_of_others
        start[rows] = arrival - usual(arrival)
        enqueue[rows] = enqueued - usual(enqueued)
        transfer[rows] = -arrival.max(axis=1, keepdims=True)
    return Arrivals(advance, start, enqueue, transfer)


def charge_steps(
    advance_s: Floats, who: NDArray[np.integer], step: Ints, shape: tuple[int, int]
) -> tuple[Floats, Floats]:
    """Return the low and the high charge as [recorder, step]; rows with a negative step are left.

    Where waiting hides compute, one delay shows again at every later place of the step: the charge
    is then the largest advance (low). Where it does not, the charge is their sum (high).
    """
    rows = np.flatnonzero((step >= 0) & np.isfinite(advance_s))
    cell = who[rows].astype(np.intp) * shape[1] + step[rows]
    low = np.zeros(shape[0] * shape[1])
    np.maximum.at(low, cell, advance_s[rows])
    high = np.bincount(cell, advance_s[rows], len(low)).astype(np.float64)
    return low.reshape(shape), high.reshape(shape)


def _by_width(
    columns: Collectives, groups: Groups, usable: NDArray[np.bool_]
) -> list[NDArray[np.intp]]:
    """Return the rows of complete groups as matrices [group, member], one per number of members."""
    size = int(groups.max(initial=-1)) + 1
    pairwise = columns.has_op(POINT_TO_POINT_OPS)
    wanted = np.where(pairwise, 2, _recorded_members(columns))
    present = np.bincount(groups[usable], minlength=size)
    fits = usable & (present[groups] == wanted) & (wanted > 1)
    # members may name different numbers of ranks: then nobody knows whether the group is complete
    agreed = np.bincount(groups[fits], minlength=size) == present
    rows = np.flatnonzero(fits & agreed[groups])
    rows = rows[np.argsort(groups[rows], kind="stable")]
    width = present[groups[rows]]
    return [rows[width == each].reshape(-1, each) for each in np.unique(width).tolist()]


def _recorded_members(columns: Collectives) -> Ints:
    """Return how many members the communicator of each row has, without a few unrecorded ones."""
    comm = np.unique(columns.comm, return_inverse=True)[1].reshape(-1)
    pairs = np.unique(np.stack([comm, columns.who], 1), axis=0)
    present = np.bincount(pairs[:, 0], minlength=1)[comm] if len(comm) else comm
    are_most = (present >= FEWEST) & (present >= MOST * columns.nranks)
    return np.where(are_most, np.minimum(present, columns.nranks), columns.nranks)


def _advances(arrival: Floats) -> Floats:
    result = np.zeros_like(arrival)
    ordered = np.sort(arrival, axis=1)
    last = arrival.argmax(axis=1)
    result[np.arange(len(arrival)), last] = ordered[:, -1] - ordered[:, -2]
    return result


def _lower_median(values: Floats) -> Floats:
    """Return the lower one of two middle values of each row."""
    lower: Floats = np.sort(values, axis=1)[:, [(values.shape[1] - 1) // 2]]
    return lower


def _median_of_others(values: Floats) -> Floats:
    """Return for each cell the median of the other cells of its row."""
    order = np.argsort(values, axis=1, kind="stable")
    ordered = np.take_along_axis(values, order, axis=1)
    at = np.empty_like(order)
    np.put_along_axis(at, order, np.arange(values.shape[1])[None, :], axis=1)
    others = values.shape[1] - 1
    low, high = (others - 1) // 2, others // 2
    below = np.take_along_axis(ordered, low + (at <= low), axis=1)
    above = np.take_along_axis(ordered, high + (at <= high), axis=1)
    middle: Floats = (below + above) / 2
    return middle
