"""Baselines: what is normal for a member, learnt once, refined twice, then frozen."""

import numpy as np
from numpy.typing import NDArray

from ingero.core.verdict.channels import MAX_SHIFT
from ingero.core.verdict.own_times import Index
from ingero.core.verdict.policy import (
    BIAS_CAP,
    CLIP,
    SCALE_FLOOR,
    VerdictPolicy,
    decision_bar,
    drift_allowance,
    samples_between_alarms,
)
from ingero.core.verdict.scale import autocorrelation, qn, thinned
from ingero.core.verdict.table import HEALTHY, HISTORY, CohortRows, MemberRows

PER_TICK = 512  # members settled in one tick: the rest waits for the next
MAX_CORRELATION = 0.9
UNEVEN = 0.7  # of the effect looked for: where samples spread wider, batches differ
SPLIT_GAP = 0.03
SPLIT_SCALES = 2.0
SPLIT_SHARE = 0.10  # of the members on the smaller side, and never fewer than two


def due(rows: MemberRows, policy: VerdictPolicy) -> Index:
    """Members whose history reached the next size: first warm-up, then twice and four times that, at most HISTORY."""
    seen, settled = rows.seen[: rows.size], rows.settled[: rows.size]
    target = np.where(settled == 0, policy.warmup_samples, np.minimum(2 * settled, HISTORY))
    ready = (seen >= target) & (settled < HISTORY) & (rows.state[: rows.size] == HEALTHY)
    return np.flatnonzero(ready)[:PER_TICK]


def settle(rows: MemberRows, cohorts: CohortRows, members: Index, policy: VerdictPolicy) -> None:
    """Make or refine the baseline of members and then the bars of everybody in their cohorts."""
    first = members[rows.settled[members] == 0]
    lengths = np.minimum(rows.seen[members], HISTORY)
    for length in np.unique(lengths).tolist():
        _settle_equal(rows, members[lengths == length], int(length))
    for cohort in np.unique(rows.cohort[members]).tolist():
        _settle_cohort(rows, cohorts, int(cohort), policy)
    _count_far(rows, first)


def _settle_equal(rows: MemberRows, members: Index, length: int) -> None:
    history = rows.history[members, :length].astype(np.float64)
    correlation = autocorrelation(
        np.where(np.isnan(history), np.nanmedian(history, axis=1, keepdims=True), history)
    )
    history = filled(history)
    middle, scale = np.median(history, axis=1), qn(thinned(history))
    spread = CLIP * np.maximum(scale, SCALE_FLOOR)
    # the clipped mean, because the CUSUM adds up clipped values: with skewed noise it is not the median
    bias = middle + np.clip(history - middle[:, None], -spread[:, None], spread[:, None]).mean(
        axis=1
    )
    first = rows.settled[members] == 0
    kept = first | (np.abs(bias - rows.raw_bias[members]) <= MAX_SHIFT)
    rows.settled[members] = length
    chosen = members[kept]
    rows.raw_bias[chosen] = bias[kept]
    rows.own_scale[chosen] = scale[kept]
    rows.correlation[chosen] = correlation[kept]


def filled(history: NDArray[np.float64]) -> NDArray[np.float64]:
    """Samples left out under suspicion are filled from the others of their member: a median there would look calm."""
    unknown = np.isnan(history)
    for row in np.flatnonzero(unknown.any(axis=1)).tolist():
        values = history[row][~unknown[row]]
        history[row, unknown[row]] = np.resize(values, int(unknown[row].sum()))
    return history


def _settle_cohort(
    rows: MemberRows, cohorts: CohortRows, cohort: int, policy: VerdictPolicy
) -> None:
    """Bars of one cohort. The scale is never below the cohort's, the correlation is the cohort's."""
    everyone = np.flatnonzero(
        (rows.cohort[: rows.size] == cohort) & (rows.settled[: rows.size] > 0)
    )
    own = rows.own_scale[everyone]
    scale = np.maximum(np.maximum(own, np.median(own)), SCALE_FLOOR)
    count = float(rows.settled[everyone].min())
    raw = float(np.median(rows.correlation[everyone]))
    doubt = (1 + 3 * raw) / count + 1 / np.sqrt(
        count * len(everyone)
    )  # bias and standard error of a short record
    correlation = float(np.clip(raw + doubt, 0.0, MAX_CORRELATION))
    rows.scale[everyone] = scale
    rows.is_uneven[everyone] = scale > UNEVEN * policy.min_effect
    rows.k[everyone] = drift_allowance(
        scale, rows.settled[everyone].astype(np.float64), correlation, policy
    )
    rows.bar[everyone] = decision_bar(
        rows.k[everyone],
        rows.settled[everyone].astype(np.float64),
        correlation=correlation,
        between_alarms=float(samples_between_alarms(cohorts.sample_s[cohort], policy)),
    )
    raw_bias = rows.raw_bias[everyone]
    if np.isnan(cohorts.usual[cohort]):
        cohorts.usual[cohort] = cohorts.level[cohort]
    cohorts.is_split[cohort] = not cohorts.is_alone[cohort] and is_split(
        raw_bias, float(np.median(scale))
    )
    excused = cohorts.is_alone[cohort] | cohorts.is_split[cohort] | rows.is_structural[everyone]
    rows.bias[everyone] = rows.shift[everyone] + np.where(
        excused, raw_bias, np.clip(raw_bias, -BIAS_CAP, BIAS_CAP)
    )


def _count_far(rows: MemberRows, members: Index) -> None:
    """What the channel would have seen while there was none: the first history knows no suspicion and is complete."""
    far = rows.history[members] > (rows.bias[members] + CLIP * rows.scale[members])[:, None]
    rows.far[members] = far.sum(axis=1)
    rows.far_again[members] = (far[:, 1:] & far[:, :-1]).sum(axis=1)


def is_split(biases: NDArray[np.float64], scale: float) -> bool:
    """Two groups with nothing in between: a label is missing, not a node broken."""
    smaller = max(2, int(np.ceil(SPLIT_SHARE * len(biases))))
    if len(biases) < 2 * smaller:
        return False
    gaps = np.diff(np.sort(biases))[smaller - 1 : len(biases) - smaller]
    return bool(gaps.max() > max(SPLIT_GAP, SPLIT_SCALES * scale))
