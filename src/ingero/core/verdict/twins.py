"""Twins: the two members of a role, compared with each other where that is steadier.

Two replicas of a pipeline stage wait for the same steps. What keeps one of them waiting longer
now and then does so for both, so that the own times of each scatter widely around its own baseline
and hardly around those of the other one. Which of them is slow, if they differ, their arrivals at
common collectives show.
"""

import numpy as np

from ingero.core.robust import Column, Index
from ingero.core.scale import qn
from ingero.core.verdict.table import RECENT_HISTORY, CohortRows, MemberRows

ENOUGH = 0.8  # of the samples of both must be those of the same seconds
STEADIER = 0.5  # of the scale of either: two that vary by themselves differ by 1.4 of it


def note_apart(rows: MemberRows, cohorts: CohortRows, members: Index, residual: Column) -> None:
    """Remember by how much the two members of a role differ, where both just closed a sample."""
    is_asked = cohorts.is_small[rows.cohort[members]]
    order = np.flatnonzero(is_asked)
    order = order[np.lexsort((members[order], rows.cohort[members[order]]))]
    cohort = rows.cohort[members[order]]
    first = np.flatnonzero(cohort[1:] == cohort[:-1])
    chosen, apart = cohort[first], residual[order[first]] - residual[order[first + 1]]
    cohorts.apart[chosen, cohorts.apart_samples[chosen] % RECENT_HISTORY] = apart
    cohorts.apart_samples[chosen] += 1


def find_twins(rows: MemberRows, cohorts: CohortRows, members: Index) -> None:
    """Compare the two members of a role with each other from now on, if they vary alike.

    `members` are those whose baselines are computed next. Twins learn theirs anew.
    """
    asked = np.unique(rows.cohort[members])
    asked = asked[cohorts.is_small[asked] & ~cohorts.is_twinned[asked]]
    for cohort in asked[cohorts.expected[asked] == 2].tolist():
        pair = np.flatnonzero(rows.cohort[: rows.size] == cohort)
        count, seen = (
            int(min(rows.samples[pair].min(), RECENT_HISTORY)),
            cohorts.apart_samples[cohort],
        )
        if len(pair) != 2 or seen < ENOUGH * count or np.isnan(rows.lateness_s[pair]).any():
            continue
        count = int(min(count, seen))
        apart = cohorts.apart[cohort, (seen - count + np.arange(count)) % RECENT_HISTORY]
        alone = qn(rows.latest[pair, :count].astype(np.float64))
        if qn(apart[None, :].astype(np.float64))[0] <= STEADIER * alone.min():
            cohorts.is_twinned[cohort] = True
            rows.lone_scale[pair] = alone
            rows.samples[pair], rows.baseline_samples[pair] = count, 0
            rows.history[pair, :count] = rows.latest[pair, :count] = np.stack([apart, -apart])


def against_twins(
    rows: MemberRows, cohorts: CohortRows, members: Index, log_own: Column, residual: Column
) -> Column:
    """Return residuals, those of twins against each other, NaN where one of them is missing.

    Members are ordered by cohort, and nobody is there twice.
    """
    cohort = rows.cohort[members]
    is_twin = cohorts.is_twinned[cohort]
    if not is_twin.any():
        return residual
    away = log_own - rows.baseline_log_own[members]
    same = np.concatenate(([False], cohort[1:] == cohort[:-1], [False]))
    theirs = np.where(same[:-1], np.roll(away, 1), np.where(same[1:], np.roll(away, -1), np.nan))
    return np.where(is_twin, away - theirs, residual)
