"""Fleet events: a cohort that slows down together, loses members or splits blames no node."""

import numpy as np
from numpy.typing import NDArray

from ingero.core.robust import Column
from ingero.core.verdict.links import transfer_of_job
from ingero.core.verdict.policy import VerdictPolicy
from ingero.core.verdict.table import CohortRows

CLEAR, TOGETHER, COVERAGE, SPLIT, SLOWER, LINKS, STOPPED = range(7)  # CohortRows.event
MIN_COVERAGE = 0.6  # of the expected members; with fewer, nobody is blamed
COMMON_RISE = 0.15  # of a cohort's own time above its baseline
COMMON_HOLD_S = 30.0
CONFIRM_S = 8.0  # a reason must last this long to become an event; nobody is blamed meanwhile
STAY = 0.8  # of the share that began an event: it does not end before the share falls below this
HOLD_S = 10.0  # an event outlives its reason by this much


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
    """Return the event of each cohort, and whether its members are excused now.

    The columns count members per cohort. Slow `links` excuse nobody: they are reported beside a
    slow rank, not instead of it.
    """
    size = cohorts.size
    before = cohorts.event[:size]
    reason = _reasons(cohorts, moving, judged, live, links, now_s, policy)
    since = cohorts.reason_since_s[:size]
    since[:] = np.where(reason != CLEAR, np.where(np.isnan(since), now_s, since), np.nan)
    until = cohorts.event_until_s[:size]
    until[:] = np.where(reason != CLEAR, now_s + HOLD_S, until)
    is_held = (reason == CLEAR) & (before != CLEAR) & (now_s < until)
    is_young = (reason != CLEAR) & (before == CLEAR) & ~(now_s - since >= CONFIRM_S)
    events = np.where(is_held, before, np.where(is_young, CLEAR, reason)).astype(np.int8)
    return events, _excuses(events) | _excuses(reason)


def _reasons(
    cohorts: CohortRows,
    moving: Column,
    judged: Column,
    live: Column,
    links: NDArray[np.bool_],
    now_s: float,
    policy: VerdictPolicy,
) -> NDArray[np.int8]:
    """Return the reason for an event that each cohort shows at this moment."""
    size = cohorts.size
    share = np.divide(moving, judged, out=np.zeros(size), where=judged > 0)
    is_going_on = cohorts.event[:size] == TOGETHER
    limit = np.where(is_going_on, STAY * policy.guard_share, policy.guard_share)
    together = (share > limit) & (moving >= 2)
    coverage = live < MIN_COVERAGE * cohorts.expected[:size]
    high = cohorts.level[:size] - cohorts.baseline_level[:size] > np.log1p(COMMON_RISE)
    since = cohorts.high_since_s[:size]
    since[:] = np.where(high, np.where(np.isnan(since), now_s, since), np.nan)
    slower = high & (now_s - np.nan_to_num(since, nan=np.inf) >= COMMON_HOLD_S)
    split = cohorts.is_split[:size] & (cohorts.expected[:size] > 0)  # not when the job has ended
    return np.select(
        [coverage & (live == 0), split, coverage, together, slower, links],
        [STOPPED, SPLIT, COVERAGE, TOGETHER, SLOWER, LINKS],
        CLEAR,
    ).astype(np.int8)


def _excuses(events: NDArray[np.int8]) -> NDArray[np.bool_]:
    return np.asarray((events != CLEAR) & (events != LINKS), bool)


def describe(cohorts: CohortRows, cohort: int, event: int, moving: int, live: int) -> str:
    """Return the evidence of a fleet event: why no node is blamed."""
    rise = float(np.expm1(cohorts.level[cohort] - cohorts.baseline_level[cohort]))
    expected = int(cohorts.expected[cohort])
    now_s, before_s = transfer_of_job(cohorts, cohort)
    return {
        TOGETHER: f"{moving} of {live} members slowed down together",
        COVERAGE: f"only {live} of {expected} members report",
        SPLIT: f"cohort split: the {live} members form two groups of different speed, "
        "and no label (GPU model, role) explains it",
        SLOWER: f"all {live} members together are {rise:.0%} slower than they were",
        LINKS: f"even the rank that waits least spends {now_s * 1e3:.1f} ms a step in collectives "
        f"instead of {before_s * 1e3:.1f} ms, and no rank arrives later than before: links are "
        "slow; own times cannot show which ones",
        STOPPED: f"none of {expected} members finished a step lately: the job hangs or has ended",
    }[event]
