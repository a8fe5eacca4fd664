"""The calls of a step as tables: when each rank enqueued, began and ended them, and whom it met.

Steps are compared call by call: the same place of a step meets the same members in every step.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ingero.core.blame.record_steps import RecordSteps
from ingero.core.collectives.columns import Collectives, Floats, Ints
from ingero.core.collectives.matching import match_collectives

FLAG = 0  # the place of flags before a step; those of its pattern follow
QUEUED_S = 30e-6  # after the end of the call before it: this kernel was ready and had to wait
SAME_CALLS = 0.95  # of those of the step that has most
AT_ONCE = 0.05  # of a transfer: neither end of it waited for longer


@dataclass(frozen=True, slots=True)
class StepCalls:
    """Tables as [worker, step, place] in seconds, each worker on its own clock.

    `start` is when a call could be of use, and `wait` how long a member then waited for the last
    one. `slot` and `stream` are [worker, place]: which collective of the step is met there, -1
    where none is, and on which stream.
    """

    enqueue: Floats
    start: Floats
    end: Floats
    wait: Floats
    slot: NDArray[np.intp]
    stream: NDArray[np.intp]

    def before_on_stream(self, worker: int, place: int) -> int | None:
        """Return the place whose call is the one before on the stream of another one."""
        stream = self.stream[worker]
        same = FLAG + 1 + np.flatnonzero(stream[FLAG + 1 : place] == stream[place])
        return int(same[-1]) if len(same) and stream[place] >= 0 else None


def tabulate_calls(
    collectives: Collectives, measured: RecordSteps, steps: slice
) -> StepCalls | None:
    """Return the calls of some steps; None where no step is known, or each has other calls."""
    of_step, of_place = _from_flag_to_flag(collectives, measured)
    rows = np.flatnonzero((of_step >= steps.start) & (of_step < steps.stop))
    if not (of_place[rows] > FLAG).any():
        return None
    c = collectives.take(rows)
    worker = np.searchsorted(np.array(measured.ranks), c.who)
    at = worker, of_step[rows] - steps.start, of_place[rows]
    shape = (len(measured.ranks), steps.stop - steps.start, int(at[2].max()) + 1)
    first = np.full(shape[0], np.iinfo(np.int64).max)
    np.minimum.at(first, worker, c.start_ns)
    tables = np.full((3, *shape), np.nan)
    for table, column in zip(tables, (c.start_ns, _needed_ns(c), c.end_ns), strict=True):
        table[at] = (column - first[worker]) / 1e9
    enqueue, start, end = tables
    begun = np.where(np.isfinite(enqueue[:, :, FLAG + 1 :]), enqueue[:, :, FLAG + 1 :], np.inf)
    is_within = enqueue[:, :, FLAG] > begun.min(axis=2)
    tables[:, is_within, FLAG] = np.nan  # such a flag ends no step
    group = np.full(shape, -1, np.int64)
    group[at] = match_collectives(c)
    if _differ(group):
        return None
    slot = _slots(group)
    stream = np.full(slot.shape, -1, np.intp)
    stream[worker, at[2]] = np.unique(c.stream, return_inverse=True)[1].reshape(-1)
    is_send = np.zeros(slot.shape, bool)
    is_send[worker, at[2]] = c.has_op({"Send"})
    return StepCalls(enqueue, start, end, _waits(end - start, slot, is_send), slot, stream)


def _from_flag_to_flag(
    collectives: Collectives, measured: RecordSteps
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return step and place of each row, with steps that begin where ranks exchange flags.

    All wait for each other there. What the grid has before the flag belongs to the step before.
    """
    is_flag = (measured.flag_step >= 0) & (collectives.nranks >= len(measured.ranks))
    step = np.where(is_flag, measured.flag_step, measured.row_step)
    place = np.where(is_flag, FLAG, measured.row_place + 1)
    for code in np.unique(measured.workers.cohort):
        placed, after = [], []
        for worker in np.flatnonzero(measured.workers.cohort == code).tolist():
            mine = collectives.who == measured.ranks[worker]
            rows = np.flatnonzero(mine & (place > FLAG) & (step >= 0))
            rows = rows[np.argsort(collectives.start_ns[rows], kind="stable")]
            flags = collectives.start_ns[np.flatnonzero(mine & is_flag)]
            following = np.searchsorted(collectives.start_ns[rows], flags)
            after.append(place[rows[following[following < len(rows)]]])
            placed.append(rows)
        members, firsts = np.concatenate(placed), np.concatenate(after)
        if len(firsts):
            first, places = int(np.bincount(firsts).argmax()), int(place[members].max())
            is_before = place[members] < first
            step[members] -= is_before
            place[members] += np.where(is_before, places, 0) - first + 1
    return step, place


def _needed_ns(c: Collectives) -> Ints:
    """Return when each call began, or one that its host enqueued before it was ready, if later.

    A rank is busy until then with the work before that other call. A call that runs ahead of that
    work, and waits for other ranks meanwhile, costs nothing.
    """
    ready = np.where(find_queued(c), c.start_ns, c.entry_ns)
    order = np.lexsort((c.start_ns, c.stream, c.who))
    is_new = (np.diff(c.who[order]) != 0) | (np.diff(c.stream[order]) != 0)
    for rows in np.split(order, np.flatnonzero(is_new) + 1):
        later = np.minimum.accumulate(c.entry_ns[rows][::-1])[::-1]
        ready[rows] = np.minimum(ready[rows], later)  # calls of a stream begin in their order
    order = np.lexsort((c.start_ns, c.who))
    needed = c.entry_ns.copy()
    for rows in np.split(order, np.flatnonzero(np.diff(c.who[order])) + 1):
        needed[rows] = np.fmax(needed[rows], np.maximum.accumulate(ready[rows]))
    return np.minimum(needed, c.end_ns)


def find_queued(c: Collectives) -> NDArray[np.bool_]:
    """Tell which calls began when the one before them on their stream had ended, and not sooner.

    When they were ready does not show.
    """
    order = np.lexsort((c.entry_ns, c.stream, c.who))
    same = (np.diff(c.who[order]) == 0) & (np.diff(c.stream[order]) == 0)
    free_ns = c.end_ns[order][:-1]
    later = order[1:]
    at_once = (c.entry_ns[later] - free_ns <= 1e9 * QUEUED_S) & (c.start_ns[later] < free_ns)
    queued = np.zeros(len(c), bool)
    queued[later] = same & at_once
    return queued


def last_ends(end: Floats) -> Floats:
    """Return as [worker, step, 1] when the step before ended, NaN where that is unknown."""
    before = np.where(np.isfinite(end[:, :-1]), end[:, :-1], -np.inf).max(axis=2, keepdims=True)
    last = np.full((end.shape[0], end.shape[1], 1), np.nan)
    last[:, 1:] = np.where(np.isfinite(before), before, np.nan)
    return last


def _differ(group: NDArray[np.int64]) -> bool:
    """Whether most steps lack calls that others have: then nothing compares these call by call."""
    known = (group[:, :, FLAG + 1 :] >= 0).sum(axis=(0, 2))
    return bool((known < SAME_CALLS * known.max()).mean() > 0.5)


def _slots(group: NDArray[np.int64]) -> NDArray[np.intp]:
    """Number the collectives of all steps like those of one that has most of them."""
    known = (group[:, :, FLAG + 1 :] >= 0).sum(axis=(0, 2))
    whole = np.flatnonzero(known == known.max())
    chosen = group[:, whole[len(whole) // 2]].copy()
    chosen[:, FLAG] = np.where((group[:, :, FLAG] >= 0).any(axis=1), group.max() + 1, -1)
    codes = np.unique(chosen[chosen >= 0])
    slot: NDArray[np.intp] = np.where(chosen >= 0, np.searchsorted(codes, chosen), -1)
    return slot


def _waits(length: Floats, slot: NDArray[np.intp], is_send: NDArray[np.bool_]) -> Floats:
    """Return how much longer each member was in a collective than the one that came last.

    A send that is over before its data are taken does not wait: where the receiver did not wait
    either, the data had been there for a time that nobody knows, which is infinite here.
    """
    wait = np.full_like(length, np.nan)
    for code in np.unique(slot[slot >= 0]):
        who, place = np.nonzero(slot == code)
        members = length[who, :, place]
        shortest = np.where(np.isfinite(members), members, np.inf).min(axis=0)
        beyond = members - np.where(np.isfinite(shortest), shortest, np.nan)
        sends = is_send[who, place]
        if sends.any():
            beyond[np.ix_(sends, (beyond <= AT_ONCE * shortest).all(axis=0))] = np.inf
        wait[who, :, place] = beyond
    return wait
