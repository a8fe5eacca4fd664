"""The two channels: a clipped CUSUM for lasting slowness, a Bernoulli CUSUM for stalls that come and go."""

import numpy as np
from numpy.typing import NDArray

from ingero.core.robust import group_medians
from ingero.core.verdict.own_times import Column, Index
from ingero.core.verdict.policy import CLIP
from ingero.core.verdict.table import HISTORY, ONSETS, RECENT, SUSPECT, CohortRows, MemberRows

STALL_SCALES = 5.0
STALL_MIN = 0.08  # a stall adds at least this share to a step
STALL_OVER = (
    0.5  # of that: a stall is over below; one that slows down for good near the line does not stall
)
STALL_USUAL = 0.004  # stalls per step that nobody is blamed for
STALL_RATIO = 10.0  # how much more often a staller stalls
STALL_BAR = 9.0
STALL_USUAL_MAX = 0.09
STALL_MEMORY = 0.995  # per step: rates are those of the last 200 steps or so
STALL_CHANCE = 10.0  # e to the minus this: how likely as many stalls may be at the peers' rate (a Poisson tail)
FROZEN = 8 * HISTORY
MAX_SHIFT = (
    0.01  # a refinement that moves the baseline further is a slowdown being learnt, and refused
)
CAP = 1.6  # channels stop at this many bars, so that recovery is seen soon
TINY = 1e-9
MISSES = 7  # one sample in so many may be low in a slowdown that lasts
MAX_LASTING = 28  # with the misses that are allowed, what 32 remembered samples can show
MIN_ONSETS = 4  # before a period is printed


def fast_update(rows: MemberRows, members: Index, residual: Column) -> None:
    """One sample of the fast channel for members with a baseline."""
    excess = residual - rows.bias[members]
    z = np.clip(excess / rows.scale[members], -CLIP, CLIP)
    rows.cusum[members] = np.clip(
        rows.cusum[members] + z - rows.k[members], 0.0, CAP * rows.bar[members]
    )
    rows.recent[members, rows.seen[members] % RECENT] = excess
    rows.above[members] = (rows.above[members] << np.uint32(1)) | (z > rows.k[members])
    _count_far(rows, members, z >= CLIP)


def _count_far(rows: MemberRows, members: Index, is_far: NDArray[np.bool_]) -> None:
    """Long batches, collections and the like: how often, and how often one goes on. Those blamed do not count."""
    ended = members[~is_far & (rows.far_run[members] > 0)]
    counted = ended[rows.state[ended] <= SUSPECT]
    rows.far[counted] += rows.far_run[counted]
    rows.far_again[counted] += rows.far_run[counted] - 1
    rows.far_run[ended] = 0
    rows.far_run[members[is_far]] += 1


def learn(rows: MemberRows, cohorts: CohortRows, members: Index, residual: Column) -> None:
    """Add to the history the baseline is made of; samples under suspicion or during a fleet event are left out.

    When the history is full, the bias alone goes on as a clipped mean until it is FROZEN, because a hundredth of it
    decides how often a healthy member is suspected in a day.
    """
    place = rows.seen[members]
    calm = ~(rows.cusum[members] > 0.3 * rows.bar[members]) & np.isnan(
        cohorts.reason_since[rows.cohort[members]]
    )
    calm |= rows.settled[members] == 0
    room = (place < HISTORY) & calm
    rows.history[members[room], place[room]] = residual[room]
    late = calm & (place >= HISTORY) & (place < FROZEN)
    if late.any():
        chosen, seen = members[late], place[late]
        scale = rows.scale[chosen]
        move = np.clip(residual[late] - rows.bias[chosen], -CLIP * scale, CLIP * scale) / (seen + 1)
        shift = np.clip(rows.shift[chosen] + move, -MAX_SHIFT, MAX_SHIFT)
        rows.bias[chosen] += shift - rows.shift[chosen]
        rows.shift[chosen] = shift


def stall_update(
    rows: MemberRows, cohorts: CohortRows, members: Index, residual: Column, step: NDArray[np.int64]
) -> None:
    """One step of the stall channel: only the onset of a stall counts, and peers who stall as often excuse it."""
    excess = residual - rows.bias[members]
    per_sample = np.maximum(cohorts.per_sample[rows.cohort[members]], 1)
    bar = np.maximum(STALL_SCALES * rows.scale[members] * np.sqrt(per_sample), STALL_MIN)
    onset = (excess > bar) & ~rows.is_stalled[members]
    rows.is_stalled[members] = np.where(rows.is_stalled[members], excess > STALL_OVER * bar, onset)
    rows.stall_steps[members] += 1
    usual = np.clip(
        2 * _typical_stalls(rows, members) / rows.stall_steps[members], STALL_USUAL, STALL_USUAL_MAX
    )
    often = STALL_RATIO * usual
    gain = np.where(onset, np.log(STALL_RATIO), np.log((1 - often) / (1 - usual)))
    rows.stall[members] = np.clip(rows.stall[members] + gain, 0.0, CAP * STALL_BAR)
    rows.stalls[members] = rows.stalls[members] * STALL_MEMORY + onset
    rows.watched[members] = rows.watched[members] * STALL_MEMORY + 1
    hit = members[onset]
    rows.onsets[hit, rows.onset_count[hit] % ONSETS] = step[onset]
    rows.onset_count[hit] += 1
    rows.stall_size[hit] += (excess[onset] - rows.stall_size[hit]) / np.minimum(
        rows.onset_count[hit], ONSETS
    )


def _typical_stalls(rows: MemberRows, members: Index) -> Column:
    """Stalls a peer had so far: the median, or half the mean of the others where most had none yet; never quite zero.

    Half, so that two who stall do not excuse each other; one stall among all peers is what a clean record still allows.
    """
    cohort, stalls = rows.cohort[members], rows.onset_count[members].astype(np.float64)
    sizes = np.bincount(cohort)
    count = sizes[cohort]
    others = (np.bincount(cohort, stalls)[cohort] - stalls) / np.maximum(count - 1, 1)
    typical = group_medians(cohort, stalls, len(sizes))[cohort]
    return np.asarray(np.maximum(typical, others / 2) + 1 / count, np.float64)


def stalls_alone(rows: MemberRows) -> NDArray[np.bool_]:
    """Per member: does it stall clearly more often than its peers? Long batches go round and stall all alike."""
    size = rows.size
    cohort, stalls, watched = rows.cohort[:size], rows.stalls[:size], rows.watched[:size]
    others = np.bincount(cohort, stalls)[cohort] - stalls
    steps = np.bincount(cohort, watched)[cohort] - watched
    others = np.maximum(others, 0.0)
    likely = others + 2 * np.sqrt(others) + 1  # the most their rate may well be
    expected = np.divide(likely * watched, steps, out=np.zeros(size), where=steps > 0.5)
    ratio = np.maximum(stalls, TINY) / np.maximum(expected, TINY)
    surprise = stalls * np.log(ratio) - stalls + expected
    return np.asarray((stalls > expected) & (surprise >= STALL_CHANCE), bool)


def stall_period(rows: MemberRows, member: int) -> int | None:
    """Steps from one stall to the next, where they agree; a period that drifts by up to a fifth still is one."""
    count = int(rows.onset_count[member])
    if count < MIN_ONSETS:
        return None
    onsets = np.sort(rows.onsets[member][: min(count, ONSETS)])
    gaps = np.diff(onsets).astype(np.float64)
    period = float(np.median(gaps))
    turns = np.maximum(
        np.rint(gaps / max(period, 1.0)), 1.0
    )  # a stall that was missed leaves a double gap
    period = float(np.median(gaps / turns))
    spread = float(np.median(np.abs(gaps / turns - period)))
    return round(period) if period >= 2 and spread <= 0.2 * period else None


def is_persistent(rows: MemberRows, samples_between_alarms: Column) -> NDArray[np.bool_]:
    """The channel rose nearly always, per member: a slow node is slow with every batch, a long batch goes round."""
    needed = lasting_samples(rows, samples_between_alarms)
    window = np.left_shift(1, needed + needed // MISSES) - 1
    return np.asarray(np.bitwise_count(rows.above[: rows.size] & window) >= needed, bool)


def lasting_samples(rows: MemberRows, samples_between_alarms: Column) -> Index:
    """How many samples a slowdown must last to be more than what befalls everybody now and then, per member.

    What befalls the peers is taken as a chain: a far sample comes with its share of all, and goes on with the share of
    far ones that followed another. Few of them prove little, so that share starts at a tenth, worth five samples.
    """
    size, cohort = rows.size, rows.cohort[: rows.size]

    def of_peers(column: Column) -> Column:
        own = column[:size]
        return np.asarray(np.bincount(cohort, own)[cohort] - own, np.float64)

    far, again, samples = (
        of_peers(rows.far),
        of_peers(rows.far_again),
        of_peers(rows.seen.astype(np.float64)),
    )
    begin, go_on = (far + 1) / (samples + 1), (again + 0.5) / (far + 5)
    in_a_row = 1 + np.log(begin * samples_between_alarms) / -np.log(go_on)
    in_a_row[rows.is_uneven[:size]] = MAX_LASTING
    return np.clip(np.ceil(in_a_row), 1, MAX_LASTING).astype(np.intp)


def plain_effect(rows: MemberRows, members: Index) -> Column:
    """What all but one of the last residuals reach: a hiccup of three samples makes a median of five, not this."""
    recent = np.sort(rows.recent[members], axis=1)
    return np.where(np.isnan(recent[:, -1]), -np.inf, recent[:, 1])


def recent_effect(rows: MemberRows, members: Index) -> Column:
    """Median of the last residuals above the baseline; -inf until there are enough."""
    recent = rows.recent[members]
    effect = np.median(recent, axis=1)
    return np.where(np.isnan(effect), -np.inf, effect)
