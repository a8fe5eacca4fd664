"""The fleet guard: when a cohort moves together, loses its members or falls apart in two, no node is to blame."""

import numpy as np
from numpy.typing import NDArray

from ingero.core.verdict.policy import VerdictPolicy
from ingero.core.verdict.samples import Column
from ingero.core.verdict.table import CohortRows

CLEAR, TOGETHER, COVERAGE, SPLIT, SLOWER = range(5)
MIN_COVERAGE = 0.6
COMMON_RISE = 0.15  # of the cohort's median own time over what it was
COMMON_HOLD_S = 30.0
CONFIRM_S = 8.0  # a reason lasts this long before it is news; nobody is blamed meanwhile
STAY = 0.8  # of the share that began it: a guard does not flap
HOLD_S = 10.0  # a guard outlives its reason by this much


def judge(
    cohorts: CohortRows, moving: Column, judged: Column, live: Column, *, now_s: float, policy: VerdictPolicy
) -> tuple[NDArray[np.int8], NDArray[np.bool_]]:
    """The guard of every cohort, and whether its members may not be blamed now; counts are members per cohort."""
    size = cohorts.size
    share = np.divide(moving, judged, out=np.zeros(size), where=judged > 0)
    line = np.where(cohorts.guard[:size] == TOGETHER, STAY * policy.guard_share, policy.guard_share)
    together = (share > line) & (moving >= 2)
    coverage = live < MIN_COVERAGE * cohorts.expected[:size]
    high = cohorts.level[:size] - cohorts.usual[:size] > np.log1p(COMMON_RISE)
    since = cohorts.high_since[:size]
    since[:] = np.where(high, np.where(np.isnan(since), now_s, since), np.nan)
    slower = high & (now_s - np.nan_to_num(since, nan=np.inf) >= COMMON_HOLD_S)
    now = np.select(
        [cohorts.is_split[:size], coverage, together, slower], [SPLIT, COVERAGE, TOGETHER, SLOWER], CLEAR
    ).astype(np.int8)
    begun = cohorts.reason_since[:size]
    begun[:] = np.where(now != CLEAR, np.where(np.isnan(begun), now_s, begun), np.nan)
    cohorts.guard_until[:size] = np.where(now != CLEAR, now_s + HOLD_S, cohorts.guard_until[:size])
    before = cohorts.guard[:size]
    held = (now == CLEAR) & (before != CLEAR) & (now_s < cohorts.guard_until[:size])
    young = (now != CLEAR) & (before == CLEAR) & ~(now_s - begun >= CONFIRM_S)
    guards = np.where(held, before, np.where(young, CLEAR, now)).astype(np.int8)
    return guards, (guards != CLEAR) | (now != CLEAR)


def describe(kind: int, rise: float, moving: int, live: int, expected: int) -> str:
    """Why nobody is blamed, for the evidence of a fleet event."""
    return {
        TOGETHER: f"{moving} of {live} members slowed down together",
        COVERAGE: f"only {live} of {expected} members report",
        SPLIT: f"cohort split: two groups of the {live} members differ and no label (GPU model, role) explains it",
        SLOWER: f"all {live} members together are {rise:.0%} slower than they were",
    }[kind]
