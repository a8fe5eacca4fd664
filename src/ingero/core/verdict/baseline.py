"""Baselines: the residual that is normal for each member.

A baseline is learned after the warm-up, refined twice with a longer history, and then frozen.
Decision limits follow from it.
"""

import numpy as np
from numpy.typing import NDArray

from ingero.core.robust import MAD_TO_SIGMA, Column, Index, nan_median
from ingero.core.scale import autocorrelation, qn, thinned
from ingero.core.verdict.channels.stall_rates import note_stalls
from ingero.core.verdict.channels.step import is_job_slower
from ingero.core.verdict.policy import (
    BIAS_CAP,
    CLIP,
    POOLED,
    SCALE_FLOOR,
    VerdictPolicy,
    decision_limit,
    drift_allowance,
    inflation_of,
    samples_between_alarms,
)
from ingero.core.verdict.table import (
    HEALTHY,
    HISTORY,
    RECENT_HISTORY,
    SUSPECT,
    CohortRows,
    MemberRows,
)
from ingero.core.verdict.twins import find_twins

YOUNG = 1800  # samples in which restless first minutes are learned again
CALMER = 0.6  # of the learned scale: chance alone does not make a window of sixty so calm
# Standard errors by which a member must have become faster to start over: where samples scatter,
# chance alone makes many biases larger than BIAS_CAP.
CERTAIN = 3.0
MIN_HISTORY = 20  # samples: fewer do not show how much a member varies
REFINED = 8  # times the first history: what a baseline shows then is more than a slow start
PER_TICK = 512  # baselines computed in one tick; the others wait for the next
FROZEN = 8 * HISTORY  # samples after which the bias does not change any more
MAX_SHIFT = 0.01  # a larger change of the bias means that a slowdown is being learned: refused
CALM = 0.3  # of the decision limit: samples above it are not learned
MAX_CORRELATION = 0.9
UNEVEN = 0.7  # of the effect looked for: where samples spread wider, batches differ
SPLIT_GAP = 0.03
SPLIT_SCALES = 2.0
SPLIT_SHARE = 0.10  # of the members on the smaller side, and never fewer than two


def learn(rows: MemberRows, cohorts: CohortRows, members: Index, residual: Column) -> None:
    """Add one sample of each member to its history, or adjust its bias when that is full.

    Samples under suspicion or during a fleet event are left out. When the history is full, the
    bias continues as a clipped mean until it is FROZEN: a hundredth of it decides how often a
    healthy member is suspected in a day.
    """
    place = rows.samples[members]
    calm = ~(rows.cusum[members] > CALM * rows.limit[members])
    calm &= np.isnan(cohorts.reason_since_s[rows.cohort[members]])
    calm |= rows.baseline_samples[members] == 0
    has_room = (place < HISTORY) & calm
    rows.history[members[has_room], place[has_room]] = residual[has_room]
    late = calm & (place >= HISTORY) & (place < FROZEN)
    if late.any():
        chosen, seen = members[late], place[late]
        spread = CLIP * rows.scale[chosen]
        move = np.clip(residual[late] - rows.bias[chosen], -spread, spread) / (seen + 1)
        shift = np.clip(rows.shift[chosen] + move, -MAX_SHIFT, MAX_SHIFT)
        rows.bias[chosen] += shift - rows.shift[chosen]
        rows.shift[chosen] = shift


def relearn(rows: MemberRows, cohorts: CohortRows, members: Index) -> None:
    """Learn again what was learned in restless first minutes; `members` just closed a sample.

    A cohort starts over when two windows in a row were much calmer than its baselines, and a single
    member when it is no longer as slow as it was at first (it was compiling), or when it became
    slow while its first baseline was learned. This happens in the first half hour only: later a
    calm spell says little about the job.
    """
    young = members[(rows.samples[members] % RECENT_HISTORY == 0) & (rows.samples[members] < YOUNG)]
    young = young[rows.baseline_samples[young] > 0]
    # While somebody is slow, the others wait, and own times of all are unlike before.
    young = young[~is_job_slower(cohorts)[rows.cohort[young]]][: 8 * PER_TICK]
    if not len(young):
        return
    latest = rows.latest[young].astype(np.float64)
    middle = np.nanmedian(latest, axis=1)
    spread = MAD_TO_SIGMA * np.nanmedian(np.abs(latest - middle[:, None]), axis=1)
    is_over = (rows.raw_bias[young] > BIAS_CAP) & (middle < 0.5 * rows.raw_bias[young])
    is_over &= rows.raw_bias[young] - middle > CERTAIN * _bias_error(rows, young)
    again = young[(is_over & (rows.state[young] == HEALTHY)) | _is_stuck(rows, young, spread)]
    for cohort in np.unique(rows.cohort[young]).tolist():
        mine = rows.cohort[young] == cohort
        learned = float(np.median(rows.scale[young[mine]]))
        is_calmer = float(np.median(spread[mine])) < CALMER * learned and learned > SCALE_FLOOR
        cohorts.calm_windows[cohort] = cohorts.calm_windows[cohort] + 1 if is_calmer else 0
        everyone = np.flatnonzero(rows.cohort[: rows.size] == cohort)
        if cohorts.calm_windows[cohort] >= 2 and (rows.state[everyone] == HEALTHY).all():
            cohorts.calm_windows[cohort] = 0
            cohorts.baseline_level[cohort] = np.nan
            again = np.union1d(again, everyone)
    _start_over(rows, again)


def _bias_error(rows: MemberRows, members: Index) -> Column:
    """Return the standard error of the difference between a bias and the mean of a window."""
    related = float(np.clip(np.median(rows.correlation[members]), 0.0, MAX_CORRELATION))
    shares = 1 / np.maximum(rows.baseline_samples[members], 1) + 1 / RECENT_HISTORY
    return np.asarray(inflation_of(related) * rows.own_scale[members] * np.sqrt(shares))


def _is_stuck(rows: MemberRows, members: Index, spread: Column) -> NDArray[np.bool_]:
    """Tell who is suspected ever since its first baseline, which holds calm and slow samples.

    Both together seem to scatter so much that nothing is certain, and while it is suspected nothing
    else is learned.
    """
    used = rows.baseline_samples[members]
    # Whoever is healthy has a full history by then.
    is_first = (rows.samples[members] >= 4 * used) & (used < HISTORY)
    is_first &= rows.state[members] == SUSPECT
    return np.asarray(is_first & (spread < CALMER * rows.own_scale[members]), bool)


def forget_start(rows: MemberRows, cohorts: CohortRows) -> None:
    """Let cohorts that have settled after a slow start learn anew, from nothing."""
    settled = np.flatnonzero(cohorts.has_settled[: cohorts.size])
    if not len(settled):
        return
    cohorts.has_settled[settled] = False
    cohorts.baseline_level[settled] = np.nan
    cohorts.slow_level[settled] = np.nan
    rows.forget(np.flatnonzero(np.isin(rows.cohort[: rows.size], settled)))


def _start_over(rows: MemberRows, members: Index) -> None:
    """Forget the baselines of members, with their last residuals as the new history."""
    if not len(members):
        return
    latest, last_log_own = rows.latest[members], rows.last_log_own[members]
    rows.forget(members)
    rows.latest[members] = latest
    rows.last_log_own[members] = last_log_own
    rows.history[members, :RECENT_HISTORY] = latest
    rows.samples[members] = RECENT_HISTORY


def excuse_rise(rows: MemberRows, members: Index, samples: int) -> None:
    """Excuse by how much members are slower, in these last samples, where their whole job is.

    Nothing slows all members of a job down alike. Those that it slowed down least are not expected
    to be faster from now on: they would seem slow as soon as it is over.
    """
    places = rows.samples[members][:, None] - 1 - np.arange(min(samples, RECENT_HISTORY))
    latest = rows.latest[members[:, None], places % RECENT_HISTORY]
    rise = np.clip(np.nanmedian(latest, axis=1) - rows.bias[members], 0.0, BIAS_CAP)
    rows.excused[members] += rise
    _shift_bias(rows, members, rise)
    rows.cusum[members] = 0.0


def end_excuse(rows: MemberRows, members: Index) -> None:
    """Expect of members what was usual before their whole job became slower."""
    _shift_bias(rows, members, -rows.excused[members])
    rows.excused[members] = 0.0


def adopt_excuse(rows: MemberRows, members: Index) -> None:
    """Take what members of a slower job were excused for as usual from now on."""
    rows.adopted[members] += rows.excused[members]
    rows.excused[members] = 0.0


def _shift_bias(rows: MemberRows, members: Index, by: Column) -> None:
    rows.bias[members] += by
    rows.recent_excess[members] -= by[:, None]


def first_history(rows: MemberRows, cohorts: CohortRows, policy: VerdictPolicy) -> Column:
    """Return after how many samples each member has its first baseline.

    They are fewer where a sample is a long step: nobody waits half an hour for sixty steps.
    """
    sample_s = np.maximum(cohorts.sample_s[rows.cohort[: rows.size]], 1.0)
    fewer = MIN_HISTORY + (policy.warmup_samples - MIN_HISTORY) / sample_s
    return np.asarray(np.ceil(fewer), np.float64)


def is_refined(rows: MemberRows, cohorts: CohortRows, policy: VerdictPolicy) -> NDArray[np.bool_]:
    """Tell whose baseline has its full history: what it shows is more than a slow start."""
    full = np.minimum(REFINED * first_history(rows, cohorts, policy), HISTORY)
    return np.asarray(rows.baseline_samples[: rows.size] >= full, bool)


def due(rows: MemberRows, cohorts: CohortRows, policy: VerdictPolicy) -> Index:
    """Return members whose history reached the next size.

    The sizes are the warm-up, twice and four times that, and at most HISTORY.
    """
    samples, used = rows.samples[: rows.size], rows.baseline_samples[: rows.size]
    first = first_history(rows, cohorts, policy)
    target = np.where(used == 0, first, np.minimum(2 * used, HISTORY))
    ready = (samples >= target) & (used < HISTORY) & (rows.state[: rows.size] == HEALTHY)
    return np.flatnonzero(ready)[:PER_TICK]


def compute(rows: MemberRows, cohorts: CohortRows, members: Index, policy: VerdictPolicy) -> None:
    """Compute the baselines of members, then the limits of everybody in their cohorts."""
    find_twins(rows, cohorts, members)
    first = members[rows.baseline_samples[members] == 0]
    # Who is slow from the next sample on was not before it.
    rows.rose_at[first] = rows.stall_rose_at[first] = cohorts.step_samples[rows.cohort[first]]
    lengths = np.minimum(rows.samples[members], HISTORY)
    for length in np.unique(lengths).tolist():
        _compute_members(rows, members[lengths == length], int(length))
    for cohort in np.unique(rows.cohort[members]).tolist():
        compute_cohort(rows, cohorts, int(cohort), policy)
    _count_far(rows, first)
    _count_watched(rows, cohorts, first)


def _compute_members(rows: MemberRows, members: Index, length: int) -> None:
    """Compute bias, scale and correlation of members whose histories have the same length."""
    history = rows.history[members, :length].astype(np.float64)
    correlation = autocorrelation(
        np.where(np.isnan(history), np.nanmedian(history, axis=1, keepdims=True), history)
    )
    history = filled(history)
    middle, scale = np.median(history, axis=1), qn(thinned(history))
    spread = (CLIP * np.maximum(scale, SCALE_FLOOR))[:, None]
    # The CUSUM adds up clipped values, so the bias is the clipped mean. With skewed noise that
    # differs from the median.
    bias = middle + np.clip(history - middle[:, None], -spread, spread).mean(axis=1)
    is_first = rows.baseline_samples[members] == 0
    accepted = is_first | (np.abs(bias - rows.raw_bias[members]) <= MAX_SHIFT)
    rows.baseline_samples[members] = length
    chosen = members[accepted]
    rows.raw_bias[chosen] = bias[accepted]
    rows.own_scale[chosen] = scale[accepted]
    rows.correlation[chosen] = correlation[accepted]


def filled(history: NDArray[np.float64]) -> NDArray[np.float64]:
    """Fill samples left out under suspicion with others of the same member, in place.

    The median in their place would make the member look steadier than it is.
    """
    unknown = np.isnan(history)
    for row in np.flatnonzero(unknown.any(axis=1)).tolist():
        values = history[row][~unknown[row]]
        history[row, unknown[row]] = np.resize(values, int(unknown[row].sum()))
    return history


def compute_cohort(
    rows: MemberRows, cohorts: CohortRows, cohort: int, policy: VerdictPolicy
) -> None:
    """Compute the decision limits and biases of one cohort.

    A member's scale is at least the cohort's median, and its correlation is the cohort's.
    """
    size = rows.size
    members = np.flatnonzero((rows.cohort[:size] == cohort) & (rows.baseline_samples[:size] > 0))
    own, history = rows.own_scale[members], rows.baseline_samples[members].astype(np.float64)
    scale = np.maximum(np.maximum(own, np.median(own)), SCALE_FLOOR)
    correlation = _cohort_correlation(rows, members)
    rows.scale[members] = scale
    rows.is_uneven[members] = scale > UNEVEN * policy.min_effect
    rows.k[members] = drift_allowance(scale, history, correlation, policy)
    rows.limit[members] = decision_limit(
        rows.k[members],
        history * min(len(members), POOLED),  # the scale is at least that of all members
        correlation=correlation,
        between_alarms=float(samples_between_alarms(cohorts.sample_s[cohort], policy)),
    )
    if np.isnan(cohorts.baseline_level[cohort]):
        cohorts.baseline_level[cohort] = cohorts.level[cohort]
    raw_bias, is_small = rows.raw_bias[members], cohorts.is_small[cohort]
    cohorts.is_split[cohort] = not is_small and is_split(raw_bias, float(np.median(scale)))
    is_uncapped = is_small | cohorts.is_split[cohort] | rows.is_structural[members]
    rows.bias[members] = (
        rows.shift[members]
        + rows.excused[members]
        + rows.adopted[members]
        + np.where(is_uncapped, raw_bias, np.clip(raw_bias, -BIAS_CAP, BIAS_CAP))
    )


def _cohort_correlation(rows: MemberRows, members: Index) -> float:
    """Return the median autocorrelation, raised by the bias and error of a short record."""
    count = float(rows.baseline_samples[members].min())
    raw = float(np.median(rows.correlation[members]))
    doubt = (1 + 3 * raw) / count + 1 / np.sqrt(count * len(members))
    return float(np.clip(raw + doubt, 0.0, MAX_CORRELATION))


def _count_far(rows: MemberRows, members: Index) -> None:
    """Count the far samples of first histories, which the fast channel could not see yet.

    No member is suspected before its first baseline, so these histories are complete.
    """
    far = rows.history[members] > (rows.bias[members] + CLIP * rows.scale[members])[:, None]
    rows.far[members] = far.sum(axis=1)
    rows.far_again[members] = (far[:, 1:] & far[:, :-1]).sum(axis=1)


def _count_watched(rows: MemberRows, cohorts: CohortRows, members: Index) -> None:
    """Count the steps of first histories as watched, and far ones among them as stalls.

    A stall is further out than a far sample, where a sample is a single step. It is no longer than
    what the longest step of the job was too long by.
    """
    members = members[cohorts.frames_per_sample[rows.cohort[members]] == 1]
    rows.stall_steps[members] = rows.samples[members]
    away = rows.history[members].astype(np.float64) - rows.bias[members][:, None]
    who, at = np.nonzero(away > CLIP * rows.scale[members][:, None])
    if not len(who):
        return
    steps_s = np.exp(cohorts.step_log[rows.cohort[members[who]]].astype(np.float64))
    most_s = np.fmax.reduce(steps_s, axis=1) - nan_median(steps_s, 1)
    size_s = np.exp(rows.baseline_log_own[members[who]]) * np.expm1(away[who, at])
    note_stalls(rows, cohorts, members[who], np.fmin(size_s, most_s))


def is_split(biases: NDArray[np.float64], scale: float) -> bool:
    """Tell whether biases form two groups with nothing in between.

    That means that a label is missing, not that a node is broken.
    """
    smaller = max(2, int(np.ceil(SPLIT_SHARE * len(biases))))
    if len(biases) < 2 * smaller:
        return False
    gaps = np.diff(np.sort(biases))[smaller - 1 : len(biases) - smaller]
    return bool(gaps.max() > max(SPLIT_GAP, SPLIT_SCALES * scale))
