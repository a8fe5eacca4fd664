"""The stall channel: which steps are stalls of a member, and a CUSUM of those that come and go."""

import numpy as np
from numpy.typing import NDArray

from ingero.core.periods import missed_period
from ingero.core.robust import MAD_TO_SIGMA, Column, Index
from ingero.core.verdict.channels.stall_rates import TINY, follow_run, note_stalls
from ingero.core.verdict.table import ONSETS, CohortRows, MemberRows

STALL_SCALES = 5.0
# The same for the slowest member in a step that is too long for the whole job: somebody stalls, so
# less shows who. A step is too long by this share, and by so many standard deviations of steps.
SHOWN_SCALES, LONG_STEP, LONG_NOISE = 3.0, 0.15, 3.0
# Where own times vary so much that no scale is reached, seconds show it: the slowest member took
# this part of what a step was too long by. Single steps are compared with the last ones.
TOOK, LONG_SPREADS = 0.5, 3.0
STALL_MIN = 0.08  # a stall adds at least this share to a step
# A stall ends below this share of its limit. A member that is slow for good, near the limit, then
# counts as one long stall, not as many.
STALL_OVER = 0.5
STALL_JUST = 0.999  # of an excess: a limit that it is just above
STALL_MEMORY = 0.995  # weight per step: rates are those of about the last 200 steps
MIN_ONSETS = 4  # needed before a period is reported where gaps between stalls differ
FEW_STALLS = 2.5  # recent ones: from three on, it is asked whether they are all that is slow
STEADY = 0.4  # of the mean excess: the median step of a member that is always slow has more

Mask = NDArray[np.bool_]


def update_stalls(
    rows: MemberRows,
    cohorts: CohortRows,
    members: Index,
    residual: Column,
    step: NDArray[np.int64],
    span_s: Column,
    own_s: Column,
) -> None:
    """Add one step of each of these members. Only the onset of a stall counts.

    Twins are compared with their own past, as both of them wait for the one that stalls.
    """
    is_twin = cohorts.is_twinned[rows.cohort[members]]
    excess = residual - np.where(is_twin, 0.0, rows.bias[members])
    limit, least_s = _stall_limits(rows, cohorts, members, excess, span_s, own_s)
    onset = _follow_stalls(rows, members, excess, limit)
    rows.stall_steps[members] += 1
    rows.recent_stalls[members] = rows.recent_stalls[members] * STALL_MEMORY + onset
    rows.recent_steps[members] = rows.recent_steps[members] * STALL_MEMORY + 1
    other = members[~onset]
    rows.stall_cusum[other] = np.maximum(rows.stall_cusum[other] + rows.stall_drift[other], 0.0)
    rows.run_steps[other] += 1
    if onset.any():
        hit = members[onset]
        size_s = np.maximum(_beyond_usual_s(rows, hit, excess[onset], own_s[onset]), TINY)
        _keep_stalls(rows, hit, excess[onset], step[onset])
        rows.least_stall_s[hit] = np.minimum(least_s[onset], size_s)
        note_stalls(rows, cohorts, hit, size_s)
        follow_run(rows, cohorts, hit, size_s)
    calm = members[rows.stall_cusum[members] == 0.0]
    rows.stall_rose_at[calm] = cohorts.step_samples[rows.cohort[calm]]


def _keep_stalls(rows: MemberRows, hit: Index, excess: Column, step: NDArray[np.int64]) -> None:
    """Keep when stalls began and how large they are."""
    rows.onsets[hit, rows.onset_count[hit] % ONSETS] = step
    rows.onset_count[hit] += 1
    rows.stall_size[hit] += (excess - rows.stall_size[hit]) / np.minimum(
        rows.onset_count[hit], ONSETS
    )


def _beyond_usual_s(rows: MemberRows, hit: Index, excess: Column, own_s: Column) -> Column:
    """Return how much longer than usual the own time of members was, and than that of their peers.

    Peers compute while they wait for somebody, so that theirs falls; a member may seem to stall.
    """
    peers_s = own_s * np.exp(-excess)
    return own_s - np.fmax(peers_s, np.exp(rows.baseline_log_own[hit]))


def _stall_limits(
    rows: MemberRows,
    cohorts: CohortRows,
    members: Index,
    excess: Column,
    span_s: Column,
    own_s: Column,
) -> tuple[Column, Column]:
    """Return the excess of own time that makes a step a stall of its member, and the shortest one.

    The shortest stall that is recognised is in seconds.
    """
    cohort = rows.cohort[members]
    wider = np.sqrt(np.maximum(cohorts.frames_per_sample[cohort], 1))  # one step than a sample
    longer = np.maximum(LONG_STEP, LONG_NOISE * cohorts.step_noise[cohort] * wider)
    is_long = span_s > np.exp(cohorts.step_base[cohort]) * (1 + longer)  # not where it is unknown
    scales = np.full(len(members), STALL_SCALES)
    if is_long.any():
        most = np.full(cohorts.size, -np.inf)
        np.maximum.at(most, cohort, excess)
        scales[is_long & (excess == most[cohort])] = SHOWN_SCALES
    is_twin = cohorts.is_twinned[cohort]
    scale = np.where(is_twin, rows.lone_scale[members], rows.scale[members])
    limit = np.maximum(scales * scale * wider, STALL_MIN)
    least_s = own_s * np.exp(-excess) * np.expm1(limit)
    took_s = _taken_s(cohorts, cohort, excess, span_s, own_s)
    took = (excess > STALL_MIN) & np.isfinite(took_s)
    limit = np.where(took, np.minimum(limit, STALL_JUST * excess), limit)
    return np.asarray(limit, np.float64), np.fmin(least_s, np.where(took, took_s, np.inf))


def _taken_s(
    cohorts: CohortRows, cohort: Index, excess: Column, span_s: Column, own_s: Column
) -> Column:
    """Return the least time that shows who took most of what a step was too long by.

    It is infinite for all but the member that took it, more than any other one did.
    """
    usual_s = np.exp(cohorts.step_base[cohort])
    too_long_s = span_s - usual_s
    taken_s = np.full(len(cohort), np.inf)
    if not (too_long_s > LONG_STEP * usual_s).any():
        return taken_s
    over_s = own_s * -np.expm1(-excess)  # than usual beside its peers
    most_s = np.full(cohorts.size, -np.inf)
    np.maximum.at(most_s, cohort, over_s)
    spread_s = np.full(cohorts.size, np.inf)
    for each in np.unique(cohort[too_long_s > LONG_STEP * usual_s]).tolist():
        last_s = cohorts.span_s[each][~np.isnan(cohorts.span_s[each])]
        if len(last_s):
            spread_s[each] = MAD_TO_SIGMA * np.median(np.abs(last_s - np.median(last_s)))
    least_s = np.maximum(LONG_SPREADS * spread_s[cohort], LONG_STEP * usual_s)
    took = (over_s == most_s[cohort]) & (over_s >= TOOK * too_long_s)
    took &= too_long_s > LONG_SPREADS * spread_s[cohort]
    taken_s[took] = TOOK * least_s[took]
    return taken_s


def _follow_stalls(
    rows: MemberRows, members: Index, excess: Column, limit: Column
) -> NDArray[np.bool_]:
    """Update which members are in a stall, and return for which of them it begins now."""
    stalled = rows.is_stalled[members]
    onset = (excess > limit) & ~stalled
    rows.is_stalled[members] = np.where(stalled, excess > STALL_OVER * limit, onset)
    return np.asarray(onset, bool)


def is_now_and_then(rows: MemberRows, cohorts: CohortRows, member: int) -> bool:
    """Tell whether the median of the last steps is hardly slow, while their mean is.

    This is asked of the own times of the member and of the steps of its job.
    """
    usual = float(np.exp(rows.baseline_log_own[member]))
    if rows.recent_stalls[member] < FEW_STALLS or not _comes_and_goes(rows.own_s[member], usual):
        return False
    return do_steps_stall(rows, cohorts, member)


def do_steps_stall(rows: MemberRows, cohorts: CohortRows, member: int) -> bool:
    """Tell whether single steps of the job are slow; true where their length is unknown.

    Hosts that run ahead wait for their GPUs every few steps, so own times come and go also where
    every step is slow.
    """
    cohort = int(rows.cohort[member])
    usual_s = float(np.exp(cohorts.step_base[cohort]))
    spans_s = cohorts.span_s[cohort]
    return bool(np.isnan(usual_s) or np.isnan(spans_s).all()) or _comes_and_goes(spans_s, usual_s)


def _comes_and_goes(lengths: Column, usual: float) -> bool:
    known = lengths[~np.isnan(lengths)]
    return bool(len(known) and np.median(known) - usual < STEADY * (known.mean() - usual))


def stall_period(rows: MemberRows, member: int) -> int | None:
    """Return the steps from one stall to the next, or None where these vary by over a fifth.

    Three stalls show it only where both gaps are equal.
    """
    count = int(rows.onset_count[member])
    onsets = np.sort(rows.onsets[member][: min(count, ONSETS)])
    if count < MIN_ONSETS:
        gaps = np.diff(onsets)
        is_equal = len(gaps) == MIN_ONSETS - 2 and np.ptp(gaps) <= 1 and gaps.min() > 1
        return round(float(gaps.mean())) if is_equal else None
    return missed_period(onsets.tolist())
