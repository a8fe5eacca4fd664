"""Steps as sent to Fleet: one by one, or as means of groups that are equal on all ranks."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero.core.collectives.live_steps import StepTimes
from ingero.core.collectives.step_points import POINTS_PER_S, StepGroups, share_of_rank


def steps(first: int, count: int, span_s: float, own_s: float = 0.5) -> StepTimes:
    number = np.arange(first, first + count)
    own = np.full(count, own_s) + number * 1e-3
    follows = np.full(count, True)
    return StepTimes(number, own, own / 2, np.full(count, span_s), number * 10, follows)


def started(times: StepTimes) -> StepTimes:
    """The same steps without any before them."""
    return replace(times, follows=np.arange(len(times)) > 0)


def test_a_number_that_no_step_has_leaves_its_group_whole() -> None:
    """Collectives outside the pattern make the numbers of steps skip one."""
    groups = StepGroups()
    groups.take(steps(0, 8, 0.01))
    some = steps(8, 24, 0.01)
    found = groups.take(some.take(some.step != 13))
    assert found.times.step.tolist() == [8, 16, 24]
    assert groups.incomplete == 0


@pytest.mark.parametrize("lost", [8, 13, 15, 16, 30])
def test_a_group_of_which_a_step_was_lost_is_not_sent(lost: int) -> None:
    groups = StepGroups()
    groups.take(steps(0, 8, 0.01))
    some = steps(8, 24, 0.01)
    follows = some.step != lost + 1
    found = groups.take(replace(some, follows=follows).take(some.step != lost))
    assert found.times.step.tolist() == [
        number for number in (8, 16, 24) if number != lost // 8 * 8
    ]
    assert groups.incomplete == 7


def test_slow_steps_are_sent_one_by_one() -> None:
    groups = StepGroups()
    found = groups.take(steps(3, 4, 0.25))
    assert (found.times.step.tolist(), found.count) == ([3, 4, 5, 6], 1)


def test_fast_steps_are_sent_as_means_of_aligned_groups() -> None:
    groups = StepGroups()
    first = groups.take(started(steps(5, 27, 0.01)))
    assert first.count == 8
    assert first.times.step.tolist() == [8, 16, 24]
    assert first.times.own_s.tolist() == pytest.approx(
        [0.5 + 11.5e-3, 0.5 + 19.5e-3, 0.5 + 27.5e-3]
    )
    assert groups.incomplete == 3  # of a group that began before the first step
    rest = groups.take(steps(32, 10, 0.01))
    assert rest.times.step.tolist() == [32]
    assert rest.times.end_ns.tolist() == [390]


@given(st.floats(1e-4, 1.0), st.lists(st.integers(1, 200), min_size=1, max_size=20))
def test_a_rank_never_sends_more_than_its_share(span_s: float, batches: list[int]) -> None:
    groups, at, sent = StepGroups(), 0, 0
    groups.take(steps(0, 8, span_s))
    for count in batches:
        sent += len(groups.take(steps(8 + at, count, span_s)))
        at += count
    assert sent <= at * span_s * POINTS_PER_S + 1


def test_unnumbered_fast_steps_become_one_mean() -> None:
    groups = StepGroups()
    found = groups.take(
        StepTimes(
            np.full(20, -1),
            np.full(20, 2.0),
            np.full(20, np.nan),
            np.full(20, 0.01),
            np.arange(20),
            np.full(20, True),
        )
    )
    assert (found.times.step.tolist(), found.times.own_s.tolist(), found.count) == ([-1], [2.0], 20)
    assert np.isnan(found.times.idle_s).all()


def test_ranks_of_a_large_job_share_the_limit_of_fleet() -> None:
    assert share_of_rank(16, 16_384, None) == 16
    assert share_of_rank(16, 16_384, 8) == 16
    assert share_of_rank(16, 16_384, 4096) == 4
    assert share_of_rank(16, 16_384, 10**6) == 1
