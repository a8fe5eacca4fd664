"""When events of jobs begin and end, on tables alone."""

import math

import numpy as np
import pytest
from tests.support.member_tables import cohorts_of, linked
from tests.support.verdict_tables import POLICY, world

from ingero.contract.verdict import VerdictState
from ingero.core.verdict.events import fleet_events, links
from ingero.core.verdict.events.describe import describe_moves
from ingero.core.verdict.events.job_events import ADOPT_S, JobEvents
from ingero.core.verdict.events.moves import Moves
from ingero.core.verdict.members import Member
from ingero.core.verdict.table import (
    FAST,
    CohortRows,
)


def test_the_end_of_one_slow_period_is_not_that_of_another() -> None:
    moves = Moves()
    moves.begin(1, 3, 0.0)
    moves.begin(1, 5, 10.0)
    moves.end(1, 3, 100.0)
    assert moves.going_on(1) == [5]
    moves.begin(1, 3, 150.0)
    moves.end(1, 3, 200.0)
    assert [period.ended_s for period in moves.periods[1]] == [100.0, None, 200.0]


@pytest.mark.parametrize(
    ("kind", "after_s", "adopts"),
    [
        (fleet_events.SLOWER, ADOPT_S, True),
        (fleet_events.SLOWER, ADOPT_S - 1, False),
        (fleet_events.TOGETHER, 2 * ADOPT_S, False),
        (fleet_events.COVERAGE, 2 * ADOPT_S, False),
    ],
)
def test_a_level_that_a_cohort_keeps_for_minutes_is_its_baseline(
    kind: int, after_s: float, adopts: bool
) -> None:
    registry = world()
    cohorts, size = registry.cohorts, registry.cohorts.size
    cohorts.event[:size], cohorts.event_since_s[:size] = kind, 100.0
    cohorts.level[:size], cohorts.baseline_level[:size] = 0.3, 0.1
    events = np.full(size, kind, np.int8)
    JobEvents(registry, POLICY)._follow_fleet_events(
        events, np.zeros(registry.rows.size, bool), np.zeros(size), np.zeros(size), 100.0 + after_s
    )
    assert cohorts.baseline_level[1] == (0.3 if adopts else 0.1)


def test_slowness_that_moves_belongs_to_the_job_where_it_is_now() -> None:
    registry = world()
    registry.put(Member(cluster="c", node="m", rank=9, job="k"), 0.0)
    verdict = describe_moves(registry, [0, 1, 0, 8], 50.0)
    assert (verdict.job, verdict.peers, verdict.since) == ("k", 3, 50.0)
    assert "ranks 1, 2, 1, 9 were slow one after the other" in verdict.evidence


def test_an_event_of_moves_ends_when_nothing_moves_any_more() -> None:
    registry = world()
    events = JobEvents(registry, POLICY)
    for member, began_s, ended_s in ((1, 0.0, 100.0), (2, 110.0, 200.0), (3, 210.0, 300.0)):
        events._moves.begin(1, member, began_s)
        events._moves.end(1, member, ended_s)
    (begun,) = events._follow_moves(310.0)
    assert begun.state is VerdictState.FLEET_EVENT
    assert events._follow_moves(320.0) == []
    assert list(events.open_moves) == [1]
    (over,) = events._follow_moves(2000.0)
    assert (over.state, over.episode) == (VerdictState.RESOLVED, begun.episode)
    assert events.open_moves == {}


@pytest.mark.parametrize(("effect", "goes_on"), [(0.0, False), (0.05, True)])
def test_a_rank_that_is_fast_again_hands_its_slowness_over(effect: float, goes_on: bool) -> None:
    registry = world()
    rows, cohorts = registry.rows, registry.cohorts
    rows.channel[:8], rows.recent_excess[3] = FAST, effect
    cohorts.sample_s[1], cohorts.frames_per_sample[1] = 1.0, 1
    events = JobEvents(registry, POLICY)
    job = int(rows.job[0])
    events._moves.begin(job, 3, 0.0)
    events.note_slow(0, 100.0)
    assert (3 in events._moves.going_on(job)) == goes_on
    assert 0 in events._moves.going_on(job)


def recurring(last_step: int) -> JobEvents:
    """Return events in which the first member was slow every 100 steps, for 10 s each time."""
    registry = world()
    rows, cohorts = registry.rows, registry.cohorts
    rows.last_step[0], rows.recent_excess[0] = last_step, 0.2
    cohorts.sample_s[1], cohorts.frames_per_sample[1] = 1.0, 1
    events = JobEvents(registry, POLICY)
    job = int(rows.job[0])
    for step in range(100, 600, 100):
        events._again.begin(0, step)
        events._moves.begin(job, 0, float(step))
        events._moves.end(job, 0, step + 10.0)
    return events


def test_work_that_comes_again_is_found_with_its_period_and_loss() -> None:
    events = recurring(last_step=520)
    (finding,) = events._recurring()
    assert (finding.key, finding.period, finding.member) == (("again", 0), 100, 0)
    assert finding.loss == pytest.approx(0.2 * 10 / 100)
    (begun,) = events.refresh(1000.0)
    events._registry.rows.recent_excess[0] = 0.0
    (finding,) = events._recurring()
    assert finding.loss == begun.loss, "between two slow periods the loss stays what it was"


@pytest.mark.parametrize(("last_step", "is_kept"), [(700, True), (701, False), (499, False)])
def test_work_that_does_not_come_again_is_forgotten(last_step: int, is_kept: bool) -> None:
    events = recurring(last_step)
    assert bool(events._recurring()) == is_kept
    assert bool(events._again.begins) == is_kept


@pytest.mark.parametrize(
    ("seconds", "is_slow"), [(30, False), (31, True), (330, True), (331, False)]
)
def test_slow_links_are_told_after_30_s_and_usual_after_330_s(seconds: int, is_slow: bool) -> None:
    assert linked(0.2, seconds=seconds) == is_slow


def slower_cohort(rise: float, wander: float = 0.0) -> CohortRows:
    """Return a cohort that is known for long and slower as a whole since now."""
    cohorts = cohorts_of(1)
    cohorts.first_seen_s[0], cohorts.baseline_level[0] = 0.0, 0.0
    cohorts.level[0] = cohorts.slow_level[0] = math.log1p(rise)
    cohorts.wander[0] = wander
    return cohorts


@pytest.mark.parametrize(
    ("rise", "wander", "seconds", "is_slower"),
    [
        (0.06, 0.0, 59, False), (0.06, 0.0, 60, True),  # a small rise must last for a minute
        (0.20, 0.0, 29, False), (0.20, 0.0, 30, True),
        (0.04, 0.0, 99, False),
        (0.12, 0.0301, 60, False), (0.12, 0.0275, 60, True),  # four times what it wanders anyway
    ],
)  # fmt: skip
def test_a_cohort_is_slower_as_a_whole_after_a_time_and_beyond_its_wander(
    rise: float, wander: float, seconds: int, is_slower: bool
) -> None:
    cohorts = slower_cohort(rise, wander)
    for second in range(seconds):
        fleet_events._is_slower(cohorts, 1000.0 + second)
    assert fleet_events._is_slower(cohorts, 1000.0 + seconds).tolist() == [is_slower]


def test_a_level_that_jumps_for_a_second_is_smoothed() -> None:
    cohorts = slower_cohort(0.0)
    cohorts.level[0] = 0.5
    fleet_events._is_slower(cohorts, 1000.0)
    assert cohorts.slow_level[0] == pytest.approx(0.05)


def test_what_a_cohort_wanders_anyway_is_learned_from_small_changes() -> None:
    cohorts = slower_cohort(0.0, wander=0.01)
    cohorts.slow_level[0] = cohorts.level[0] = 0.02
    fleet_events._is_slower(cohorts, 1000.0)
    assert cohorts.wander[0] == pytest.approx(math.sqrt(0.01**2 + 0.004 * (0.02**2 - 0.01**2)))
    cohorts = slower_cohort(0.0, wander=0.01)
    fleet_events._is_slower(cohorts, 1000.0)
    assert cohorts.wander[0] == pytest.approx(0.01), "a standstill says nothing"


def test_the_end_of_a_slow_period_is_noted_when_a_member_recovers() -> None:
    registry = world()
    events, job = JobEvents(registry, POLICY), int(registry.rows.job[0])
    events._moves.begin(job, 0, 0.0)
    events.note_end(0, 100.0)
    assert events._moves.going_on(job) == []
    assert events._moves.periods[job][0].ended_s == 100.0


def test_the_least_transfer_is_that_of_the_same_job() -> None:
    job, values = np.array([0, 2, 2, 1]), np.array([0.5, 0.3, 0.1, np.nan])
    found = links._least_of_job(job, values)
    assert found[:3].tolist() == [0.5, 0.1, 0.1]
    assert np.isnan(found[3])


@pytest.mark.parametrize(
    ("live", "said"),
    [
        (1, "only 1 of 2 members report"),
        (2, "members did not report for a while; 2 do now"),
        (7, "members did not report for a while; 7 do now"),
    ],
)
def test_more_members_than_expected_are_not_called_few(live: int, said: str) -> None:
    cohorts = cohorts_of(1)
    cohorts.expected[0] = 2
    assert fleet_events.describe(cohorts, 0, fleet_events.COVERAGE, 0, live) == said
