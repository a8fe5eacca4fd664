"""Slow links, live: even the rank that waits least spends longer in its collectives.

Time inside collectives is transfer plus waiting for others. The last rank to arrive waits for
nobody, so the least time inside is the transfer of that step. Over a whole job it rises only with
slow links, not with a slow rank or a slow pipeline stage.
"""

import numpy as np
from numpy.typing import NDArray

from ingero.core.robust import Column, Index
from ingero.core.verdict.own_times import SampleBatch
from ingero.core.verdict.table import CohortRows

SMOOTH = 0.02  # per step
BASELINE_SMOOTH = 0.002  # per tick
NEAR = 1.15  # healthy transfers vary by this factor; beyond it nothing is learned
RATIO = 1.3  # transfer over its baseline from which links are slow
SHARE = 0.03  # of a step: a smaller rise is not worth an event
ALIGNED = 2.0  # the transfer must have grown this many times more than the waiting
HOLD_S = 30.0
ADOPT_S = 330.0  # a change that lasts this long is the new baseline: other messages or network


def time_inside(batch: SampleBatch) -> Column:
    """Return the seconds in collectives of each sample, NaN where the GPU is not timed.

    Host time also holds the waits for the rank's own GPU.
    """
    known = np.isfinite(batch.idle_s) & (batch.step >= 0)
    return np.where(known, np.maximum(batch.span_s - batch.own_s, 0.0), np.nan)


def follow_transfer(cohorts: CohortRows, present: Index, starts: Index, inside: Column) -> None:
    """Take one step of the cohorts `present`, whose members begin at `starts` in `inside`."""
    least = np.fmin.reduceat(inside, starts)
    known = np.add.reduceat(np.isfinite(inside), starts)
    total = np.add.reduceat(np.nan_to_num(inside), starts)
    mean = np.divide(total, known, out=np.full(len(starts), np.nan), where=known > 0)
    for column, value in ((cohorts.transfer_s, least), (cohorts.waiting_s, mean - least)):
        before = column[present]
        moved = np.where(np.isnan(before), value, before + SMOOTH * (value - before))
        column[present] = np.where(np.isnan(value), before, moved)


def judge_links(cohorts: CohortRows, step_s: Column, now_s: float) -> NDArray[np.bool_]:
    """Tell for each cohort whether the links of its job are slow; a step lasts `step_s`.

    Slow links are reported once per job, at its first cohort.
    """
    size = cohorts.size
    if np.isnan(cohorts.transfer_s[:size]).all():
        return np.zeros(size, bool)
    _follow_baselines(cohorts, now_s)
    job = cohorts.job[:size]
    now = _least_of_job(job, cohorts.transfer_s[:size])
    before = _least_of_job(job, cohorts.baseline_transfer_s[:size])
    rise = now - before
    more_waiting = cohorts.waiting_s[:size] - cohorts.baseline_waiting_s[:size]
    with np.errstate(invalid="ignore"):
        is_slow = (now > RATIO * before) & (rise > SHARE * step_s[:size])
        is_slow &= rise > ALIGNED * more_waiting
        is_lasting = now_s - cohorts.away_since_s[:size] >= HOLD_S
    oldest = np.lexsort((cohorts.first_seen_s[:size], job))
    is_first = np.zeros(size, bool)
    is_first[oldest[np.unique(job[oldest], return_index=True)[1]]] = True
    return np.asarray(is_slow & is_lasting & is_first, bool)


def _follow_baselines(cohorts: CohortRows, now_s: float) -> None:
    """Follow transfer and waiting slowly while they change little; replace them after ADOPT_S."""
    size = cohorts.size
    level, away = cohorts.transfer_s[:size], cohorts.away_since_s[:size]
    baseline = cohorts.baseline_transfer_s[:size]
    with np.errstate(invalid="ignore", divide="ignore"):
        near = np.abs(np.log(level / baseline)) < np.log(NEAR)
    is_learned = ~np.isnan(cohorts.baseline_level[:size]) & ~np.isnan(level)
    away[:] = np.where(near | ~is_learned, np.nan, np.where(np.isnan(away), now_s, away))
    is_lasting = now_s - np.nan_to_num(away, nan=np.inf) >= ADOPT_S
    adopt = is_learned & (np.isnan(baseline) | is_lasting)
    away[adopt] = np.nan
    waiting = cohorts.waiting_s[:size]
    for known, value in ((baseline, level), (cohorts.baseline_waiting_s[:size], waiting)):
        known[near] += BASELINE_SMOOTH * (value[near] - known[near])
        known[adopt] = value[adopt]


def transfer_of_job(cohorts: CohortRows, cohort: int) -> tuple[float, float]:
    """Return the transfer of a step in the job of a cohort: seconds now, and its baseline."""
    same_job = cohorts.job[: cohorts.size] == cohorts.job[cohort]
    now = cohorts.transfer_s[: cohorts.size][same_job]
    baseline = cohorts.baseline_transfer_s[: cohorts.size][same_job]
    return float(np.fmin.reduce(now)), float(np.fmin.reduce(baseline))


def _least_of_job(job: Index, values: Column) -> Column:
    """Return for each cohort the least value of its job.

    A stage that waits for another stage shows more, which is not caused by links.
    """
    least = np.full(int(job.max()) + 1, np.inf)
    np.fmin.at(least, job, values)
    return np.asarray(np.where(np.isinf(least), np.nan, least)[job], np.float64)
