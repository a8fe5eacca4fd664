"""Rules of events, on tables alone: what slows many ranks, moves on, or is slow by nature."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from ingero.core.verdict.events import fleet_events, links
from ingero.core.verdict.events.fleet_events import (
    CLEAR,
    COVERAGE,
    LINKS,
    SLOWER,
    SPLIT,
    STOPPED,
    TOGETHER,
)
from ingero.core.verdict.events.groups import Groups
from ingero.core.verdict.events.moves import Moves
from ingero.core.verdict.events.structural import Recurrences, find_structural
from ingero.core.verdict.members import Member, MemberRegistry
from ingero.core.verdict.own_times import make_batch
from ingero.core.verdict.policy import VerdictPolicy
from ingero.core.verdict.table import CohortRows

POLICY = VerdictPolicy()


def moved(*periods: tuple[int, float, float | None]) -> Moves:
    """Return slow periods of one job as (member, begin, end)."""
    moves = Moves()
    for member, began_s, ended_s in periods:
        moves.begin(1, member, began_s)
        if ended_s is not None:
            moves.end(1, member, ended_s)
    return moves


@pytest.mark.parametrize(
    ("third_s", "is_moving"), [(230.0, True), (230.1, False), (170.0, True), (169.9, False)]
)
def test_slowness_moves_when_three_ranks_are_slow_in_turn(third_s: float, is_moving: bool) -> None:
    """One begins within 30 s of the end of another."""
    moves = moved((3, 0.0, 100.0), (5, 110.0, 200.0), (7, third_s, None))
    assert moves.is_moving(1, third_s) == is_moving
    assert moves.is_carried(1, 7, third_s) == is_moving
    assert not moves.is_carried(1, 5, third_s)
    assert not moves.is_moving(2, third_s)


def test_a_rank_that_is_slow_again_hands_nothing_over_to_itself() -> None:
    moves = moved((3, 0.0, 100.0), (3, 110.0, 200.0), (3, 210.0, 300.0))
    assert not moves.is_moving(1, 300.0)


def test_a_rank_that_stays_slow_far_longer_than_the_others_is_not_carried() -> None:
    """The others were slow for up to 100 s: twice that and 30 s more are allowed."""
    moves = moved((3, 0.0, 100.0), (5, 110.0, 200.0), (7, 210.0, None))
    assert moves.is_carried(1, 7, 210.0 + 230.0)
    assert not moves.is_carried(1, 7, 210.0 + 230.1)


def test_a_move_is_over_ten_minutes_after_the_last_slow_period() -> None:
    moves = moved((3, 0.0, 100.0), (5, 110.0, 200.0), (7, 210.0, 300.0))
    assert moves.is_moving(1, 899.9)
    assert not moves.is_moving(1, 900.0)
    moves.forget(900.0)
    assert moves.periods
    moves.forget(900.1)
    assert not moves.periods


def test_members_in_turn_are_listed_and_sixteen_are_kept() -> None:
    moves = moved((3, 0.0, 100.0), (5, 110.0, None), (7, 120.0, None))
    assert moves.going_on(1) == [5, 7]
    assert moves.ranks_in_turn(1) == [3, 5, 7]
    assert (moves.going_on(2), moves.ranks_in_turn(2)) == ([], [])
    for number in range(20):
        moves.begin(1, number, 200.0)
    assert moves.ranks_in_turn(1) == list(range(4, 20))


@pytest.mark.parametrize(
    ("steps", "period"),
    [
        ([100, 200, 300], 100),
        ([100, 200], None),
        ([100, 149, 198], None),  # fewer than fifty steps are no task of the job
        ([100, 150, 200], 50),
        ([0, 100, 220], 110),
        ([0, 100, 225], None),  # gaps differ by more than a tenth
        ([7, 100, 200, 300], 100),  # the last three count
        ([500, 600, 100, 200], None),  # the job started over
    ],
)
def test_slow_periods_recur_when_their_gaps_are_equal(steps: list[int], period: int | None) -> None:
    again = Recurrences()
    for step in steps:
        again.begin(4, step)
    assert again.period_of(4) == period
    assert again.period_of(5) is None
    again.forget(4)
    assert again.period_of(4) is None


def cohorts_of(*jobs: int) -> CohortRows:
    """Return cohorts of eight expected members each, by the row of their job."""
    cohorts = CohortRows()
    for job in jobs:
        row = cohorts.append()
        cohorts.job[row], cohorts.expected[row] = job, 8.0
        cohorts.level[row] = cohorts.slow_level[row] = cohorts.baseline_level[row] = 0.0
        cohorts.first_seen_s[row] = float(row)
    return cohorts


def judged(
    cohorts: CohortRows, *, moving: float = 0.0, live: float = 8.0, known: float = 8.0,
    slow_links: bool = False, now_s: float = 1000.0,
) -> tuple[list[int], list[bool]]:  # fmt: skip
    size = cohorts.size
    events, excused = fleet_events.judge(
        cohorts, np.full(size, moving), np.full(size, known), np.full(size, live),
        np.full(size, slow_links), now_s=now_s, policy=POLICY,
    )  # fmt: skip
    cohorts.event[:size] = events
    return events.tolist(), excused.tolist()


def lasting(cohorts: CohortRows, **change: float) -> int:
    """Return the event after a reason has lasted for eight seconds."""
    judged(cohorts, **change)  # type: ignore[arg-type]
    (event,), _ = judged(cohorts, now_s=1008.0, **change)  # type: ignore[arg-type]
    return event


@pytest.mark.parametrize(
    ("moving", "event"), [(0, CLEAR), (3, CLEAR), (4, TOGETHER), (8, TOGETHER)]
)
def test_more_than_two_fifths_that_slow_down_together_are_an_event(moving: int, event: int) -> None:
    assert lasting(cohorts_of(1), moving=float(moving)) == event


@pytest.mark.parametrize(
    ("moving", "known", "event"),
    [(2.0, 4.0, CLEAR), (4.0, 4.0, TOGETHER), (1.0, 1.0, CLEAR), (2.0, 5.0, CLEAR),
     (3.0, 5.0, TOGETHER)],
)  # fmt: skip
def test_in_a_small_job_all_must_slow_down(moving: float, known: float, event: int) -> None:
    assert lasting(cohorts_of(1), moving=moving, known=known) == event


def test_an_event_must_last_before_it_is_said_and_is_held_after_its_reason() -> None:
    cohorts = cohorts_of(1)
    assert judged(cohorts, moving=8.0) == ([CLEAR], [True])  # nobody is blamed meanwhile
    assert judged(cohorts, moving=8.0, now_s=1007.9) == ([CLEAR], [True])
    assert judged(cohorts, moving=8.0, now_s=1008.0) == ([TOGETHER], [True])
    assert judged(cohorts, now_s=1017.9) == ([TOGETHER], [True])
    assert judged(cohorts, now_s=1018.0) == ([CLEAR], [False])


def test_an_event_does_not_end_while_most_of_its_share_is_left() -> None:
    """Four fifths of two fifths are 0.32 of the members: three of eight go on."""
    cohorts = cohorts_of(1)
    assert lasting(cohorts, moving=4.0) == TOGETHER
    assert judged(cohorts, moving=3.0, now_s=1100.0)[0] == [TOGETHER]
    assert judged(cohorts, moving=2.0, now_s=1200.0)[0] == [CLEAR]


@pytest.mark.parametrize(("live", "event"), [(5.0, CLEAR), (4.0, COVERAGE), (0.0, STOPPED)])
def test_too_few_members_that_report_are_an_event(live: float, event: int) -> None:
    assert lasting(cohorts_of(1), live=live) == event


def test_a_split_cohort_is_an_event_while_members_are_expected() -> None:
    cohorts = cohorts_of(1)
    cohorts.is_split[0] = True
    assert lasting(cohorts) == CLEAR  # ranks of another role may report later
    assert judged(cohorts, now_s=1060.0)[0] == [SPLIT]
    gone = cohorts_of(1)
    gone.is_split[0], gone.expected[0] = True, 0.0
    assert lasting(gone) == CLEAR


def test_slow_links_are_said_but_excuse_nobody() -> None:
    cohorts = cohorts_of(1)
    assert lasting(cohorts, slow_links=True) == LINKS
    assert judged(cohorts, slow_links=True, now_s=1009.0) == ([LINKS], [False])


def test_one_event_of_a_kind_is_said_per_job_by_its_oldest_cohort() -> None:
    cohorts = cohorts_of(1, 1, 2, 2)
    cohorts.first_seen_s[:4] = [5.0, 3.0, 9.0, 9.5]
    judged(cohorts, moving=8.0)
    found, _ = judged(cohorts, moving=8.0, now_s=1008.0)
    assert found == [CLEAR, TOGETHER, TOGETHER, CLEAR]


def rising(by: float, seconds: int, first_s: float = 1000.0) -> list[int]:
    """Return the events of a cohort whose own times rise at `first_s` and stay high."""
    cohorts = cohorts_of(1)
    cohorts.level[0] = math.log1p(by)
    return [judged(cohorts, now_s=first_s + second)[0][0] for second in range(seconds)]


def test_a_cohort_that_is_slower_as_a_whole_is_an_event_after_a_minute() -> None:
    events = rising(0.10, 120)
    assert events[50] == CLEAR and events[119] == SLOWER
    assert rising(0.03, 200)[-1] == CLEAR


def test_a_large_rise_is_believed_sooner_and_in_a_young_job() -> None:
    assert rising(0.30, 60)[-1] == SLOWER
    assert rising(0.10, 120, first_s=100.0)[-1] == CLEAR  # watched for less than five minutes
    assert rising(0.30, 60, first_s=100.0)[-1] == SLOWER


def test_members_that_seem_faster_show_that_the_others_slowed_down() -> None:
    """Six of eight slowed down by a fifth: the median moved, and two seem faster."""
    cohorts = cohorts_of(1)
    everyone, effect = np.zeros(8, np.intp), np.array([0.0] * 6 + [-0.2, -0.2])
    scale, everybody, nobody = np.full(8, 0.01), np.ones(8, bool), np.zeros(8, bool)
    count = fleet_events.count_moving(cohorts, everyone, everybody, effect, scale, nobody)
    assert count.tolist() == [0.0]  # the cohort as a whole is as fast as before
    cohorts.slow_level[0] = 0.2
    count = fleet_events.count_moving(cohorts, everyone, everybody, effect, scale, nobody)
    assert count.tolist() == [6.0]
    few = np.array([0.0] * 7 + [-0.2])
    count = fleet_events.count_moving(cohorts, everyone, everybody, few, scale, nobody)
    assert count.tolist() == [0.0]


def test_members_slow_down_together_where_they_do_so_alike_and_beyond_their_noise() -> None:
    """A rank that is slower by little is not the equal of one that is slower by much."""
    job, judged = np.array([1] * 6), np.array([True, False] + [True] * 4)
    effect = np.array([0.10, 0.10, 0.031, 0.029, 0.04, -np.inf])
    margin = np.array([0.01, 0.01, 0.01, 0.01, 0.05, 0.0])
    moving = fleet_events.find_moving(job, judged, effect, margin, 0.015)
    assert moving.tolist() == [True, False, True, False, False, False]
    alone = fleet_events.find_moving(job, judged, effect / 5, margin, 0.015)
    assert alone.tolist() == [True, False, False, False, False, False]


def linked(
    transfer: float, *, waiting: float = 0.1, step_s: float = 1.0, seconds: int = 40
) -> bool:
    """Return whether links are slow after the transfer of 0.1 s changed for some time."""
    cohorts = cohorts_of(1)
    cohorts.transfer_s[0], cohorts.waiting_s[0] = 0.1, 0.1
    for second in range(5):
        links.judge_links(cohorts, np.array([step_s]), 1000.0 + second)
    cohorts.transfer_s[0], cohorts.waiting_s[0] = transfer, waiting
    found = np.zeros(1, bool)
    for second in range(seconds):
        found = links.judge_links(cohorts, np.array([step_s]), 1010.0 + second)
    return bool(found[0])


@pytest.mark.parametrize(
    ("change", "is_slow"),
    [
        ({"transfer": 0.129}, False),
        ({"transfer": 0.135}, True),  # 30 % more, and more than 3 % of the step
        ({"transfer": 0.135, "step_s": 1.2}, False),
        ({"transfer": 0.2, "waiting": 0.14}, True),
        ({"transfer": 0.2, "waiting": 0.16}, False),  # waiting grew by more than half of that
        ({"transfer": 0.2, "seconds": 30}, False),  # it must last for 30 s
        ({"transfer": 0.2, "seconds": 32}, True),
        ({"transfer": 0.2, "seconds": 400}, False),  # what lasts is the new normal
    ],
)
def test_links_are_slow_when_even_the_rank_that_waits_least_takes_longer(
    change: dict[str, float], is_slow: bool
) -> None:
    assert linked(**change) == is_slow  # type: ignore[arg-type]


def test_slow_links_are_said_once_per_job() -> None:
    cohorts = cohorts_of(1, 1)
    cohorts.transfer_s[:2], cohorts.waiting_s[:2] = 0.1, 0.1
    links.judge_links(cohorts, np.ones(2), 1000.0)
    cohorts.transfer_s[:2] = [0.2, 0.3]
    for second in range(40):
        found = links.judge_links(cohorts, np.ones(2), 1010.0 + second)
    assert found.tolist() == [True, False]
    assert links.transfer_of_job(cohorts, 1) == (0.2, pytest.approx(0.1, rel=0.01))


def test_time_inside_collectives_is_known_where_the_gpu_is_timed() -> None:
    batch = make_batch(
        np.arange(4), np.array([0.6, 0.6, 0.6, 2.0]), np.array([5, 5, -1, 5]),
        span_s=np.ones(4), idle_s=np.array([0.0, np.nan, 0.0, 0.0]),
    )  # fmt: skip
    inside = links.time_inside(batch)
    assert inside[0] == pytest.approx(0.4)
    assert np.isnan(inside[[1, 2]]).all()
    assert inside[3] == 0.0


def test_transfer_is_the_least_time_inside_and_is_followed_slowly() -> None:
    cohorts = cohorts_of(1, 1)
    inside = np.array([0.2, 0.5, np.nan, np.nan])
    links.follow_transfer(cohorts, np.array([0, 1]), np.array([0, 3]), inside)
    assert (cohorts.transfer_s[0], cohorts.waiting_s[0]) == (0.2, pytest.approx(0.15))
    assert np.isnan(cohorts.transfer_s[1])
    links.follow_transfer(cohorts, np.array([0]), np.array([0]), np.array([1.2, 1.2]))
    assert cohorts.transfer_s[0] == pytest.approx(0.2 + 0.02)


def test_what_changes_little_is_followed_slowly() -> None:
    cohorts = cohorts_of(1)
    cohorts.transfer_s[0], cohorts.baseline_transfer_s[0] = 1.1, 1.0
    cohorts.waiting_s[0], cohorts.baseline_waiting_s[0] = 3.0, 2.0
    links._follow_baselines(cohorts, 1000.0)
    assert cohorts.baseline_transfer_s[0] == pytest.approx(1.0 + 0.1 * links.BASELINE_SMOOTH)
    assert cohorts.baseline_waiting_s[0] == pytest.approx(2.0 + 1.0 * links.BASELINE_SMOOTH)


def members(count: int, **labels: object) -> MemberRegistry:
    """Return ranks of one job, two on each node, which are calm and were seen now."""
    registry = MemberRegistry(POLICY)
    for rank in range(count):
        made = {"cluster": "c", "node": f"n{rank // 2}", "rank": rank, "job": "j", **labels}
        index = registry.put(Member(**made), 0.0)  # type: ignore[arg-type]
        registry.rows.last_seen_s[index] = 1000.0
    registry.rows.limit[:count] = 10.0
    registry.rows.scale[:count] = 0.01
    return registry


def grouped(
    registry: MemberRegistry, slow: list[int], groups: Groups | None = None, now_s: float = 1000.0
) -> tuple[Groups, NDArray[np.bool_]]:
    size = registry.rows.size
    registry.rows.cusum[:size] = 0.0
    registry.rows.cusum[slow] = 5.1  # on their way to the limit
    found = groups or Groups(registry)
    everyone = np.ones(size, bool)
    return found, found.advance(everyone, everyone, now_s)


def test_ranks_of_a_node_that_slow_down_together_are_a_group() -> None:
    registry = members(8)
    groups, inside = grouped(registry, [2, 3])
    (group,) = groups.of_job.values()
    assert (group.shared, group.members, group.of, group.is_open) == ("node n1", [2, 3], 2, False)
    assert np.flatnonzero(inside).tolist() == [2, 3]
    for now_s, is_open in ((1005.9, False), (1006.0, True)):
        grouped(registry, [2, 3], groups, now_s)
        assert group.is_open == is_open


def test_a_group_ends_when_its_members_are_calm_for_ten_seconds() -> None:
    registry = members(8)
    groups, _ = grouped(registry, [2, 3])
    grouped(registry, [2, 3], groups, 1006.0)
    grouped(registry, [], groups, 1015.9)
    assert groups.of_job
    grouped(registry, [], groups, 1016.0)
    assert not groups.of_job
    young, _ = grouped(registry, [2, 3], now_s=2000.0)
    grouped(registry, [], young, 2001.0)
    assert not young.of_job  # it was never said


@pytest.mark.parametrize(
    ("slow", "shared"),
    [
        ([2, 3], "node n1"),
        ([2, 4], None),  # nothing in common but the job
        ([2, 3, 4], None),  # two of three: three quarters must share it
        ([2, 3, 4, 5, 6], None),
        ([2], None),
    ],
)
def test_most_of_the_slow_ranks_must_share_what_hardly_anybody_else_has(
    slow: list[int], shared: str | None
) -> None:
    groups, _ = grouped(members(8), slow)
    assert [group.shared for group in groups.of_job.values()] == ([shared] if shared else [])


def test_racks_need_three_ranks_of_which_most_are_slow() -> None:
    registry = MemberRegistry(POLICY)
    for rank in range(12):
        labels = (("rack", f"r{rank // 4}"),)
        member = Member(cluster="c", node=f"n{rank}", rank=rank, job="j", labels=labels)
        registry.rows.last_seen_s[registry.put(member, 0.0)] = 1000.0
    registry.rows.limit[:12] = 10.0
    assert not grouped(registry, [4, 5])[0].of_job
    (group,) = grouped(registry, [4, 5, 6])[0].of_job.values()
    assert (group.shared, group.of) == ("rack r1", 4)


def test_ranks_that_are_slow_for_long_join_no_new_group() -> None:
    registry = members(8)
    registry.rows.state[2], registry.rows.since_s[2] = 2, 969.9
    assert not grouped(registry, [2, 3])[0].of_job
    registry.rows.since_s[2] = 970.0
    assert grouped(registry, [2, 3])[0].of_job


def test_a_slower_gpu_model_sets_the_pace_of_its_job() -> None:
    registry = MemberRegistry(POLICY)
    for rank in range(6):
        model = "old" if rank < 3 else "new"
        member = Member(cluster="c", node=f"n{rank}", rank=rank + 1, job="j", gpu_model=model)
        index = registry.put(member, 0.0)
        registry.rows.span_s[index] = 2.0
    old, new = int(registry.rows.cohort[0]), int(registry.rows.cohort[3])
    registry.cohorts.baseline_level[[old, new]] = 0.0
    for slow_s, is_found in ((1.1, False), (1.11, True)):
        registry.cohorts.level[old], registry.cohorts.level[new] = math.log(slow_s), 0.0
        findings = find_structural(registry, POLICY)
        assert bool(findings) == is_found
    (finding,) = findings
    assert (finding.shared, finding.cohort) == ("GPU model old", old)
    assert finding.loss == pytest.approx(0.11 / 2.0)
    registry.cohorts.baseline_level[new] = np.nan
    assert find_structural(registry, POLICY) == []


def punctual(onsets: list[int], last: int, size: float = math.log(11.0)) -> MemberRegistry:
    """Return ranks with own times of 1 s in steps of 1 s, of which rank 1 stalls now and then."""
    registry = members(4)
    rows = registry.rows
    rows.own_s[:4], rows.last_step[:4] = 1.0, last
    rows.onsets[1, : len(onsets)] = onsets
    rows.onset_count[1], rows.stall_size[1] = len(onsets), size
    return registry


@pytest.mark.parametrize(
    ("onsets", "last", "is_found"),
    [
        ([100, 200, 300, 400], 450, True),
        ([100, 200, 300, 400], 600, True),
        ([100, 200, 300, 400], 601, False),  # over since more than two periods
        ([100, 140, 180, 220], 230, False),  # fewer than fifty steps are no checkpoint
        ([100, 200, 302, 402], 450, True),
        ([100, 200, 306, 406], 450, False),  # not punctual
        ([100, 200, 300], 350, False),
    ],
)
def test_a_rank_that_stalls_punctually_and_rarely_has_a_task(
    onsets: list[int], last: int, is_found: bool
) -> None:
    findings = find_structural(punctual(onsets, last), POLICY)
    assert bool(findings) == is_found
    if findings:
        (finding,) = findings
        assert (finding.member, finding.period) == (1, 100)
        assert finding.loss == pytest.approx(10 / 110, rel=0.01)


def test_a_task_that_costs_next_to_nothing_is_no_finding() -> None:
    """Half a percent of the time is the least."""
    for lost_s, is_found in ((0.49, False), (0.51, True)):
        registry = punctual([100, 200, 300, 400], 450, size=math.log1p(lost_s))
        assert bool(find_structural(registry, POLICY)) == is_found


def test_peers_that_stall_as_often_have_no_task_of_their_own() -> None:
    registry = punctual([100, 200, 300, 400], 450)
    registry.rows.onset_count[[0, 2, 3]] = 1
    assert find_structural(registry, POLICY) == []


def first_rank(bias: float = 0.3, samples: int = 240) -> MemberRegistry:
    registry = members(4)
    rows = registry.rows
    rows.own_s[:4], rows.span_s[:4] = 1.0, 2.0
    rows.own_s[0], rows.raw_bias[0] = math.exp(bias), bias
    rows.baseline_samples[:4] = samples
    return registry


@pytest.mark.parametrize(
    ("bias", "samples", "is_found"),
    [(0.3, 240, True), (0.3, 239, False), (0.049, 240, False), (0.051, 240, True)],
)
def test_rank_zero_that_always_does_more_is_structural(
    bias: float, samples: int, is_found: bool
) -> None:
    findings = find_structural(first_rank(bias, samples), POLICY)
    assert bool(findings) == is_found
    if findings:
        assert findings[0].member == 0
        assert findings[0].loss == pytest.approx(math.expm1(bias) / 2.0)


def test_other_ranks_and_split_or_small_cohorts_are_not_structural() -> None:
    other = first_rank()
    other.rows.raw_bias[:2] = [0.0, 0.3]
    assert find_structural(other, POLICY) == []
    for column in ("is_split", "is_small"):
        registry = first_rank()
        getattr(registry.cohorts, column)[registry.rows.cohort[0]] = True
        assert find_structural(registry, POLICY) == []
    noisy = first_rank()
    noisy.rows.scale[0] = 0.11
    assert find_structural(noisy, POLICY) == []


def test_one_member_that_reports_is_too_few_but_not_a_stop() -> None:
    assert lasting(cohorts_of(1), live=1.0) == COVERAGE


def test_the_event_that_is_open_already_stays_where_it_was_said() -> None:
    cohorts = cohorts_of(1, 1)
    cohorts.event[1] = TOGETHER
    assert judged(cohorts, moving=8.0, now_s=1008.0)[0] == [CLEAR, TOGETHER]


def test_a_young_job_that_becomes_much_faster_has_settled() -> None:
    """It was compiling: what was learned before is void, if its steps became shorter as well."""
    for fall, step_log, now_s, has_settled in (
        (-0.71, -0.8, 300.0, True),
        (-0.69, -0.8, 300.0, False),
        (-0.71, -0.3, 300.0, False),
        (-0.71, np.nan, 300.0, True),
        (-0.71, -0.8, 700.0, False),
    ):
        cohorts = cohorts_of(1)
        cohorts.level[0] = cohorts.slow_level[0] = fall
        cohorts.step_log[0, :2] = [0.0, step_log]
        cohorts.step_samples[0] = 2
        judged(cohorts, now_s=now_s)
        assert bool(cohorts.has_settled[0]) == has_settled


def test_a_group_needs_others_to_compare_with() -> None:
    assert grouped(members(4), [0, 1])[0].of_job
    assert not grouped(members(3), [0, 1])[0].of_job


def test_members_that_are_not_judged_are_in_no_group() -> None:
    registry = members(8)
    registry.rows.cusum[[2, 3]] = 5.1
    known = np.arange(8) != 3
    everyone = np.ones(8, bool)
    assert Groups(registry).advance(everyone, everyone, 1000.0).any()
    assert not Groups(registry).advance(known, everyone, 1000.0).any()
    assert not Groups(registry).advance(everyone, known, 1000.0).any()


def test_models_are_compared_by_ratio() -> None:
    registry = MemberRegistry(POLICY)
    for rank in range(6):
        model = "old" if rank < 3 else "new"
        registry.put(
            Member(cluster="c", node=f"n{rank}", rank=rank + 1, job="j", gpu_model=model), 0.0
        )
    old, new = int(registry.rows.cohort[0]), int(registry.rows.cohort[3])
    registry.cohorts.baseline_level[[old, new]] = 0.0
    for slow_s, is_found in ((0.0219, False), (0.0221, True)):
        registry.cohorts.level[[old, new]] = np.log([slow_s, 0.02])
        findings = find_structural(registry, POLICY)
        assert bool(findings) == is_found
    assert findings[0].loss == pytest.approx(0.0021 / 0.0221)  # of its own time, without steps


def test_a_rank_that_is_not_punctual_hides_no_other_one() -> None:
    registry = punctual([100, 200, 306, 406], 450)
    rows = registry.rows
    rows.onsets[3, :4] = [100, 200, 300, 400]
    rows.onset_count[3], rows.stall_size[3] = 4, math.log(11.0)
    rows.onset_count[[0, 2]] = 0
    registry.rows.onset_count[1] = 0
    assert [finding.member for finding in find_structural(registry, POLICY)] == [3]
