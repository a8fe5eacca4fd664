"""How often anybody stalls for as long, and who stalls more often than that explains."""

import math

import numpy as np
import pytest
from tests.support.member_tables import member_table

from ingero.core.verdict.channels.stall import update_stalls
from ingero.core.verdict.channels.stall_rates import (
    AS_LONG,
    LEAST_RATE,
    MOST_RATE,
    RAREST,
    WINDOW,
    follow_run,
    note_stalls,
    stall_limit,
    stall_rate,
    stalls_more_than_peers,
    weigh,
)
from ingero.core.verdict.members import Member, MemberRegistry
from ingero.core.verdict.policy import VerdictPolicy
from ingero.core.verdict.table import FEW, STALLS, CohortRows, MemberRows

POLICY = VerdictPolicy()
Stall = tuple[int, int, float]  # frame, member, seconds


def job_of(cohorts_of_ranks: list[int]) -> tuple[MemberRows, CohortRows]:
    """Return the ranks of one job in their cohorts; each has watched 400 of 500 steps."""
    rows, cohorts, count = MemberRows(), CohortRows(), len(cohorts_of_ranks)
    for _ in range(count):
        rows.append()
    for _ in range(max(cohorts_of_ranks) + 1):
        cohorts.append()
    rows.cohort[:count], rows.stall_steps[:count] = cohorts_of_ranks, 400.0
    cohorts.expected[: cohorts.size] = np.bincount(cohorts_of_ranks)
    cohorts.frames[: cohorts.size] = 500
    return rows, cohorts


def stalled(rows: MemberRows, cohorts: CohortRows, stalls: list[Stall]) -> None:
    frames = cohorts.frames.copy()
    for frame, member, size_s in stalls:
        cohorts.frames[:] = frame
        note_stalls(rows, cohorts, np.array([member]), np.array([size_s]))
    cohorts.frames = frames


def plain_rate(
    rows: MemberRows, cohorts: CohortRows, stalls: list[Stall], member: int, size_s: float,
    least_s: float,
) -> float:  # fmt: skip
    """Return the rate by the plain definition, for rings that are not full."""

    def rates(members: list[int]) -> tuple[float, float]:
        theirs = [s for f, m, s in stalls if m in members and m != member and 500 - f < WINDOW]
        count = sum(each >= AS_LONG * size_s for each in theirs)
        short = max([each for each in theirs if each < AS_LONG * size_s], default=0.0)
        near = min(max(short, least_s) / size_s, 1.0)
        steps = 400.0 * len(members)
        return count / steps, (count + 2 * math.sqrt(count) + near) / steps

    mine = np.flatnonzero(rows.cohort[: rows.size] == rows.cohort[member]).tolist()
    of_role, at_most = rates(mine)
    if len(mine) < FEW:
        at_most = max(of_role, rates(list(range(rows.size)))[1])
    return min(max(at_most, LEAST_RATE), MOST_RATE)


@pytest.mark.parametrize("seed", range(12))
def test_members_are_asked_about_together_as_one_by_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, cohorts = job_of(np.sort(rng.integers(0, 4, int(rng.integers(3, 30)))).tolist())
    stalls = [
        (int(frame), int(rng.integers(rows.size)), float(rng.exponential(0.3)))
        for frame in np.sort(rng.integers(100, 500, int(rng.integers(0, 30))))
    ]
    stalled(rows, cohorts, stalls)
    asked = np.flatnonzero(rng.random(rows.size) < 0.8)
    size_s, least_s = rng.exponential(0.5, len(asked)) + 0.1, np.full(len(asked), 0.05)
    found = stall_rate(rows, cohorts, asked, size_s, least_s)
    assert found.tolist() == pytest.approx(
        [
            plain_rate(rows, cohorts, stalls, int(member), float(size), 0.05)
            for member, size in zip(asked, size_s, strict=True)
        ]
    )


def test_a_ring_that_is_full_says_nothing_about_the_steps_before_it() -> None:
    rows, cohorts = job_of([0] * 8)
    stalled(rows, cohorts, [(437 + turn, 1, 1.0) for turn in range(STALLS)])
    before = stall_rate(rows, cohorts, np.array([0]), np.array([1.0]), np.array([0.1]))
    assert before[0] == pytest.approx(MOST_RATE)  # 64 in 64 steps of eight ranks
    stalled(rows, cohorts, [(500, 1, 0.01)] * STALLS)
    after = stall_rate(rows, cohorts, np.array([0]), np.array([1.0]), np.array([0.1]))
    assert after[0] == pytest.approx(0.1 / 8)  # one step of eight ranks, none as long


def test_many_stalls_of_one_step_are_kept_for_each_cohort() -> None:
    rows, cohorts = job_of([0, 0, 1, 1, 1, 0])
    note_stalls(rows, cohorts, np.arange(6), np.arange(6) + 1.0)
    assert cohorts.stall_count[:2].tolist() == [3, 3]
    assert cohorts.stall_s[0, :4].tolist() == [1.0, 2.0, 6.0, 0.0]
    assert cohorts.stall_member[1, :3].tolist() == [2, 3, 4]


@pytest.mark.parametrize("rate", [1e-4, 1e-3, 0.004, 0.02, 0.09])
def test_what_a_step_weighs_is_the_logarithm_of_a_likelihood(rate: float) -> None:
    """So exp(channel) is no larger on average after a step, if nothing is wrong."""
    (stall,), (other,) = weigh(np.array([rate]))
    assert rate * math.exp(stall) + (1 - rate) * math.exp(other) == pytest.approx(1.0)
    assert stall > math.log(2.9)
    assert other < 0


@pytest.mark.parametrize("rate", [1e-4, 1e-3, 0.01, 0.05])
def test_stalls_as_rare_as_the_work_of_a_job_raise_nothing(rate: float) -> None:
    (stall,), (other,) = weigh(np.array([rate]))
    assert stall + (RAREST - 1) * other < 0.2


def test_the_limit_follows_from_the_budget_of_false_alarms() -> None:
    """A false alarm needs odds that nobody has by chance in so many steps."""
    cohorts = CohortRows()
    cohorts.append()
    cohorts.frames_per_sample[0], cohorts.sample_s[0] = 7, 1.0
    often, seldom = (
        float(stall_limit(cohorts, VerdictPolicy(false_alarms_per_1000_node_hours=each))[0])
        for each in (2.0, 0.2)
    )
    assert seldom - often == pytest.approx(math.log(10))
    assert seldom == pytest.approx(math.log(0.15 * 3.6e6 / 0.2 * 7))
    cohorts.frames_per_sample[0], cohorts.sample_s[0] = 1, 10.0  # seventy times fewer steps
    fewer = float(stall_limit(cohorts, POLICY)[0])
    assert seldom - fewer == pytest.approx(math.log(70))


def watched(extra: np.ndarray) -> tuple[list[int], list[int]]:
    """Return when anybody was over the limit and still clearly above the peers, and who.

    `extra` are excesses as [step, member]; own times are a tenth of a second.
    """
    rows, cohorts = member_table(extra.shape[1])
    cohorts.expected[1] = extra.shape[1]
    limit, members = float(stall_limit(cohorts, POLICY)[1]), np.arange(extra.shape[1])
    rows.baseline_log_own[: rows.size] = math.log(0.1)
    unknown, when, who = np.full(extra.shape[1], np.nan), [], []
    for step, row in enumerate(extra):
        cohorts.frames[1] += 1
        numbers = np.full(len(row), step)
        update_stalls(rows, cohorts, members, row, numbers, unknown, 0.1 * np.exp(row))
        over = np.flatnonzero(rows.stall_cusum[: rows.size] > limit)
        found = over[stalls_more_than_peers(rows, cohorts, over, POLICY)]
        when += [step] * len(found)
        who += found.tolist()
    return when, who


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("rate", "tail"), [(0.002, 1.5), (0.01, 1.0), (0.05, 1.5)])
def test_hiccups_of_all_hosts_name_nobody_however_long_some_are(
    seed: int, rate: float, tail: float
) -> None:
    rng = np.random.default_rng([seed, round(1000 * rate)])
    shape = (3000, 8)
    long = 0.1 * (1 + rng.pareto(tail, shape))
    assert watched(np.where(rng.random(shape) < rate, np.log1p(np.minimum(long, 50)), 0.0)) == (
        [],
        [],
    )


@pytest.mark.parametrize("ranks", [4, 8, 64])
def test_three_long_stalls_of_one_rank_are_enough_where_nobody_stalled_for_as_long(
    ranks: int,
) -> None:
    rng = np.random.default_rng(ranks)
    extra = np.where(rng.random((400, ranks)) < 0.003, 0.12, 0.0)
    extra[300::10, 1] = math.log(2.5)
    when, who = watched(extra)
    assert when[0] == 320
    assert set(who) == {1}


def test_a_run_has_the_length_of_its_first_stall_until_a_longer_one_says_more() -> None:
    rows, cohorts = job_of([0] * 8)
    first, hit = np.array([0.2]), np.array([0])
    rows.least_stall_s[0] = 0.1
    follow_run(rows, cohorts, hit, first)
    (alone,), (other,) = weigh(np.array([0.5 / 3200]))
    assert (rows.stall_cusum[0], rows.stall_drift[0]) == pytest.approx((alone, other))
    follow_run(rows, cohorts, hit, np.array([0.09]))  # less than half as long: as if there was none
    assert rows.stall_cusum[0] == pytest.approx(alone + other)
    follow_run(rows, cohorts, hit, np.array([0.11]))
    assert rows.stall_cusum[0] == pytest.approx(2 * alone + other)
    assert (rows.run_s[0], rows.run_stalls[0], rows.run_steps[0]) == (0.2, 2, 3)
    follow_run(rows, cohorts, hit, np.array([30.0]))  # does not say as much as all of them
    assert rows.stall_cusum[0] == pytest.approx(3 * alone + other)
    rows.stall_cusum[0] = 0.1
    stalled(rows, cohorts, [(450, 1, 0.2)] * 5)
    follow_run(rows, cohorts, hit, np.array([30.0]))
    assert (rows.run_s[0], rows.run_stalls[0], rows.run_steps[0]) == (30.0, 1, 1)
    assert rows.stall_cusum[0] == pytest.approx(weigh(np.array([LEAST_RATE]))[0][0])


def test_one_stall_proves_nothing_however_long() -> None:
    extra = np.zeros((2000, 64))
    extra[1500, 1] = math.log(1000.0)
    assert watched(extra) == ([], [])


def test_stalls_that_all_have_are_nobodys_even_where_one_has_them_first() -> None:
    """Whoever is suspected is compared with its peers as they are now."""
    extra = np.zeros((330, 8))
    for turn, member in enumerate([3, 3, 0, 1, 2, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7]):
        extra[300 + turn, member] = math.log(2.5)
    assert watched(extra) == ([], [])


@pytest.mark.parametrize(
    ("others", "beside", "is_more"),
    [
        (0, 0, True),
        (10, 0, False),  # the job stalls
        (0, 12, False),  # its role does
    ],
)
def test_two_of_a_role_are_compared_with_the_ranks_of_their_job(
    others: int, beside: int, is_more: bool
) -> None:
    registry = MemberRegistry(POLICY)
    for rank in range(8):
        role = f"stage {rank % 4}"
        registry.put(Member(cluster="c", node="n", rank=rank, job="j", role=role), 0.0)
    rows, cohorts = registry.rows, registry.cohorts
    cohorts.expected[: cohorts.size], cohorts.frames[: cohorts.size] = 2.0, 200
    rows.stall_steps[:8] = 200.0
    stalled(rows, cohorts, [(190, 4, 1.0)] * beside)
    stalled(rows, cohorts, [(180, rank, 1.0) for rank in (1, 2, 3, 5, 6, 7)] * others)
    rows.run_s[0], rows.run_stalls[0], rows.run_steps[0], rows.least_stall_s[0] = 1.0, 4, 31, 0.1
    (found,) = stalls_more_than_peers(rows, cohorts, np.array([0]), POLICY)
    assert found == is_more


@pytest.mark.parametrize(("size_s", "is_more"), [(1.0, False), (0.51, False), (0.3, True)])
def test_short_hiccups_of_peers_say_little_about_long_stalls(size_s: float, is_more: bool) -> None:
    rows, cohorts = job_of([0] * 8)
    stalled(rows, cohorts, [(200 + turn, 1 + turn % 7, size_s) for turn in range(7)])
    rows.run_s[0], rows.run_stalls[0], rows.run_steps[0], rows.least_stall_s[0] = 1.0, 4, 31, 0.1
    (found,) = stalls_more_than_peers(rows, cohorts, np.array([0]), POLICY)
    assert found == is_more
