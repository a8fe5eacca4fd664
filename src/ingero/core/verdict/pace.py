"""The pace of a cohort: how many of its steps make one sample of about a second.

It is found in the first seconds and followed afterwards. The first steps of a job may be much
slower than the others (it compiles, it fills caches) or faster (a trial run before the training).
Agents send the means of several short steps, and of more of them where steps became a little
shorter: then fewer reports come per second, and the job has the same pace as before.
"""

import numpy as np
from numpy.typing import NDArray

from ingero.core.robust import Column, Index
from ingero.core.verdict.baseline import compute_cohort
from ingero.core.verdict.members import MemberRegistry
from ingero.core.verdict.table import HEALTHY, CohortRows

SAMPLE_S = 1.0  # steps are averaged into samples of about this length
PACE_S = 5.0  # how long a cohort is watched before its steps per sample are chosen, and again
FEW_FRAMES = 3  # with fewer, nothing is said about a pace
NEAR, AWAY = 1.3, 2.0  # times as many, or as few, steps per second: another pace
REGROUPED = 1.7  # times: groups of steps change by two; reports that come in bursts by less
FASTER, SLOWER = 2, 4  # in a row with another pace, before it is followed; pauses seem slow
WINDOWS = 6  # in a row with another pace, before baselines are given up for it
# The same for a cohort that is no longer young: a phase of short steps is not a new job.
YOUNG_S, MANY_WINDOWS = 600.0, 60

Ints = NDArray[np.int64]


def follow_pace(registry: MemberRegistry, present: Index, now_s: float) -> None:
    """Choose the steps per sample of cohorts that just had a step, and change them if need be."""
    cohorts = registry.cohorts
    is_new = np.isnan(cohorts.window_s[present])
    if is_new.any():
        begun = present[is_new]
        cohorts.first_frame_s[begun] = cohorts.window_s[begun] = now_s
        cohorts.frames[begun] = cohorts.window_frame[begun] = 0
    elapsed = now_s - cohorts.window_s[present]
    is_known = cohorts.frames_per_sample[present] > 0
    due = elapsed >= PACE_S
    due &= cohorts.frames[present] - cohorts.window_frame[present] >= FEW_FRAMES
    if not due.any():
        return
    chosen = present[due]
    step_s = elapsed[due] / (cohorts.frames[chosen] - cohorts.window_frame[chosen])
    cohorts.window_frame[chosen], cohorts.window_s[chosen] = cohorts.frames[chosen], now_s
    wanted = np.maximum(np.rint(SAMPLE_S / step_s), 1).astype(np.int64)
    known = is_known[due]
    _set_pace(registry, chosen[~known], wanted[~known], step_s[~known])
    before = np.maximum(cohorts.frames_per_sample[chosen], 1)
    is_away = known & ((wanted >= NEAR * before) | (NEAR * wanted <= before))
    cohorts.paced_away[chosen] = np.where(is_away, cohorts.paced_away[chosen] + 1, 0)
    for at in np.flatnonzero(is_away).tolist():
        _change_pace(registry, int(chosen[at]), int(wanted[at]), float(step_s[at]), now_s)


def _set_pace(registry: MemberRegistry, cohort: Index, wanted: Ints, step_s: Column) -> None:
    cohorts = registry.cohorts
    cohorts.frames_per_sample[cohort] = wanted
    cohorts.sample_s[cohort] = step_s * wanted
    cohorts.paced_span_s[cohort] = [_span_s(cohorts, each) for each in cohort.tolist()]


def _span_s(cohorts: CohortRows, cohort: int) -> float:
    """Return the length of the last steps, NaN where it is not known."""
    known = cohorts.span_s[cohort][~np.isnan(cohorts.span_s[cohort])]
    return float(np.median(known)) if len(known) else np.nan


def _change_pace(
    registry: MemberRegistry, cohort: int, wanted: int, step_s: float, now_s: float
) -> None:
    """Follow another pace when it has lasted, or soon where nothing was learned yet.

    What was learned from samples of fewer steps is void. Samples of fewer steps than before are
    noisier, but a rank that makes the whole job slow must not be learned as normal: baselines stay,
    with a wider scale.
    """
    rows, cohorts = registry.rows, registry.cohorts
    before = int(cohorts.frames_per_sample[cohort])
    longer = _span_s(cohorts, cohort) / cohorts.paced_span_s[cohort]
    if 1 / NEAR < longer < NEAR:  # the steps are as long as they were: only their means changed
        is_other = not before / REGROUPED < wanted < before * REGROUPED
        if is_other and cohorts.paced_away[cohort] >= FASTER:
            cohorts.paced_away[cohort] = 0
            _set_pace(registry, np.array([cohort]), np.array([wanted]), np.array([step_s]))
        return
    is_young = now_s - cohorts.first_frame_s[cohort] < YOUNG_S
    lasting = WINDOWS if is_young or wanted < before else MANY_WINDOWS
    members = np.flatnonzero(rows.cohort[: rows.size] == cohort)
    judged = members[rows.baseline_samples[members] > 0]
    few = FASTER if wanted > before else SLOWER
    if cohorts.paced_away[cohort] < (lasting if len(judged) else few):
        return
    if len(judged) and before / AWAY < wanted < before * AWAY:
        return  # not worth what was learned
    if wanted > before and not (rows.state[members] == HEALTHY).all():
        return
    cohorts.paced_away[cohort] = 0
    _set_pace(registry, np.array([cohort]), np.array([wanted]), np.array([step_s]))
    if wanted > before or not len(judged):
        cohorts.baseline_level[cohort] = np.nan
        rows.forget(members)
        return
    for column in (rows.own_scale, rows.advance_scale):
        column[judged] *= np.sqrt(before / wanted)
    compute_cohort(rows, cohorts, cohort, registry.policy)
