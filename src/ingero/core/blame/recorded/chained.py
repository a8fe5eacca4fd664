"""Own time along the calls that a rank really waits for.

Gaps between calls are own time only where a rank waits for each call before it goes on. Elsewhere
they shrink by what it waited, and a rank that has waited less seems to work for longer. From the
end of one call that it waits for to the next, nothing is hidden.
"""

from dataclasses import replace

import numpy as np

from ingero.core.blame.record_steps import RecordSteps
from ingero.core.blame.recorded.dependence import are_uneven, find_followed, measure_gaps
from ingero.core.blame.recorded.step_calls import FLAG, StepCalls, tabulate_calls
from ingero.core.blame.suspects import WorkerSteps
from ingero.core.collectives.columns import Collectives, Floats
from ingero.core.robust import nan_median

LONGEST = 2.0  # times the step: longer own times are spoilt


def measure_chained(collectives: Collectives, measured: RecordSteps) -> WorkerSteps | None:
    """Return own times that differ by the chains of a role alone, on top of the usual step.

    None where no step is known.
    """
    workers = measured.workers
    calls = tabulate_calls(collectives, measured, slice(0, len(workers.steps)))
    if calls is None:
        return None
    usual_s = float(np.nanmedian(workers.period_s))
    is_uneven = are_uneven(workers.period_s)
    own = np.full_like(workers.own_s, np.nan)
    for code in np.unique(workers.cohort).tolist():
        members = np.flatnonzero(workers.cohort == code).tolist()
        follows = find_followed(calls, members, is_uneven)
        for worker in members:
            chain = _longest_chain(calls, follows, worker)
            own[worker] = np.where(chain <= LONGEST * workers.period_s, chain, np.nan)
        role_s = float(nan_median(nan_median(own[members], 1)[None], 1)[0])
        own[members] += usual_s - role_s
    own = np.maximum(own, 0.1 * usual_s)
    return replace(workers, own_s=np.where(np.isfinite(workers.own_s), own, np.nan))


def _longest_chain(calls: StepCalls, follows: Floats, worker: int) -> Floats:
    """Return the own time of each step, NaN where a call is missing."""
    gaps = measure_gaps(calls, follows, worker)
    met = FLAG + 1 + np.flatnonzero(calls.slot[worker, FLAG + 1 :] >= 0)
    if not len(met):
        return np.full(len(gaps), np.nan)
    until = np.zeros_like(gaps)
    if calls.slot[worker, FLAG] >= 0:
        until[:, FLAG] = np.nan_to_num(gaps[:, FLAG])
    for place in met.tolist():
        left = 1.0 - follows[place].sum()
        before = np.nan_to_num(until) @ follows[place] + left * until[:, FLAG]
        until[:, place] = gaps[:, place] + before
    longest: Floats = until[:, met].max(axis=1)  # of NaN and a number, it is NaN
    return longest
