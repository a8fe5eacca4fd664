"""The stall channel: a Bernoulli CUSUM of steps that finds stalls which come and go."""

import numpy as np
from numpy.typing import NDArray

from ingero.core.periods import missed_period
from ingero.core.robust import MAD_TO_SIGMA, Column, Index, group_medians
from ingero.core.verdict.channels.fast import CAP
from ingero.core.verdict.table import FEW, ONSETS, CohortRows, MemberRows

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
STALL_RATE = 0.004  # stalls per step that nobody is blamed for
STALL_RATE_MAX = 0.09
# How much more often a member with a fault stalls; where all stall often, it need not be as much.
STALL_RATIO, STALL_OFTEN, STALL_LEAST = 10.0, 0.08, 3.0
STALL_LIMIT = 9.0
STALL_MEMORY = 0.995  # weight per step: rates are those of about the last 200 steps
# As many stalls at the peers' rate must be less likely than exp(-STALL_CHANCE), a Poisson tail.
STALL_CHANCE = 10.0
AS_LONG = 0.5  # of a member's own stalls: those of peers that are so long count as much
MIN_ONSETS = 4  # needed before a period is reported
FEW_STALLS = 2.5  # recent ones: from three on, it is asked whether they are all that is slow
STEADY = 0.4  # of the mean excess: the median step of a member that is always slow has more
TINY = 1e-9

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

    Stalls count for less where the peers stall as often. Twins are compared with their own past, as
    both of them wait for the one that stalls.
    """
    is_twin = cohorts.is_twinned[rows.cohort[members]]
    excess = residual - np.where(is_twin, 0.0, rows.bias[members])
    limit = _stall_limit(rows, cohorts, members, excess, span_s, own_s)
    onset = _follow_stalls(rows, members, excess, limit)
    rows.stall_steps[members] += 1
    rate = np.clip(
        2 * _typical_stalls(rows, members) / rows.stall_steps[members], STALL_RATE, STALL_RATE_MAX
    )
    faulty = np.maximum(np.minimum(STALL_RATIO * rate, STALL_OFTEN), STALL_LEAST * rate)
    gain = np.where(onset, np.log(faulty / rate), np.log((1 - faulty) / (1 - rate)))
    rows.stall_cusum[members] = np.clip(rows.stall_cusum[members] + gain, 0.0, CAP * STALL_LIMIT)
    calm = members[rows.stall_cusum[members] == 0.0]
    rows.stall_rose_at[calm] = cohorts.step_samples[rows.cohort[calm]]
    rows.recent_stalls[members] = rows.recent_stalls[members] * STALL_MEMORY + onset
    rows.recent_steps[members] = rows.recent_steps[members] * STALL_MEMORY + 1
    hit = members[onset]
    rows.onsets[hit, rows.onset_count[hit] % ONSETS] = step[onset]
    rows.onset_count[hit] += 1
    rows.stall_size[hit] += (excess[onset] - rows.stall_size[hit]) / np.minimum(
        rows.onset_count[hit], ONSETS
    )


def _stall_limit(
    rows: MemberRows,
    cohorts: CohortRows,
    members: Index,
    excess: Column,
    span_s: Column,
    own_s: Column,
) -> Column:
    """Return the excess of own time that makes a step a stall of its member."""
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
    took = (excess > STALL_MIN) & _took_it(cohorts, cohort, excess, span_s, own_s)
    limit = np.where(took, np.minimum(limit, STALL_JUST * excess), limit)
    return np.asarray(limit, np.float64)


def _took_it(
    cohorts: CohortRows, cohort: Index, excess: Column, span_s: Column, own_s: Column
) -> NDArray[np.bool_]:
    """Tell who took most of what its step was too long by, more than any other member did."""
    usual_s = np.exp(cohorts.step_base[cohort])
    too_long_s = span_s - usual_s
    if not (too_long_s > LONG_STEP * usual_s).any():
        return np.zeros(len(cohort), bool)
    over_s = own_s * -np.expm1(-excess)  # than usual beside its peers
    most_s = np.full(cohorts.size, -np.inf)
    np.maximum.at(most_s, cohort, over_s)
    spread_s = np.full(cohorts.size, np.inf)
    for each in np.unique(cohort[too_long_s > LONG_STEP * usual_s]).tolist():
        last_s = cohorts.span_s[each][~np.isnan(cohorts.span_s[each])]
        if len(last_s):
            spread_s[each] = MAD_TO_SIGMA * np.median(np.abs(last_s - np.median(last_s)))
    took = (over_s == most_s[cohort]) & (over_s >= TOOK * too_long_s)
    return np.asarray(took & (too_long_s > LONG_SPREADS * spread_s[cohort]), bool)


def _follow_stalls(
    rows: MemberRows, members: Index, excess: Column, limit: Column
) -> NDArray[np.bool_]:
    """Update which members are in a stall, and return for which of them it begins now."""
    stalled = rows.is_stalled[members]
    onset = (excess > limit) & ~stalled
    rows.is_stalled[members] = np.where(stalled, excess > STALL_OVER * limit, onset)
    return np.asarray(onset, bool)


def _typical_stalls(rows: MemberRows, members: Index) -> Column:
    """Return how many stalls a peer had so far: the median, but at least half the others' mean.

    It is half the mean so that two members that stall do not excuse each other, and the median of
    two would be half of their own. One stall among all peers is added, so that the result is never
    zero.
    """
    cohort, stalls = rows.cohort[members], rows.onset_count[members].astype(np.float64)
    sizes = np.bincount(cohort)
    count = sizes[cohort]
    others = (np.bincount(cohort, stalls)[cohort] - stalls) / np.maximum(count - 1, 1)
    typical = group_medians(cohort, stalls, len(sizes))[cohort]
    typical = np.where(count == 2, others, np.maximum(typical, others / 2))
    return np.asarray(typical + 1 / count, np.float64)


def stalls_more_than_peers(rows: MemberRows, cohorts: CohortRows, asked: Index) -> Mask:
    """Tell which of these members stall clearly more often than their peers.

    Long batches move from rank to rank and stall all of them alike. Where a role has few members,
    the other ranks of the job tell how often anybody stalls, and its own ones must stall less.
    """
    is_few = cohorts.expected[rows.cohort[asked]] < FEW
    expected = _stalls_expected(rows, rows.cohort[: rows.size], asked, is_upper=~is_few)
    if is_few.any():
        few, every = asked[is_few], np.ones(int(is_few.sum()), bool)
        of_job = _stalls_expected(rows, rows.job[: rows.size], few, is_upper=every)
        expected[is_few] = np.maximum(expected[is_few], of_job)
    stalls, expected = rows.recent_stalls[asked], np.maximum(expected, TINY)
    surprise = stalls * np.log(np.maximum(stalls, TINY) / expected) - stalls + expected
    return np.asarray((stalls > expected) & (surprise >= STALL_CHANCE), bool)


def _stalls_expected(rows: MemberRows, group: Index, asked: Index, is_upper: Mask) -> Column:
    """Return how often members would stall in their steps at the rate of the others of their group.

    Hiccups of peers that are far shorter than their own stalls count for less. `is_upper` asks for
    the highest rate that fits what they show.
    """
    expected = np.zeros(len(asked))
    for each in np.unique(group[asked]).tolist():
        chosen = np.flatnonzero(group[asked] == each)
        mine, everyone = asked[chosen], np.flatnonzero(group == each)
        steps = float(rows.recent_steps[everyone].sum()) - rows.recent_steps[mine]
        others = _stalls_alike(rows, everyone, mine)
        rate = others + np.where(is_upper[chosen], 2 * np.sqrt(others) + 1, 0.0)
        known = steps > 0.5
        expected[chosen[known]] = rate[known] * rows.recent_steps[mine[known]] / steps[known]
    return expected


def _stalls_alike(rows: MemberRows, everyone: Index, mine: Index) -> Column:
    """Return how many stalls the others had, the short ones for less; `mine` are in `everyone`."""
    order = everyone[np.argsort(rows.stall_size[everyone], kind="stable")]
    size, stalls = np.expm1(rows.stall_size[order]), rows.recent_stalls[order]
    own = np.expm1(rows.stall_size[mine])
    as_long = AS_LONG * np.maximum(own, TINY)
    at = np.searchsorted(size, as_long)  # from here on they are as long
    short, long = (np.concatenate(([0.0], np.cumsum(each))) for each in (size * stalls, stalls))
    alike = long[-1] - long[at] + short[at] / as_long
    own_stalls = np.where(own >= as_long, rows.recent_stalls[mine], 0.0)
    return np.asarray(np.maximum(alike - own_stalls, 0.0), np.float64)


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
    """Return the steps from one stall to the next, or None where these vary by over a fifth."""
    count = int(rows.onset_count[member])
    if count < MIN_ONSETS:
        return None
    return missed_period(np.sort(rows.onsets[member][: min(count, ONSETS)]).tolist())
