"""How often members stall by chance, and the sequential test of those that stall more often.

What a member's peers showed says how often anybody stalls for as long. The channel is a CUSUM of
the likelihood that the member stalls more often than that: a long stall that no peer ever had
proves much, and a hiccup that all of them have proves nothing.
"""

import numpy as np
from numpy.typing import NDArray

from ingero.core.robust import Column, Index
from ingero.core.verdict.policy import VerdictPolicy, samples_between_alarms
from ingero.core.verdict.table import FEW, STALLS, CohortRows, MemberRows

WINDOW = 1000  # steps: older stalls of peers say little about how their hosts are now
AS_LONG = 0.5  # of a stall: those of peers that are so long count as much
# Per step. What happened once on a host may soon happen again, so that nobody is known to stall
# less often, and one stall proves nothing.
LEAST_RATE, MOST_RATE = 1e-4, 0.09
# A fault stalls its rank in every so many steps at least: rarer, punctual ones are work of the job.
RAREST = 50
OFTEN, OFTENER = 0.08, 3.0  # per step, and times the rate of the peers: what faults do at least
MOST_OFTEN = 0.15  # per step: as often as a fault is expected to stall where peers hardly do
CAP = 25.0  # of the channel, so that a recovery shows soon
TINY = 1e-9


def note_stalls(rows: MemberRows, cohorts: CohortRows, hit: Index, size_s: Column) -> None:
    """Keep the last stalls of each cohort: whose, how long, and when."""
    order = np.argsort(rows.cohort[hit], kind="stable")
    hit, size_s, cohort = hit[order], size_s[order], rows.cohort[hit[order]]
    is_first = np.concatenate(([True], cohort[1:] != cohort[:-1]))
    turn = np.arange(len(hit)) - np.maximum.accumulate(np.where(is_first, np.arange(len(hit)), 0))
    place = (cohorts.stall_count[cohort] + turn) % STALLS
    cohorts.stall_s[cohort, place] = size_s
    cohorts.stall_member[cohort, place] = hit
    cohorts.stall_frame[cohort, place] = cohorts.frames[cohort]
    np.add.at(cohorts.stall_count, cohort, 1)


def stall_rate(
    rows: MemberRows, cohorts: CohortRows, asked: Index, size_s: Column, least_s: Column
) -> Column:
    """Return how often members would stall for so long, per step, if they were as their peers.

    `least_s` are the shortest stalls that would have been seen. Where a role has few members, the
    other ranks of the job tell how often anybody stalls, and its own ones must stall less.
    """
    cohort = rows.cohort[asked]
    near = least_s / size_s
    count, rate = _rates(rows, cohorts, asked, cohort[:, None], size_s, near)
    for at in np.flatnonzero(cohorts.expected[cohort] < FEW).tolist():
        job = np.flatnonzero(cohorts.job[: cohorts.size] == cohorts.job[cohort[at]])
        one = slice(at, at + 1)
        of_job = _rates(rows, cohorts, asked[one], job[None, :], size_s[one], near[one])[1]
        rate[at] = max(count[at], of_job[0])
    return np.clip(rate, LEAST_RATE, MOST_RATE)


def _rates(
    rows: MemberRows,
    cohorts: CohortRows,
    asked: Index,
    beside: Index,
    size_s: Column,
    near: Column,
) -> tuple[Column, Column]:
    """Return how often the others in the cohorts `beside` stall for as long, and at most do.

    The most that fits what they show is two standard errors more. Stalls are assumed to be the
    rarer the longer they are: where all others are shorter, one as long is rarer than the longest
    of them in proportion. Heavier tails are not known; all that a job lost would be its longest
    stalls.
    """
    shape = (len(asked), beside.shape[1] * STALLS)
    theirs = cohorts.stall_s[beside].reshape(shape).astype(np.float64)
    age = (cohorts.frames[beside][..., None] - cohorts.stall_frame[beside]).reshape(shape)
    counts = age < WINDOW
    counts &= cohorts.stall_member[beside].reshape(shape) != asked[:, None]
    is_long = counts & (theirs >= AS_LONG * size_s[:, None])
    short_s = np.where(counts & ~is_long, theirs, 0.0).max(axis=1)
    count = is_long.sum(axis=1).astype(np.float64)
    near = np.clip(np.maximum(short_s / size_s, near), 0.0, 1.0)
    # A ring that is full says nothing about what was before its oldest stall.
    is_full = cohorts.stall_count[beside] >= STALLS
    oldest = cohorts.stall_count[beside] % STALLS
    since = cohorts.frames[beside] - cohorts.stall_frame[beside, oldest]
    watched = np.minimum(rows.stall_steps[asked][:, None], np.where(is_full, since + 1, WINDOW))
    steps = np.maximum((watched * np.maximum(cohorts.expected[beside], 1.0)).sum(axis=1), 1.0)
    return count / steps, (count + 2 * np.sqrt(count) + near) / steps


def weigh(rate: Column) -> tuple[Column, Column]:
    """Return what a stall and a step without one add to the channel, as logarithms.

    A fault stalls its rank so often that stalls every RAREST steps do not raise the channel.
    """
    often = np.full(len(rate), MOST_OFTEN)
    for _ in range(3):
        often = np.log(np.maximum(often / rate, 1.0)) / RAREST
        often = np.maximum(np.maximum(often, OFTEN), OFTENER * rate)
    return np.log(often / rate), np.log((1 - often) / (1 - rate))


def follow_run(rows: MemberRows, cohorts: CohortRows, hit: Index, size_s: Column) -> None:
    """Add stalls that begin now to the channel of their members.

    The stalls of one fault are much alike. So a run of stalls has the length of its first one, and
    much shorter ones are no part of it; it begins anew where one that is longer says more by itself
    than all before it together.
    """
    before, run_s = rows.stall_cusum[hit], rows.run_s[hit]
    goes_on = (before > 0) & (size_s >= AS_LONG * run_s)
    is_short = (before > 0) & ~goes_on
    least_s = rows.least_stall_s[hit]
    alone, other_alone = weigh(stall_rate(rows, cohorts, hit, size_s, least_s))
    stall, other = alone, other_alone
    if goes_on.any():
        known_s = np.where(goes_on, run_s, size_s)
        stall, other = weigh(stall_rate(rows, cohorts, hit, known_s, least_s))
    begins = ~goes_on & ~is_short | (goes_on & (alone > before + stall))
    drift = rows.stall_drift[hit]
    added = np.where(is_short, before + drift, before + stall)
    rows.stall_cusum[hit] = np.clip(np.where(begins, alone, added), 0.0, CAP)
    rows.stall_drift[hit] = np.select([begins, is_short], [other_alone, drift], other)
    rows.run_s[hit] = np.where(begins, size_s, run_s)
    rows.run_steps[hit] = np.where(begins, 1.0, rows.run_steps[hit] + 1)
    rows.run_stalls[hit] = np.where(begins, 1.0, rows.run_stalls[hit] + ~is_short)


def stall_limit(cohorts: CohortRows, policy: VerdictPolicy) -> Column:
    """Return the decision limit of each cohort, from the false-alarm budget.

    A run of stalls begins by chance with the rate of the peers, and then reaches the limit with a
    chance of exp(gain of its first stall - limit) at most: together the rate of a fault times
    exp(-limit), per step.
    """
    size = cohorts.size
    per_sample = np.maximum(cohorts.frames_per_sample[:size], 1)
    steps = samples_between_alarms(cohorts.sample_s[:size], policy) * per_sample
    return np.asarray(np.log(MOST_OFTEN * np.maximum(steps, 1e3)), np.float64)


def stalls_more_than_peers(
    rows: MemberRows, cohorts: CohortRows, asked: Index, policy: VerdictPolicy
) -> NDArray[np.bool_]:
    """Tell which members stall clearly more often than their peers, as these are now.

    Their runs of stalls are weighed again. Long batches move from rank to rank and stall all of
    them alike, one earlier than the others.
    """
    run_s = np.maximum(rows.run_s[asked], TINY)
    stall, other = weigh(stall_rate(rows, cohorts, asked, run_s, rows.least_stall_s[asked]))
    stalls, steps = rows.run_stalls[asked], rows.run_steps[asked]
    likely = stalls * stall + (steps - stalls) * other
    return np.asarray(likely > stall_limit(cohorts, policy)[rows.cohort[asked]], bool)
