"""Fleet events: a cohort that slows down together, loses members or splits blames no node."""

import numpy as np
from numpy.typing import NDArray

from ingero.core.durations import readable_seconds
from ingero.core.robust import Column, Index
from ingero.core.verdict.events.links import transfer_of_job
from ingero.core.verdict.policy import VerdictPolicy
from ingero.core.verdict.table import FEW, STEP_SAMPLES, CohortRows

CLEAR, TOGETHER, COVERAGE, SPLIT, SLOWER, LINKS, STOPPED = range(7)  # CohortRows.event
MIN_COVERAGE = 0.6  # of the expected members; with fewer, nobody is blamed
ALIKE = 0.3  # of the largest effect in a job: what is smaller is something else
COMMON_RISE = 0.045  # of a cohort's own time above its baseline: a job 5 % slower, less noise
WANDERS = 4.0  # a rise must also be this many times what the cohort wanders anyway
STAY_HIGH = 0.7  # of that limit: a rise is not over while the level stays above it
FALLING = 0.8  # of the smoothed level: one that is on its way back is lower than that
COMMON_HOLD_S = 60.0
GROWN = 0.5  # of that rise: steps must have grown by so much
FEW_SAMPLES = 10  # of steps, without which nothing is said about them
LARGE_RISE, LARGE_HOLD_S = 0.15, 30.0
SLOW_SMOOTH = 0.1  # per tick
FOLLOW = 0.002  # per tick: how fast the baseline of a cohort's level follows it
WANDER_SMOOTH = 0.004  # per tick
KNOWN_S = 300.0  # how long a cohort is watched before a small rise is more than its wander
# A job whose own times fall by so much in its first minutes was compiling or filling caches.
SETTLED, YOUNG_S = -0.7, 600.0
CONFIRM_S = 8.0  # a reason must last this long to become an event; nobody is blamed meanwhile
SPLIT_S = 60.0  # the same for a split: ranks of some roles may report later than others
FASTER, FASTER_SCALES = 0.03, 3.0  # of own time: members that seem to be faster by this much
LEFT = 0.1  # of a cohort must seem faster before the others are taken for the slow ones
STAY = 0.8  # of the share that began an event: it does not end before the share falls below this
HOLD_S = 10.0  # an event outlives its reason by this much


def who_moved(
    cohorts: CohortRows,
    cohort: Index,
    judged: NDArray[np.bool_],
    effect: Column,
    scale: Column,
    moving: NDArray[np.bool_],
) -> NDArray[np.bool_]:
    """Tell which members became slower; `effect` compares them with the median of their cohort.

    When most members become slower, the median moves along, and the others seem to be faster than
    they were while the whole cohort is slower. Then those that seem unchanged are the slow ones.
    """
    size = cohorts.size
    faster = judged & (effect < -np.maximum(FASTER, FASTER_SCALES * scale))
    left = np.bincount(cohort[faster], minlength=size)
    if not left.any():
        return moving
    known = np.bincount(cohort[judged], minlength=size)
    total = np.bincount(cohort[faster], effect[faster], minlength=size)
    by = np.divide(-total, left, out=np.zeros(size), where=left > 0)
    rise = np.nan_to_num(cohorts.slow_level[:size] - cohorts.baseline_level[:size])
    most = (left >= np.maximum(2, LEFT * known)) & (rise > 0.5 * by)
    return np.asarray(np.where(most[cohort], judged & ~faster, moving), bool)


def find_moving(
    job: Index, judged: NDArray[np.bool_], effect: Column, margin: Column, gate: float
) -> NDArray[np.bool_]:
    """Tell which members became slower, by more than their noise.

    Those that are slower by little, beside one that is slower by much, did not slow down with it:
    they pass its delay on, or have more of their own compute to show while they wait less.
    """
    slower = judged & (effect > np.maximum(gate, margin))
    most = np.zeros(int(job.max(initial=0)) + 1)
    np.maximum.at(most, job[slower], effect[slower])
    return np.asarray(slower & (effect >= ALIKE * most[job]), bool)


def judge(
    cohorts: CohortRows,
    moving: Column,
    judged: Column,
    live: Column,
    links: NDArray[np.bool_],
    grouped: NDArray[np.bool_],
    *,
    now_s: float,
    policy: VerdictPolicy,
) -> tuple[NDArray[np.int8], NDArray[np.bool_]]:
    """Return the event of each cohort, and whether its members are excused now.

    The columns count members per cohort. Slow `links` excuse nobody: they are reported beside a
    slow rank, not instead of it, and so is a cohort that is slower as a whole. That `grouped`
    cohorts are slower is said by a group already.
    """
    size = cohorts.size
    before = cohorts.event[:size]
    reason = _reasons(cohorts, moving, judged, live, links, now_s, policy)
    over = (before == TOGETHER) & _is_falling(cohorts)  # it is not followed by another event
    reason[(grouped | over) & (reason == SLOWER)] = CLEAR
    since = cohorts.reason_since_s[:size]
    since[:] = np.where(reason != CLEAR, np.where(np.isnan(since), now_s, since), np.nan)
    until = cohorts.event_until_s[:size]
    until[:] = np.where(reason != CLEAR, now_s + HOLD_S, until)
    is_held = (reason == CLEAR) & (before != CLEAR) & (now_s < until)
    hold_s = np.where(reason == SPLIT, SPLIT_S, CONFIRM_S)
    is_young = (reason != CLEAR) & (before == CLEAR) & ~(now_s - since >= hold_s)
    events = np.where(is_held, before, np.where(is_young, CLEAR, reason)).astype(np.int8)
    excused = _excuses(events) | _excuses(reason)
    return _once_per_job(cohorts, events), excused


def _once_per_job(cohorts: CohortRows, events: NDArray[np.int8]) -> NDArray[np.int8]:
    """Keep one event of each kind per job: what stops or slows a job shows in all its cohorts."""
    size, job = cohorts.size, cohorts.job[: cohorts.size]
    for kind in (SLOWER, STOPPED, TOGETHER):
        shown = np.flatnonzero(events == kind)
        if len(shown) < 2:
            continue
        # One that is open already stays; then the oldest cohort shows it.
        is_new = cohorts.event[:size][shown] != kind
        order = shown[np.lexsort((cohorts.first_seen_s[:size][shown], is_new, job[shown]))]
        is_first = np.concatenate(([True], job[order][1:] != job[order][:-1]))
        events[order[~is_first]] = CLEAR
    return events


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
    size, job, expected = (
        cohorts.size,
        cohorts.job[: cohorts.size],
        cohorts.expected[: cohorts.size],
    )
    is_few = expected < FEW
    moving = np.where(is_few, np.bincount(job, moving)[job], moving)
    judged = np.where(is_few, np.bincount(job, judged)[job], judged)
    share = np.divide(moving, judged, out=np.zeros(size), where=judged > 0)
    is_going_on = cohorts.event[:size] == TOGETHER
    limit = np.where(is_going_on, STAY * policy.guard_share, policy.guard_share)
    # In a job of three or four, two slow ranks are named with "not sure" instead.
    together = (share > limit) & (moving >= 2) & ((judged >= FEW) | (moving >= judged))
    coverage = live < MIN_COVERAGE * expected
    slower = _is_slower(cohorts, now_s) & (expected > 1)  # a single member may have more work
    # A slow member moves the few others of its role, too, and explains them.
    slower &= ~(is_few & cohorts.is_restless[:size] & (cohorts.event[:size] == CLEAR))
    # A job that is slower as a whole slows some members down more than others.
    together &= ~(slower & (cohorts.event[:size] == SLOWER))
    split = cohorts.is_split[:size] & (expected > 0)  # not when the job has ended
    return np.select(
        [coverage & (live == 0), split, coverage, together, slower, links],
        [STOPPED, SPLIT, COVERAGE, TOGETHER, SLOWER, LINKS],
        CLEAR,
    ).astype(np.int8)


def _is_slower(cohorts: CohortRows, now_s: float) -> NDArray[np.bool_]:
    """Tell which cohorts are slower as a whole, for some time and by more than they wander.

    Their baselines and their wander are followed slowly; a longer change does not move them much.
    """
    size = cohorts.size
    slow, level = cohorts.slow_level[:size], cohorts.level[:size]
    slow[:] = np.where(np.isnan(slow), level, slow + SLOW_SMOOTH * (level - slow))
    baseline, wander = cohorts.baseline_level[:size], cohorts.wander[:size]
    away = np.nan_to_num(slow - baseline)
    since = cohorts.high_since_s[:size]
    limit = np.maximum(np.log1p(COMMON_RISE), WANDERS * wander)
    high = away > np.where(np.isnan(since), 1.0, STAY_HIGH) * limit
    is_large = away > np.log1p(LARGE_RISE)
    high &= is_large | (now_s - cohorts.first_seen_s[:size] > KNOWN_S)
    since[:] = np.where(high, np.where(np.isnan(since), now_s, since), np.nan)
    hold_s = np.where(is_large, LARGE_HOLD_S, COMMON_HOLD_S)
    is_usual = (cohorts.event[:size] == CLEAR) & ~high
    near = np.clip(away, -3 * wander, 3 * wander) * is_usual
    baseline += FOLLOW * near
    wander[:] = np.sqrt(wander**2 + WANDER_SMOOTH * (near**2 - wander**2) * (near != 0))
    is_young = now_s - cohorts.first_seen_s[:size] < YOUNG_S
    cohorts.has_settled[:size] |= is_young & (away < SETTLED) & _is_step_shorter(cohorts)
    slower = high & (now_s - np.nan_to_num(since, nan=np.inf) >= hold_s)
    # What is said of a job is so in all its cohorts, and steps of before are too old by then.
    job, is_event = cohorts.job[:size], np.isin(cohorts.event[:size], (SLOWER, TOGETHER))
    is_said = np.isin(job, job[is_event])
    for cohort in np.flatnonzero(slower & ~is_said).tolist():
        if not _have_steps_grown(cohorts, cohort, now_s - float(since[cohort])):
            slower[cohort], since[cohort] = False, np.nan
            baseline[cohort] = slow[cohort]  # what own times are from now on
    return np.asarray(slower, bool)


def _is_falling(cohorts: CohortRows) -> NDArray[np.bool_]:
    """Tell which cohorts are on their way back to their baselines."""
    size = cohorts.size
    away = cohorts.level[:size] - cohorts.baseline_level[:size]
    smoothed = cohorts.slow_level[:size] - cohorts.baseline_level[:size]
    return np.asarray(away < FALLING * smoothed, bool)


def _have_steps_grown(cohorts: CohortRows, cohort: int, for_s: float) -> bool:
    """Tell whether steps are longer than before own times rose; true where that is unknown.

    Own times are what is left between collectives. Where these overlap compute, it may double or
    vanish while steps stay as they are.
    """
    count = int(cohorts.step_samples[cohort])
    young = min(int(np.ceil(for_s / max(float(cohorts.sample_s[cohort]), 1e-3))), count)
    first = max(count - STEP_SAMPLES, 0)
    before = cohorts.step_log[cohort, np.arange(first, count - young) % STEP_SAMPLES]
    since = cohorts.step_log[cohort, np.arange(max(first, count - young), count) % STEP_SAMPLES]
    if len(before) < FEW_SAMPLES or len(since) < FEW_SAMPLES:
        return True
    grown = float(np.median(since) - np.median(before))
    return grown >= GROWN * float(np.log1p(COMMON_RISE))


def _is_step_shorter(cohorts: CohortRows) -> NDArray[np.bool_]:
    """Tell where steps are shorter than they were; true where their length is unknown.

    Own times also fall while a rank is slow, because its peers compute as they wait for it.
    """
    size = cohorts.size
    latest = (cohorts.step_samples[:size] - 1) % STEP_SAMPLES
    now = cohorts.step_log[np.arange(size), latest]
    before = cohorts.step_log[np.arange(size), 0]  # young cohorts have not overwritten it
    return np.asarray(np.isnan(now) | (now < before + 0.5 * SETTLED), bool)


def _excuses(events: NDArray[np.int8]) -> NDArray[np.bool_]:
    """Tell which events excuse the members: not slow links, nor a job that is slower as a whole.

    Members of that are compared with each other as before, so one that becomes slow is seen.
    """
    return np.asarray(~np.isin(events, (CLEAR, LINKS, SLOWER)), bool)


def rise_of(cohorts: CohortRows, cohort: int) -> float:
    """Return by what share the own times of a cohort are above their baseline."""
    return float(np.expm1(cohorts.slow_level[cohort] - cohorts.baseline_level[cohort]))


def describe(
    cohorts: CohortRows, cohort: int, event: int, moving: int, live: int, shared: str = ""
) -> str:
    """Return the evidence of a fleet event: why no node is blamed."""
    rise = rise_of(cohorts, cohort)
    expected = int(cohorts.expected[cohort])
    now_s, before_s = transfer_of_job(cohorts, cohort)
    return {
        TOGETHER: f"{moving} of {live} members slowed down together"
        + (f", and what they share is {shared}" if shared else ""),
        COVERAGE: f"only {live} of {expected} members report"
        if live < expected
        else f"members did not report for a while; {live} do now",
        SPLIT: f"cohort split: the {live} members form two groups of different speed, "
        "and no label (GPU model, role) explains it",
        SLOWER: f"all {live} members together are {rise:.0%} slower than they were",
        LINKS: f"even the rank that waits least spends {readable_seconds(now_s)} a step in "
        f"collectives instead of {readable_seconds(before_s)}, and no rank arrives later than "
        "before: links are slow; own times cannot show which ones",
        STOPPED: f"none of {expected} members finished a step lately: the job hangs or has ended",
    }[event]
