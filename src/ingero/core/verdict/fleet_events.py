"""The fleet guard: when a cohort moves together, loses its members or falls apart in two, no node is to blame."""

import numpy as np
from numpy.typing import NDArray

from ingero.core.verdict.links import links_of
from ingero.core.verdict.own_times import Column
from ingero.core.verdict.policy import VerdictPolicy
from ingero.core.verdict.table import CohortRows

CLEAR, TOGETHER, COVERAGE, SPLIT, SLOWER, LINKS, STOPPED = range(7)
MIN_COVERAGE = 0.6
COMMON_RISE = 0.15  # of the cohort's median own time over what it was
COMMON_HOLD_S = 30.0
CONFIRM_S = 8.0  # a reason lasts this long before it is news; nobody is blamed meanwhile
STAY = 0.8  # of the share that began it: a guard does not flap
HOLD_S = 10.0  # a guard outlives its reason by this much


def judge(
    cohorts: CohortRows,
    moving: Column,
    judged: Column,
    live: Column,
    links: NDArray[np.bool_],
    *,
    now_s: float,
    policy: VerdictPolicy,
) -> tuple[NDArray[np.int8], NDArray[np.bool_]]:
    """The guard of every cohort, and whether its members may not be blamed now; counts are members per cohort.

    Slow `links` excuse nobody: they are told beside a slow rank, not instead.
    """
    size = cohorts.size
    share = np.divide(moving, judged, out=np.zeros(size), where=judged > 0)
    line = np.where(cohorts.guard[:size] == TOGETHER, STAY * policy.guard_share, policy.guard_share)
    together = (share > line) & (moving >= 2)
    coverage = live < MIN_COVERAGE * cohorts.expected[:size]
    high = cohorts.level[:size] - cohorts.usual[:size] > np.log1p(COMMON_RISE)
    since = cohorts.high_since[:size]
    since[:] = np.where(high, np.where(np.isnan(since), now_s, since), np.nan)
    slower = high & (now_s - np.nan_to_num(since, nan=np.inf) >= COMMON_HOLD_S)
    split = cohorts.is_split[:size] & (cohorts.expected[:size] > 0)  # not of a job that is over
    now = np.select(
        [coverage & (live == 0), split, coverage, together, slower, links],
        [STOPPED, SPLIT, COVERAGE, TOGETHER, SLOWER, LINKS],
        CLEAR,
    ).astype(np.int8)
    begun = cohorts.reason_since[:size]
    begun[:] = np.where(now != CLEAR, np.where(np.isnan(begun), now_s, begun), np.nan)
    cohorts.guard_until[:size] = np.where(now != CLEAR, now_s + HOLD_S, cohorts.guard_until[:size])
    before = cohorts.guard[:size]
    held = (now == CLEAR) & (before != CLEAR) & (now_s < cohorts.guard_until[:size])
    young = (now != CLEAR) & (before == CLEAR) & ~(now_s - begun >= CONFIRM_S)
    guards = np.where(held, before, np.where(young, CLEAR, now)).astype(np.int8)
    excusing = [(kind != CLEAR) & (kind != LINKS) for kind in (guards, now)]
    return guards, excusing[0] | excusing[1]


def describe(cohorts: CohortRows, cohort: int, kind: int, moving: int, live: int) -> str:
    """Why nobody is blamed, for the evidence of a fleet event."""
    rise = float(np.expm1(cohorts.level[cohort] - cohorts.usual[cohort]))
    expected = int(cohorts.expected[cohort])
    now_s, before_s = links_of(cohorts, cohort)
    return {
        TOGETHER: f"{moving} of {live} members slowed down together",
        COVERAGE: f"only {live} of {expected} members report",
        SPLIT: f"cohort split: two groups of the {live} members differ and no label (GPU model, role) explains it",
        SLOWER: f"all {live} members together are {rise:.0%} slower than they were",
        LINKS: f"even the rank that waits least spends {now_s * 1e3:.1f} ms a step in collectives, not "
        f"{before_s * 1e3:.1f} ms as before, and nobody comes later: links are slow; own times cannot tell which",
        STOPPED: f"none of {expected} members finished a step lately: the job hangs, or it has ended",
    }[kind]
