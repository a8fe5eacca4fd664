"""What slows many ranks of a job at once: how many, for how long, and what is said of it."""

import math

import numpy as np
import pytest
from tests.support.member_tables import cohorts_of
from tests.support.verdict_tables import POLICY, world

from ingero.core.verdict.events import fleet_events
from ingero.core.verdict.events.fleet_events import (
    CLEAR,
    COVERAGE,
    LINKS,
    SLOWER,
    SPLIT,
    STOPPED,
    TOGETHER,
)
from ingero.core.verdict.members import Member
from ingero.core.verdict.table import CohortRows


def judged(
    cohorts: CohortRows, *, moving: float = 0.0, live: float = 8.0, known: float = 8.0,
    slow_links: bool = False, grouped: bool = False, now_s: float = 1000.0,
) -> tuple[list[int], list[bool]]:  # fmt: skip
    size = cohorts.size
    events, excused = fleet_events.judge(
        cohorts, np.full(size, moving), np.full(size, known), np.full(size, live),
        np.full(size, slow_links), np.full(size, grouped), now_s=now_s, policy=POLICY,
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


def test_a_cohort_that_is_slower_as_a_whole_excuses_nobody_and_is_not_said_twice() -> None:
    cohorts = cohorts_of(1)
    cohorts.level[0] = math.log1p(0.30)
    for second in range(60):
        judged(cohorts, now_s=1000.0 + second)
    assert judged(cohorts, now_s=1060.0) == ([SLOWER], [False])
    assert judged(cohorts, moving=4.0, now_s=1061.0) == ([SLOWER], [False]), "some rose by more"
    assert judged(cohorts, grouped=True, now_s=1070.0)[0] == [SLOWER], "held"
    assert judged(cohorts, grouped=True, now_s=1071.0) == ([CLEAR], [False])


@pytest.mark.parametrize(("expected", "event"), [(2.0, CLEAR), (8.0, SLOWER)])
def test_a_slow_member_explains_the_few_others_of_its_role(expected: float, event: int) -> None:
    cohorts = cohorts_of(1)
    cohorts.expected[0], cohorts.level[0] = expected, math.log1p(0.30)
    cohorts.is_restless[0] = True
    for second in range(61):
        (found,), _ = judged(cohorts, live=expected, known=expected, now_s=1000.0 + second)
    assert found == event


def test_a_cohort_on_its_way_back_is_not_slower_as_a_whole() -> None:
    cohorts = cohorts_of(1)
    cohorts.level[0] = math.log1p(0.30)
    for second in range(60):
        assert judged(cohorts, moving=8.0, now_s=1000.0 + second)[0][0] in (CLEAR, TOGETHER)
    cohorts.level[0] = math.log1p(0.10)
    assert judged(cohorts, now_s=1060.0)[0] == [TOGETHER]
    cohorts.level[0] = math.log1p(0.29)
    assert judged(cohorts, now_s=1061.0)[0] == [SLOWER]


def test_a_large_rise_is_believed_sooner_and_in_a_young_job() -> None:
    assert rising(0.30, 60)[-1] == SLOWER
    assert rising(0.10, 120, first_s=100.0)[-1] == CLEAR  # watched for less than five minutes
    assert rising(0.30, 60, first_s=100.0)[-1] == SLOWER


def test_members_that_seem_faster_show_that_the_others_slowed_down() -> None:
    """Six of eight slowed down by a fifth: the median moved, and two seem faster."""
    cohorts = cohorts_of(1)
    everyone, effect = np.zeros(8, np.intp), np.array([0.0] * 6 + [-0.2, -0.2])
    scale, everybody, nobody = np.full(8, 0.01), np.ones(8, bool), np.zeros(8, bool)
    moved = fleet_events.who_moved(cohorts, everyone, everybody, effect, scale, nobody)
    assert not moved.any()  # the cohort as a whole is as fast as before
    cohorts.slow_level[0] = 0.2
    moved = fleet_events.who_moved(cohorts, everyone, everybody, effect, scale, nobody)
    assert moved.tolist() == [True] * 6 + [False] * 2
    few = np.array([0.0] * 7 + [-0.2])
    moved = fleet_events.who_moved(cohorts, everyone, everybody, few, scale, nobody)
    assert not moved.any()


def test_members_slow_down_together_where_they_do_so_alike_and_beyond_their_noise() -> None:
    """A rank that is slower by little is not the equal of one that is slower by much."""
    job, judged = np.array([1] * 6), np.array([True, False] + [True] * 4)
    effect = np.array([0.10, 0.10, 0.031, 0.029, 0.04, -np.inf])
    margin = np.array([0.01, 0.01, 0.01, 0.01, 0.05, 0.0])
    moving = fleet_events.find_moving(job, judged, effect, margin, 0.015)
    assert moving.tolist() == [True, False, True, False, False, False]
    alone = fleet_events.find_moving(job, judged, effect / 5, margin, 0.015)
    assert alone.tolist() == [True, False, False, False, False, False]


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


def grown(count: int, by: float, slow: int) -> bool:
    """Return whether steps are found to have grown, of which the last `slow` are longer."""
    cohorts = world().cohorts
    places = np.arange(count) % 128
    cohorts.step_log[1, places] = 0.0
    cohorts.step_log[1, places[count - slow :]] = by
    cohorts.step_samples[1], cohorts.sample_s[1] = count, 2.0
    return fleet_events._have_steps_grown(cohorts, 1, 2.0 * slow)


def test_steps_have_grown_by_half_of_a_rise_or_are_unknown() -> None:
    half = 0.5 * math.log1p(0.045)
    assert [grown(100, by, 30) for by in (half + 1e-6, half - 1e-6, 0.0)] == [True, False, False]
    assert [grown(300, by, 30) for by in (half + 1e-6, 0.0)] == [True, False]
    assert grown(19, 0.0, 10), "nine samples of before say nothing"
    assert not grown(20, 0.0, 10)
    assert grown(100, 0.0, 9), "nine samples since say nothing"


@pytest.mark.parametrize(
    ("moving", "judged", "expected", "reason"),
    [
        ((2, 0), (2, 0), (2, 3), fleet_events.TOGETHER),  # all of a small job
        ((1, 0), (1, 0), (1, 3), fleet_events.CLEAR),
        ((2, 0), (4, 0), (4, 4), fleet_events.CLEAR),  # two of four are named
        ((2, 0), (5, 0), (5, 5), fleet_events.CLEAR),  # 40 %
        ((3, 0), (5, 0), (5, 5), fleet_events.TOGETHER),
        ((2, 1), (2, 3), (2, 3), fleet_events.TOGETHER),  # three of the five of the job
    ],
)
def test_who_slows_down_together(
    moving: tuple[int, int], judged: tuple[int, int], expected: tuple[int, int], reason: int
) -> None:
    registry = world()
    registry.put(Member(cluster="c", node="m", rank=20, job="j", role="x"), 0.0)
    cohorts = registry.cohorts
    cohorts.expected[:3] = (0, *expected)
    counts = [np.array([0.0, *each]) for each in (moving, judged, expected)]
    found = fleet_events._reasons(cohorts, *counts, np.zeros(3, bool), 100.0, POLICY)
    assert found[1] == reason
