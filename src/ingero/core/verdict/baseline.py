"""Baselines: the residual that is normal for each member.

A baseline is learned after the warm-up, refined twice with a longer history, and then frozen.
Decision limits follow from it.
"""

import numpy as np
from numpy.typing import NDArray

from ingero.core.robust import Column, Index
from ingero.core.verdict.policy import (
    BIAS_CAP,
    CLIP,
    SCALE_FLOOR,
    VerdictPolicy,
    decision_limit,
    drift_allowance,
    samples_between_alarms,
)
from ingero.core.verdict.scale import autocorrelation, qn, thinned
from ingero.core.verdict.table import HEALTHY, HISTORY, CohortRows, MemberRows

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


def due(rows: MemberRows, policy: VerdictPolicy) -> Index:
    """Return members whose history reached the next size.

    The sizes are the warm-up, twice and four times that, and at most HISTORY.
    """
    samples, used = rows.samples[: rows.size], rows.baseline_samples[: rows.size]
    target = np.where(used == 0, policy.warmup_samples, np.minimum(2 * used, HISTORY))
    ready = (samples >= target) & (used < HISTORY) & (rows.state[: rows.size] == HEALTHY)
    return np.flatnonzero(ready)[:PER_TICK]


def compute(rows: MemberRows, cohorts: CohortRows, members: Index, policy: VerdictPolicy) -> None:
    """Compute the baselines of members, then the limits of everybody in their cohorts."""
    first = members[rows.baseline_samples[members] == 0]
    lengths = np.minimum(rows.samples[members], HISTORY)
    for length in np.unique(lengths).tolist():
        _compute_members(rows, members[lengths == length], int(length))
    for cohort in np.unique(rows.cohort[members]).tolist():
        _compute_cohort(rows, cohorts, int(cohort), policy)
    _count_far(rows, first)


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


def _compute_cohort(
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
        history,
        correlation=correlation,
        between_alarms=float(samples_between_alarms(cohorts.sample_s[cohort], policy)),
    )
    if np.isnan(cohorts.baseline_level[cohort]):
        cohorts.baseline_level[cohort] = cohorts.level[cohort]
    raw_bias, is_small = rows.raw_bias[members], cohorts.is_small[cohort]
    cohorts.is_split[cohort] = not is_small and is_split(raw_bias, float(np.median(scale)))
    is_uncapped = is_small | cohorts.is_split[cohort] | rows.is_structural[members]
    rows.bias[members] = rows.shift[members] + np.where(
        is_uncapped, raw_bias, np.clip(raw_bias, -BIAS_CAP, BIAS_CAP)
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


def is_split(biases: NDArray[np.float64], scale: float) -> bool:
    """Tell whether biases form two groups with nothing in between.

    That means that a label is missing, not that a node is broken.
    """
    smaller = max(2, int(np.ceil(SPLIT_SHARE * len(biases))))
    if len(biases) < 2 * smaller:
        return False
    gaps = np.diff(np.sort(biases))[smaller - 1 : len(biases) - smaller]
    return bool(gaps.max() > max(SPLIT_GAP, SPLIT_SCALES * scale))
