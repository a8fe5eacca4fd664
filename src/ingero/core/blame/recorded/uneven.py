"""Nobody in particular: what whoever comes last adds to a step, and whether the work is uneven.

Some rank is always last. Where its kernel started right after its enqueue, the launches of its host
scatter, and the work is not uneven. Uneven work makes a rank late in the first half of a step and
again in the second, since it has the same data in both.

With durations alone, how long a kernel waited for its host is not known. Whether hosts are late is
seen in their enqueues then, where these are recorded, and work in how late ranks come.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ingero.core.blame.record_steps import RecordSteps
from ingero.core.collectives.arrivals import Arrivals
from ingero.core.collectives.columns import Collectives, Floats
from ingero.core.collectives.matching import match_collectives
from ingero.core.collectives.own_time import own_segments
from ingero.core.robust import group_medians, nan_median

LAUNCH_S = 1e-4  # from enqueue to start on an idle GPU
EARLIEST = 0.001  # quantile of that time that counts as no time: clocks of host and GPU differ
MOSTLY = 0.5
BY_HOSTS = 0.7  # of what is added: then hosts come late, not work
RESOLUTION_NS = 1000  # of sources that count microseconds
SAME_AGAIN = 0.3  # correlation of both halves of a step above which the work is uneven


@dataclass(frozen=True, slots=True)
class LastArrivers:
    """`added` is the share of a step; `launched` is the part of it that hosts launched late.

    `by_hosts` is the part whose enqueue was late by half of it. `agreement` correlates both halves
    of a step, NaN where a step has one place.
    """

    added: float
    launched: float
    agreement: float
    by_hosts: float = 0.0

    @property
    def is_uneven(self) -> bool:
        """Whether the work itself differs between ranks."""
        is_work = self.launched < MOSTLY and self.by_hosts < BY_HOSTS
        return is_work and not self.agreement < SAME_AGAIN


def measure_last(
    collectives: Collectives,
    measured: RecordSteps,
    arrivals: Arrivals,
    step_s: float,
    exact_ends: bool = True,
) -> LastArrivers:
    """Measure what the last arrivers add, and how.

    Without `exact_ends`, only durations and enqueues are known.
    """
    is_met = np.isfinite(arrivals.advance_s) & (collectives.peer < 0)  # a stage waits by nature
    rows = np.flatnonzero((measured.row_step >= 0) & is_met)
    steps = len(measured.workers.steps)
    if not len(rows) or not steps:
        return LastArrivers(0.0, 0.0, np.nan)
    advance = arrivals.advance_s[rows]
    largest = np.zeros(steps)
    np.maximum.at(largest, measured.row_step[rows], advance)
    queue = (collectives.entry_ns - collectives.start_ns)[rows] / 1e9
    launched = queue - np.quantile(queue, EARLIEST) <= LAUNCH_S
    total = max(float(advance.sum()), 1e-12)
    enqueued = arrivals.enqueue_late_s if exact_ends else _enqueued_late(collectives)
    late_host = enqueued[rows] >= 0.5 * arrivals.start_late_s[rows]
    return LastArrivers(
        float(largest.mean()) / step_s,
        float(advance[launched].sum()) / total if exact_ends else 0.0,
        _agreement(collectives, measured)
        if exact_ends
        else _late_again(collectives, measured, arrivals),
        float(advance[late_host].sum()) / total,
    )


def records_enqueues(collectives: Collectives) -> bool:
    """Whether enqueues are recorded, and not made up from when kernels began."""
    queue_ns = collectives.entry_ns - collectives.start_ns
    return bool((queue_ns > RESOLUTION_NS).any())


def _enqueued_late(collectives: Collectives) -> Floats:
    """Return in seconds how much later than usual each call was enqueued, beside other members.

    Clocks of hosts lie apart, and drift, by what a straight line tells. -∞ where enqueues are not
    recorded.
    """
    if not records_enqueues(collectives):
        return np.full(len(collectives), -np.inf)
    groups = match_collectives(collectives)
    size = int(groups.max(initial=-1)) + 1
    start = collectives.start_ns - collectives.start_ns.min(initial=0)
    late: Floats = start - group_medians(groups, start, size)[groups]
    for who in np.unique(collectives.who):
        rows = np.flatnonzero(collectives.who == who)
        since_s = start[rows] / 1e9
        if len(rows) > 2 and np.ptp(since_s) > 0:
            late[rows] -= np.polyfit(since_s, late[rows], 1)[0] * since_s
        late[rows] -= np.median(late[rows])
    # Of clocks that lie apart, the median above was always that of the same rank.
    late -= group_medians(groups, late, size)[groups]
    return late / 1e9


def _late_again(collectives: Collectives, measured: RecordSteps, arrivals: Arrivals) -> float:
    """Correlate how late ranks come to the first and to the second half of the places of a step."""
    step, place, late = measured.row_step, measured.row_place, arrivals.start_late_s
    rows = np.flatnonzero((step >= 0) & (place >= 0) & np.isfinite(late) & (collectives.peer < 0))
    places = int(place[rows].max(initial=0)) + 1
    worker = np.searchsorted(np.array(measured.ranks), collectives.who[rows])
    table = np.zeros((2, len(measured.ranks), len(measured.workers.steps)))
    np.add.at(table, ((place[rows] >= places // 2).astype(int), worker, step[rows]), late[rows])
    is_recorded = np.zeros(table.shape[1:], bool)
    is_recorded[worker, step[rows]] = True
    return _correlate(*(_beside_others(half, is_recorded).ravel() for half in table))


def _beside_others(half: Floats, is_recorded: NDArray[np.bool_]) -> Floats:
    """Return [worker, step] against the median of the workers that recorded a step, else NaN."""
    known = np.where(is_recorded, half, np.nan)
    beside: Floats = known - nan_median(known, 0)
    return beside


def _correlate(x: Floats, y: Floats) -> float:
    known = np.isfinite(x) & np.isfinite(y)
    x, y = x[known], y[known]
    return float(np.corrcoef(x, y)[0, 1]) if len(x) > 2 and x.std() and y.std() else np.nan


def _agreement(collectives: Collectives, measured: RecordSteps) -> float:
    """Correlate the own time of ranks over their role in the two halves of their steps.

    The halves of a role hold equally much own time.
    """
    segments = own_segments(collectives)
    step, place = measured.row_step[segments.row], measured.row_place[segments.row]
    kept = (step >= 0) & (place >= 0) & np.isfinite(segments.own_s)
    step, place, own = step[kept], place[kept], segments.own_s[kept]
    worker = np.searchsorted(np.array(measured.ranks), segments.who[kept])
    shape = (len(measured.ranks), len(measured.workers.steps), int(place.max(initial=0)) + 1)
    table = np.zeros(shape)
    table[worker, step, place] = own
    is_recorded = np.zeros(shape[:2], bool)
    is_recorded[worker, step] = True
    halves: list[Floats] = []
    for code in np.unique(measured.workers.cohort):
        part = table[measured.workers.cohort == code]
        seen = is_recorded[measured.workers.cohort == code]
        if not seen.any():
            continue
        usual = np.cumsum(np.median(part[seen], axis=0))
        split = int(np.searchsorted(usual, usual[-1] / 2)) + 1
        both = [part[:, :, :split].sum(axis=2), part[:, :, split:].sum(axis=2)]
        halves.append(np.stack([_beside_others(half, seen).ravel() for half in both]))
    return _correlate(*np.concatenate(halves, axis=1)) if halves else np.nan
