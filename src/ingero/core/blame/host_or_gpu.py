"""Host or GPU: why a rank entered its collectives late.

If the GPU had no work left when the collective was enqueued, the host was late. Otherwise the time
until the enqueue is compared with the peers'. A host that is later than its peers by the excess is
the cause, unless peers with equally late hosts are not slow: then queued work hides such a delay.
"""

import numpy as np
from numpy.typing import NDArray

from ingero.contract.verdict import CauseClass
from ingero.core.blame.record_steps import RecordSteps
from ingero.core.blame.recorded.uneven import records_enqueues
from ingero.core.blame.suspects import Suspect
from ingero.core.collectives.columns import Collectives, Floats
from ingero.core.collectives.matching import match_collectives
from ingero.core.collectives.own_time import own_segments
from ingero.core.robust import MAD_TO_SIGMA, group_medians, nan_median

LAUNCH_S = 60e-6  # from enqueue to start on an idle GPU, including clock error
STARVED_SHARE = 0.05  # of own time: a shorter queue counts as empty
# Shares of the excess that must be host time: beyond the peers' spread, and within it.
LIKELY_SHARE, CERTAIN_SHARE = 0.5, 0.8
ORIGIN_SHARE = 0.2
CLEAR_SIGMAS = 3.0
CLOCKS_AGREE = 0.5  # of the excess: enqueue times of the other ranks must agree within this


def classify(
    collectives: Collectives,
    measured: RecordSteps,
    suspect: Suspect,
    exact_ends: bool,
    is_partial: bool = False,
) -> CauseClass:
    """Return HOST or COMPUTE, or UNKNOWN where the records do not contain the answer.

    `is_partial` says that some whom the suspect meets left no records: then it is not known either
    whether a delay of the host at one place is the reason of longer delays at later ones.
    """
    if not exact_ends or not collectives.is_gpu_timed.any():
        return _by_enqueue_alone(collectives, measured, suspect)
    own, idle, queue = _tables(collectives, measured, suspect)
    peers = _peers(measured, suspect)
    if not peers.any() or not np.isfinite(own[suspect.worker]).any():
        return CauseClass.UNKNOWN
    # At a place in the step that no peer has, all own time is excess.
    excess = own[suspect.worker] - np.nan_to_num(nan_median(own[peers], 0))
    worst = int(np.nanargmax(excess))
    if queue[suspect.worker, worst] <= max(LAUNCH_S, STARVED_SHARE * own[suspect.worker, worst]):
        return CauseClass.HOST
    waited = np.nansum(idle, axis=1)
    typical = float(np.median(waited[peers]))
    spread = MAD_TO_SIGMA * float(np.median(np.abs(waited[peers] - typical)))
    later = float(waited[suspect.worker]) - typical
    total = float(np.nansum(excess))
    if total <= 0:
        return CauseClass.COMPUTE
    if later <= CLEAR_SIGMAS * spread:
        return CauseClass.HOST if later >= CERTAIN_SHARE * total else CauseClass.COMPUTE
    delay = np.nan_to_num(idle[suspect.worker] - np.nan_to_num(nan_median(idle[peers], 0)))
    # Where collectives overlap compute, one delay shows again at every later place.
    origin = int(delay.argmax())
    begins_there = delay[origin] >= max(LIKELY_SHARE * excess[origin], ORIGIN_SHARE * total)
    if later >= LIKELY_SHARE * total:
        return CauseClass.HOST
    if begins_there:
        return CauseClass.UNKNOWN if is_partial else CauseClass.HOST
    return CauseClass.COMPUTE


def _tables(
    collectives: Collectives, measured: RecordSteps, suspect: Suspect
) -> tuple[Floats, Floats, Floats]:
    """Return medians as [worker, place in the step].

    These are own time, time until the enqueue, and length of the queue at the enqueue.
    """
    segments = own_segments(collectives)
    step, place = measured.row_step[segments.row], measured.row_place[segments.row]
    wanted = (step >= 0) & np.isfinite(segments.own_s)
    if suspect.stalls:
        wanted &= np.isin(step, suspect.stalls)
    queue = np.maximum(0.0, (collectives.entry_ns - collectives.start_ns)[segments.row] / 1e9)
    shape = (len(measured.ranks), int(place[wanted].max(initial=0)) + 1)
    tables = tuple(np.full(shape, np.nan) for _ in range(3))
    for worker, code in enumerate(measured.ranks):
        rows = np.flatnonzero(wanted & (segments.who == code))
        for at in np.unique(place[rows]):
            here = rows[place[rows] == at]
            for table, values in zip(tables, (segments.own_s, segments.idle_s, queue), strict=True):
                known = values[here][np.isfinite(values[here])]
                table[worker, at] = np.median(known) if len(known) else np.nan
    return tables[0], tables[1], tables[2]


def _peers(measured: RecordSteps, suspect: Suspect) -> NDArray[np.bool_]:
    cohort = measured.workers.cohort
    peers: NDArray[np.bool_] = cohort == cohort[suspect.worker]
    peers[suspect.worker] = False
    return peers


def _by_enqueue_alone(
    collectives: Collectives, measured: RecordSteps, suspect: Suspect
) -> CauseClass:
    """Classify by enqueue times: a host as late as the excess is the cause, else the GPU is.

    This needs clocks that agree, so the result is UNKNOWN unless the enqueue times of the other
    ranks agree within half the excess.
    """
    if not records_enqueues(collectives):
        return CauseClass.UNKNOWN
    groups = match_collectives(collectives)
    start = collectives.start_ns - collectives.start_ns.min(initial=0)
    offset = (start - group_medians(groups, start, int(groups.max(initial=-1)) + 1)[groups]) / 1e9
    wide = (collectives.nranks > 2) & (measured.row_step >= 0)
    if suspect.stalls:
        wide &= np.isin(measured.row_step, suspect.stalls)
    mine = [wide & (collectives.who == code) for code in measured.ranks]
    if not all(rows.any() for rows in mine) or suspect.excess_s <= 0:
        return CauseClass.UNKNOWN
    late = np.array([np.median(offset[rows]) for rows in mine])
    share = late[suspect.worker] / suspect.excess_s
    agree = np.abs(np.delete(late, suspect.worker)).max() <= CLOCKS_AGREE * suspect.excess_s
    if not agree or not -CLOCKS_AGREE < share < 1 + CLOCKS_AGREE:
        return CauseClass.UNKNOWN
    return CauseClass.HOST if share >= LIKELY_SHARE else CauseClass.COMPUTE
