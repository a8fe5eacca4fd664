"""What slow ranks cost at most, in a recording without calm steps.

The steps are replayed with these ranks as fast as their peers. A delay reaches a later call only
where ranks wait for the earlier one before they come to it, and that is measured: whoever waits
starts anew when the call has ended, and whoever works on meanwhile comes sooner after its end, by
what it waited. Delays that wait for each other add up so, and all others count once.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ingero.contract.verdict import CauseClass
from ingero.core.blame.record_steps import RecordSteps
from ingero.core.blame.recorded.dependence import (
    are_queued,
    are_uneven,
    find_followed,
    measure_gaps,
)
from ingero.core.blame.recorded.loss import SIGMAS, block_error
from ingero.core.blame.recorded.spells import Spell
from ingero.core.blame.recorded.step_calls import FLAG, QUEUED_S, StepCalls, tabulate_calls
from ingero.core.collectives.columns import Collectives, Floats
from ingero.core.collectives.pairs.kernels import is_in_swap
from ingero.core.robust import nan_median


def most_added(
    collectives: Collectives,
    measured: RecordSteps,
    spell: Spell,
    causes: Mapping[int, CauseClass],
) -> float | None:
    """Return the seconds per step of a spell that the ranks of `causes` add together at most.

    None where that cannot be replayed, or `spell` has no peer that is not one of them.
    """
    calls = tabulate_calls(collectives, measured, slice(spell.begin, spell.end))
    if calls is None or is_in_swap(collectives).any():  # one kernel waits for several partners
        return None
    if (np.bincount(calls.slot[calls.slot >= 0]) < 2).any():  # their steps begin at other calls
        return None
    is_uneven = are_uneven(measured.workers.period_s[spell.begin : spell.end])
    cohort = measured.workers.cohort
    follows: dict[int, Floats] = {}
    excess: dict[int, Floats] = {}
    for code in np.unique(cohort).tolist():
        members = np.flatnonzero(cohort == code).tolist()
        usual = [worker for worker in members if worker not in causes]
        together = find_followed(calls, usual or members, is_uneven)
        for worker in members:
            follows[worker] = together
            if worker not in causes:  # the partners of a slow rank wait for it more than others do
                follows[worker] = find_followed(calls, [worker], is_uneven, together)
            elif usual:
                excess[worker] = _excess(calls, together, worker, usual, causes[worker])
    if spell.worker not in excess:
        return None
    sooner = _replay(calls, follows, excess)
    mine = sooner[calls.slot[spell.worker][calls.slot[spell.worker] >= 0]]
    if not len(mine):  # it meets nobody in these steps
        return None
    largest = mine[int(mine.mean(axis=1).argmax())]
    counted = [at - spell.begin for at in spell.suspect.stalls] or slice(None)
    error_s = SIGMAS * block_error(largest[counted], lambda part: float(part.mean()))
    return float(largest.mean()) + error_s * len(largest[counted]) / len(largest)


def _excess(
    calls: StepCalls, follows: Floats, slow: int, peers: Sequence[int], cause: CauseClass
) -> Floats:
    """Return as [step, place] how much longer a slow rank takes to a place than its peers.

    How long peers take to a call that waits in the queue of its stream does not show. There a slow
    GPU is as much slower as elsewhere, and a late host is not late where its own call waits too.
    """
    own = np.nan_to_num(measure_gaps(calls, follows, slow))
    usual = np.nan_to_num(nan_median(np.stack([measure_gaps(calls, follows, w) for w in peers]), 0))
    excess: Floats = own - usual
    is_hidden = are_queued(calls, peers)
    is_over = _are_over(calls, slow)
    is_seen = ~is_hidden & ~is_over  # what is over before it is needed shows nothing
    spent, needed = own[is_seen].sum(), usual[is_seen].sum()
    slower = 1.0 - needed / spent if spent > needed > 0 else 0.0
    estimated = _between_calls(calls, slow) * slower
    if cause is CauseClass.HOST:
        queue = np.nan_to_num(nan_median(calls.start[slow] - calls.enqueue[slow], 0))
        estimated[:, queue > QUEUED_S] = 0.0
    hidden: Floats = np.clip(excess, 0.0, np.maximum(estimated, 0.0))
    excess[:, is_hidden] = hidden[:, is_hidden]
    excess[is_over] = 0.0
    return excess


def _are_over(calls: StepCalls, slow: int) -> NDArray[np.bool_]:
    """Tell as [step, place] which calls are over before those need them whom a slow rank meets."""
    length = calls.end - calls.start
    over = np.zeros(length.shape[1:], bool)
    for place, code in enumerate(calls.slot[slow].tolist()):
        who, at = np.nonzero(calls.slot == code)
        met = length[who[who != slow], :, at[who != slow]]
        over[:, place] = (np.where(np.isfinite(met), met, 0.0) <= 0.0).all(axis=0)
    return over


def _between_calls(calls: StepCalls, worker: int) -> Floats:
    """Return as [step, place] the time between the beginnings of calls of one stream.

    The next work of a rank that nobody waits for goes on during the transfer.
    """
    start = calls.start[worker]
    between: Floats = np.zeros_like(start)
    for place in range(FLAG + 1, start.shape[1]):
        before = calls.before_on_stream(worker, place)
        if before is not None:
            between[:, place] = np.nan_to_num(start[:, place] - start[:, before])
    return between


def _replay(
    calls: StepCalls, follows: Mapping[int, Floats], excess: Mapping[int, Floats]
) -> Floats:
    """Return as [slot, step] how much sooner each collective ends without the excess."""
    sooner = np.zeros((int(calls.slot.max()) + 1, calls.start.shape[1]))
    for code in _in_order(calls.slot):
        soonest = np.full(sooner.shape[1], np.inf)
        for worker, place in np.argwhere(calls.slot == code).tolist():
            gained = _inherited(calls, follows[worker][place], sooner, worker, place)
            if worker in excess:
                gained = gained + excess[worker][:, place]
            ends = calls.wait[worker, :, place] + gained
            soonest = np.where(np.isfinite(ends), np.minimum(soonest, ends), soonest)
        sooner[code] = np.where(np.isfinite(soonest), soonest, 0.0)
    return sooner


def _inherited(
    calls: StepCalls, follows: Floats, sooner: Floats, worker: int, place: int
) -> Floats:
    """Return how much sooner a worker comes to a place since what it waits for ends sooner."""
    slot = calls.slot[worker]
    gained = np.zeros(sooner.shape[1])
    if place == FLAG:
        return gained
    for before in np.flatnonzero((follows > 0) & (slot[: len(follows)] >= 0)).tolist():
        gained += follows[before] * sooner[slot[before]]
    if slot[FLAG] >= 0:
        gained += (1.0 - follows.sum()) * sooner[slot[FLAG]]
    return gained


def _in_order(slot: NDArray[np.intp]) -> list[int]:
    """Return the collectives so that each comes after those before it on all of its members."""
    needed: dict[int, set[int]] = {}
    for line in slot:
        met = [int(code) for code in line if code >= 0]
        for before, code in zip([None, *met], met, strict=False):
            needed.setdefault(code, set()).update(() if before in (None, code) else (before,))
    order: list[int] = []
    while needed:
        ready = [code for code, before in needed.items() if not before & needed.keys()]
        ready = ready or [min(needed)]  # members disagree about the order
        order += ready
        for code in ready:
            del needed[code]
    return order
