"""Slow links, live: even the rank that waits least spends longer in its collectives, and nobody comes later.

Time inside collectives is transfer plus waiting for others. The last to arrive waits for nobody, so the least of a step
is its transfer. Seen over a whole job it rises with its links only, not with a slow rank or with a slow stage.
"""

import numpy as np
from numpy.typing import NDArray

from ingero.core.verdict.own_times import Column, SampleBatch
from ingero.core.verdict.table import CohortRows

SMOOTH = 0.02  # per step
USUAL_SMOOTH = 0.002  # per tick
NEAR = 1.15  # transfers wander by this much; beyond it nothing is learnt
RATIO = 1.3
SHARE = 0.03  # of a step: less is not worth an event
ALIGNED = 2.0  # the transfer must have grown this many times more than the waiting for each other
HOLD_S = 30.0
ADOPT_S = 330.0  # what lasts this long is the new normal: other messages, another network


def time_inside(batch: SampleBatch) -> Column:
    """Seconds in collectives, known with GPU timing only: host time also holds the waits for the rank's own GPU."""
    known = np.isfinite(batch.idle_s) & (batch.step >= 0)
    return np.where(known, np.maximum(batch.span_s - batch.own_s, 0.0), np.nan)


def follow_transfer(
    cohorts: CohortRows, present: NDArray[np.intp], starts: NDArray[np.intp], inside: Column
) -> None:
    """One step of the cohorts `present`, whose members begin at `starts`: its least time inside, and the mean above."""
    least = np.fmin.reduceat(inside, starts)
    known = np.add.reduceat(np.isfinite(inside), starts)
    mean = np.divide(
        np.add.reduceat(np.nan_to_num(inside), starts),
        known,
        out=np.full(len(starts), np.nan),
        where=known > 0,
    )
    for column, value in ((cohorts.transfer, least), (cohorts.waiting, mean - least)):
        before = column[present]
        moved = np.where(np.isnan(before), value, before + SMOOTH * (value - before))
        column[present] = np.where(np.isnan(value), before, moved)


def judge_links(cohorts: CohortRows, span_s: Column, now_s: float) -> NDArray[np.bool_]:
    """Per cohort: are the links of its job slow? Told once per job, at its first cohort. A step lasts `span_s`."""
    size = cohorts.size
    level, usual = cohorts.transfer[:size], cohorts.usual_transfer[:size]
    if np.isnan(level).all():
        return np.zeros(size, bool)
    _learn(cohorts, now_s)
    job = cohorts.job[:size]
    now, before = _least(job, level), _least(job, usual)
    rise = now - before
    pushed = cohorts.waiting[:size] - cohorts.usual_waiting[:size]
    with np.errstate(invalid="ignore"):
        slow = (now > RATIO * before) & (rise > SHARE * span_s[:size]) & (rise > ALIGNED * pushed)
        lasting = now_s - cohorts.away_since[:size] >= HOLD_S
    oldest = np.lexsort((cohorts.first_seen[:size], job))
    first = np.zeros(size, bool)
    first[oldest[np.unique(job[oldest], return_index=True)[1]]] = True
    return np.asarray(slow & lasting & first, bool)


def _learn(cohorts: CohortRows, now_s: float) -> None:
    """What is usual follows slowly while little changes, and is given up when the change has come to stay."""
    size = cohorts.size
    level, usual, away = (
        cohorts.transfer[:size],
        cohorts.usual_transfer[:size],
        cohorts.away_since[:size],
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        near = np.abs(np.log(level / usual)) < np.log(NEAR)
    settled = ~np.isnan(cohorts.usual[:size]) & ~np.isnan(level)
    away[:] = np.where(near | ~settled, np.nan, np.where(np.isnan(away), now_s, away))
    adopt = settled & (np.isnan(usual) | (now_s - np.nan_to_num(away, nan=np.inf) >= ADOPT_S))
    away[adopt] = np.nan
    for known, value in ((usual, level), (cohorts.usual_waiting[:size], cohorts.waiting[:size])):
        known[near] += USUAL_SMOOTH * (value[near] - known[near])
        known[adopt] = value[adopt]


def links_of(cohorts: CohortRows, cohort: int) -> tuple[float, float]:
    """Transfer of a step in the job of a cohort: seconds now, and usually."""
    mates = cohorts.job[: cohorts.size] == cohorts.job[cohort]
    now, usual = (
        cohorts.transfer[: cohorts.size][mates],
        cohorts.usual_transfer[: cohorts.size][mates],
    )
    return float(np.fmin.reduce(now)), float(np.fmin.reduce(usual))


def _least(job: NDArray[np.intp], values: Column) -> Column:
    """For every cohort the least of its job: a stage that waits for another stage does not speak for the links."""
    least = np.full(int(job.max()) + 1, np.inf)
    np.fmin.at(least, job, values)
    return np.asarray(np.where(np.isinf(least), np.nan, least)[job], np.float64)
