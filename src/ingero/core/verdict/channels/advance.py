"""The advance channel: a CUSUM of how long the job waits for one member alone.

Own time is noisy where many small collectives overlap compute. The advance of a member, as a share
of the step, is what its job would gain without it at that place, whatever its peers do meanwhile.
It is known where agents send whole steps. A rank that only passes a delay on, because it waited in
another communicator, has an advance, too: its own time must have grown as well.
"""

import numpy as np
from numpy.typing import NDArray

from ingero.core.robust import Column, Index
from ingero.core.scale import autocorrelation, qn, thinned
from ingero.core.verdict.channels.fast import CAP
from ingero.core.verdict.own_times import SampleBatch
from ingero.core.verdict.policy import (
    CLIP,
    POOLED,
    VerdictPolicy,
    decision_limit,
    drift_allowance,
    samples_between_alarms,
)
from ingero.core.verdict.table import (
    ADVANCE,
    FRAMES,
    HEALTHY,
    HISTORY,
    RECENT,
    CohortRows,
    MemberRows,
)

FLOOR = 0.001  # of a step: no advance is steadier
FIRST = 20  # samples of a first baseline: not every second has a step that was sent whole
CALM = 0.3  # of the decision limit: samples above it are not learned
LASTING, OF = 6, 7  # the channel must have risen in so many of the last samples
UPPER, UPPER_SCALES = 0.9, 1.2816  # a quantile, and how many scales above the median it is
FAR = 3.0  # scales: a larger advance is not learned as usual
WIDER = 1.5  # the scale of a member is at most this many times the cohort's
MAX_SHIFT = 0.01  # of a step
ALWAYS = 5  # kinds of lateness that are known wherever one of them is
QUEUE_STEPS = 50  # steps sent whole, over which the time in the queue is averaged
FEW_STEPS, OUTLIER = 10, 4.0  # after so many, one step moves what is usual by so many noises
EXPLAINED = 0.3  # of the advance: own time must have grown by this part of it


def keep_advances(rows: MemberRows, cohorts: CohortRows, batch: SampleBatch) -> None:
    """Add the advances of one step to the samples being made, and keep how late it began."""
    known = np.isfinite(batch.advance_s) & (batch.span_s > 0)
    if not known.any():
        return
    members = batch.member[known]
    rows.advance_sum[members] += batch.advance_s[known] / batch.span_s[known]
    rows.advance_count[members] += 1
    place = rows.late_frames[members] % FRAMES
    late = (
        *(batch.start_late_s, batch.enqueue_late_s, batch.near_late_s, batch.far_late_s),
        *(batch.advance_s, batch.lateness_s),
    )
    kept = (
        *(rows.start_late_s, rows.enqueue_late_s, rows.near_late_s, rows.far_late_s),
        *(rows.alone_s, rows.mean_late_s),
    )
    for column, values in zip(kept, late, strict=True):
        column[members, place] = values[known]
    rows.queue_s[members, place] = batch.queue_s[known]
    rows.late_at[members, place] = cohorts.step_samples[rows.cohort[members]]
    rows.late_frames[members] += 1
    _follow_usual(rows, cohorts, members, np.stack([each[known] for each in late]).T)
    _follow_queue(rows, cohorts, members, batch.queue_s[known])


def _is_usual(rows: MemberRows, cohorts: CohortRows, members: Index) -> NDArray[np.bool_]:
    """Tell which members are healthy while nobody in their jobs seems to be slow."""
    calm = (rows.state[members] == HEALTHY) & ~(
        rows.advance_cusum[members] > CALM * rows.advance_limit[members]
    )
    calm &= ~(rows.cusum[members] > CALM * rows.limit[members])
    return np.asarray(calm & (cohorts.step_cusum[rows.cohort[members]] == 0.0), bool)


def _follow_usual(
    rows: MemberRows, cohorts: CohortRows, members: Index, late_s: NDArray[np.float64]
) -> None:
    """Learn how late members usually are: hosts differ. `late_s` is [member, kind of lateness]."""
    calm = _is_usual(rows, cohorts, members) & np.isfinite(late_s[:, :ALWAYS]).all(axis=1)
    chosen, late_s = members[calm], late_s[calm]
    before = rows.usual_late_s[chosen]
    smooth = (1 / np.clip(rows.late_frames[chosen], 1, QUEUE_STEPS))[:, None]
    noise = rows.late_noise_s[chosen]
    away = np.nan_to_num(late_s - before)
    # A hiccup of a host says nothing about what is usual.
    away = np.where(rows.late_frames[chosen][:, None] > FEW_STEPS,
                    np.clip(away, -OUTLIER * noise, OUTLIER * noise), away)  # fmt: skip
    rows.usual_late_s[chosen] = np.where(np.isnan(before), late_s, before + smooth * away)
    rows.late_noise_s[chosen] += smooth * (np.abs(away) - noise)


def _follow_queue(rows: MemberRows, cohorts: CohortRows, members: Index, queue_s: Column) -> None:
    """Learn how long collectives wait for the GPU while nobody seems to be slow."""
    calm = _is_usual(rows, cohorts, members) & np.isfinite(queue_s)
    chosen, before = members[calm], rows.baseline_queue_s[members[calm]]
    smooth = 1 / np.clip(rows.late_frames[chosen], 1, QUEUE_STEPS)
    away = np.nan_to_num(queue_s[calm] - before)
    rows.baseline_queue_s[chosen] = np.nan_to_num(before, nan=0.0) + np.where(
        np.isnan(before), queue_s[calm], smooth * away
    )
    rows.queue_noise_s[chosen] += smooth * (np.abs(away) - rows.queue_noise_s[chosen])


def close_advances(
    rows: MemberRows, cohorts: CohortRows, members: Index, policy: VerdictPolicy, first: Column
) -> None:
    """Make samples of the advances since the last ones; learn from them, or feed the channel.

    `first` is after how many samples each member has its first baseline.
    """
    members = members[rows.advance_count[members] > 0]
    if not len(members):
        return
    share = rows.advance_sum[members] / rows.advance_count[members]
    rows.advance_sum[members] = 0.0
    rows.advance_count[members] = 0.0
    warm = rows.advance_learned[members] > 0
    _update(rows, cohorts, members[warm], share[warm])
    place = rows.advance_samples[members]
    calm = ~(rows.advance_cusum[members] > CALM * rows.advance_limit[members])
    calm &= (rows.state[members] == HEALTHY) & np.isnan(
        cohorts.reason_since_s[rows.cohort[members]]
    )
    usual = rows.advance_bias[members] + FAR * rows.advance_scale[members]
    kept = ((calm & ~(share > usual)) | ~warm) & (place < HISTORY)
    rows.advance_history[members[kept], place[kept]] = share[kept]
    rows.advance_samples[members[kept]] += 1
    used, count = rows.advance_learned[members], rows.advance_samples[members]
    target = np.where(used == 0, np.minimum(first[members], FIRST), np.minimum(2 * used, HISTORY))
    due = members[(count >= target) & (used < HISTORY)]
    for cohort in np.unique(rows.cohort[due]).tolist():
        _learn(rows, cohorts, int(cohort), policy)


def _update(rows: MemberRows, cohorts: CohortRows, members: Index, share: Column) -> None:
    excess = share - rows.advance_bias[members]
    z = np.clip(excess / rows.advance_scale[members], -CLIP, CLIP)
    rows.advance_cusum[members] = np.clip(
        rows.advance_cusum[members] + z - rows.advance_k[members],
        0.0,
        CAP * rows.advance_limit[members],
    )
    calm = members[rows.advance_cusum[members] == 0.0]
    rows.advance_rose_at[calm] = cohorts.step_samples[rows.cohort[calm]]
    rows.advance_recent[members, rows.advance_turn[members] % RECENT] = excess
    rows.advance_turn[members] += 1
    rows.advance_rises[members] = (rows.advance_rises[members] << np.uint32(1)) | (
        z > rows.advance_k[members]
    )


def _learn(rows: MemberRows, cohorts: CohortRows, cohort: int, policy: VerdictPolicy) -> None:
    """Compute baselines and limits of a cohort from the histories of its members."""
    everyone = np.flatnonzero(rows.cohort[: rows.size] == cohort)
    count = rows.advance_samples[everyone]
    length = int(np.median(count))
    members = everyone[count >= max(length // 2, 2)]
    if not len(members):
        return
    history = rows.advance_history[members, :length].astype(np.float64)
    middle = np.nanmedian(history, axis=1)
    history = np.where(np.isnan(history), middle[:, None], history)
    # Advances are never negative, so they spread further above their median than below it.
    upper = (np.quantile(history, UPPER, axis=1) - middle) / UPPER_SCALES
    own = np.maximum(qn(thinned(history)), upper)
    # What waits are is much alike in a cohort; a member that is slow already must not hide in it.
    scale = np.maximum(np.clip(own, np.median(own), WIDER * np.median(own)), FLOOR)
    spread = (CLIP * scale)[:, None]
    bias = middle + np.clip(history - middle[:, None], -spread, spread).mean(axis=1)
    related = float(np.clip(np.median(autocorrelation(history)) + 1 / np.sqrt(length), 0.0, 0.9))
    samples = np.full(len(members), float(length))
    # A larger change of the bias means that a slowdown is being learned: refused.
    is_first = rows.advance_learned[members] == 0
    is_near = np.abs(bias - rows.advance_bias[members]) <= MAX_SHIFT
    rows.advance_rose_at[members[is_first]] = cohorts.step_samples[cohort]
    rows.advance_bias[members] = np.where(is_first | is_near, bias, rows.advance_bias[members])
    rows.advance_scale[members] = scale
    rows.advance_k[members] = drift_allowance(scale, samples, related, policy)
    rows.advance_limit[members] = decision_limit(
        rows.advance_k[members],
        samples * min(len(members), POOLED),  # the scale is that of all members
        correlation=related,
        between_alarms=float(samples_between_alarms(cohorts.sample_s[cohort], policy)),
    )
    rows.advance_learned[members] = length


def advance_effect(rows: MemberRows, members: Index) -> Column:
    """Return the mean advance of the last samples above its baseline, -inf until it is known."""
    effect = rows.advance_recent[members].mean(axis=1)
    return np.where(np.isnan(effect), -np.inf, effect)


def is_own_delay(rows: MemberRows, effect: Column) -> NDArray[np.bool_]:
    """Tell whose own time grew with the advance; a rank that only waited elsewhere has none.

    `effect` is the excess of own time, as a logarithm.
    """
    size = rows.size
    advance = np.maximum(advance_effect(rows, np.arange(size)), 0.0)
    own_s = np.exp(np.nan_to_num(rows.baseline_log_own[:size]))
    explained = np.expm1(np.maximum(effect, 0.0)) * own_s
    needed = EXPLAINED * advance * np.nan_to_num(rows.span_s[:size])
    return np.asarray(explained >= needed, bool)


def has_advance(rows: MemberRows, effect: Column, policy: VerdictPolicy) -> NDArray[np.bool_]:
    """Tell for which members the job has waited for long enough to blame them."""
    found = np.zeros(rows.size, bool)
    asked = np.flatnonzero(rows.channel[: rows.size] == ADVANCE)
    if not len(asked):
        return found
    window = np.uint32((1 << OF) - 1)
    lasts = np.bitwise_count(rows.advance_rises[asked] & window) >= LASTING
    found[asked] = lasts & (advance_effect(rows, asked) >= policy.gate)
    return found & is_own_delay(rows, effect)
