"""Ranks that are slower by nature: GPU models, rank 0, and tasks that come back punctually."""

import math

import numpy as np
import pytest
from tests.support.member_tables import job_members
from tests.support.verdict_tables import POLICY, world

from ingero.core.verdict.events.structural import Recurrences, find_structural
from ingero.core.verdict.members import Member, MemberRegistry
from ingero.core.verdict.table import (
    HEALTHY,
)


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


def test_a_slower_gpu_model_sets_the_pace_of_its_job() -> None:
    registry = MemberRegistry(POLICY)
    for rank in range(6):
        model = "old" if rank < 3 else "new"
        member = Member(cluster="c", node=f"n{rank}", rank=rank + 1, job="j", gpu_model=model)
        index = registry.put(member, 0.0)
        registry.rows.span_s[index] = 2.0
    old, new = int(registry.rows.cohort[0]), int(registry.rows.cohort[3])
    registry.cohorts.level[[old, new]] = 0.0  # what is usual counts
    for slow_s, is_found in ((1.1, False), (1.11, True)):
        registry.cohorts.baseline_level[[old, new]] = math.log(slow_s), 0.0
        findings = find_structural(registry, POLICY)
        assert bool(findings) == is_found
    (finding,) = findings
    assert (finding.shared, finding.cohort) == ("GPU model old", old)
    assert finding.loss == pytest.approx(0.11 / 2.0)
    registry.cohorts.baseline_level[new] = np.nan
    assert find_structural(registry, POLICY) == []


def test_models_are_compared_by_ratio() -> None:
    registry = MemberRegistry(POLICY)
    for rank in range(6):
        model = "old" if rank < 3 else "new"
        registry.put(
            Member(cluster="c", node=f"n{rank}", rank=rank + 1, job="j", gpu_model=model), 0.0
        )
    old, new = int(registry.rows.cohort[0]), int(registry.rows.cohort[3])
    for slow_s, is_found in ((0.0219, False), (0.0221, True)):
        registry.cohorts.baseline_level[[old, new]] = np.log([slow_s, 0.02])
        findings = find_structural(registry, POLICY)
        assert bool(findings) == is_found
    assert findings[0].loss == pytest.approx(0.0021 / 0.0221)  # of its own time, without steps


def punctual(onsets: list[int], last: int, size: float = math.log(11.0)) -> MemberRegistry:
    """Return ranks with own times of 1 s in steps of 1 s, of which rank 1 stalls now and then."""
    registry = job_members(4)
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
    registry = job_members(4)
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


def test_a_rank_that_is_not_punctual_hides_no_other_one() -> None:
    registry = punctual([100, 200, 306, 406], 450)
    rows = registry.rows
    rows.onsets[3, :4] = [100, 200, 300, 400]
    rows.onset_count[3], rows.stall_size[3] = 4, math.log(11.0)
    rows.onset_count[[0, 2]] = 0
    registry.rows.onset_count[1] = 0
    assert [finding.member for finding in find_structural(registry, POLICY)] == [3]


def stalling_every(period: int, size: float) -> MemberRegistry:
    """Return a world whose first member stalls every so many steps by a share of its own time."""
    registry = world(excess=0.0)
    rows = registry.rows
    rows.state[0], rows.onset_count[0], rows.stall_size[0] = HEALTHY, 8, math.log1p(size)
    rows.onsets[0] = 100 + period * np.arange(8)
    rows.last_step[0] = rows.onsets[0, -1]
    return registry


@pytest.mark.parametrize(
    ("period", "size", "loss"),
    [(50, 5.0, 5 / 55), (49, 5.0, None), (100, 0.51, 0.51 / 100.51), (100, 0.49, None)],
)
def test_work_that_comes_every_fifty_steps_or_more_is_structural(
    period: int, size: float, loss: float | None
) -> None:
    found = [each for each in find_structural(stalling_every(period, size), POLICY)
             if each.key[0] == "period"]  # fmt: skip
    assert [(each.period, each.member) for each in found] == ([(period, 0)] if loss else [])
    assert [each.loss for each in found] == ([pytest.approx(loss, rel=1e-6)] if loss else [])


def test_work_is_punctual_and_goes_on() -> None:
    late = stalling_every(100, 5.0)
    late.rows.onsets[0, 4] += 3  # 2 % of the period are allowed
    assert find_structural(late, POLICY) == []
    almost = stalling_every(100, 5.0)
    almost.rows.onsets[0, 4] += 2
    assert len(find_structural(almost, POLICY)) == 1
    over = stalling_every(100, 5.0)
    over.rows.last_step[0] += 201
    assert find_structural(over, POLICY) == []
    often = stalling_every(100, 5.0)
    often.rows.onset_count[1:8] = 3  # peers stall as well: 3 times as often and two more
    assert find_structural(often, POLICY) == []
    often.rows.onset_count[1:8] = 2
    assert len(find_structural(often, POLICY)) == 1


@pytest.mark.parametrize(
    ("begins", "period"),
    [([0, 50, 100], 50), ([0, 49, 98], None), ([0, 100], None), ([0, 100, 210], 105),
     ([0, 100, 230], None)],
)  # fmt: skip
def test_slow_periods_that_come_again_have_a_period(begins: list[int], period: int | None) -> None:
    again = Recurrences()
    for step in begins:
        again.begin(3, step)
    assert again.period_of(3) == period
    again.begin(3, 5)
    assert again.begins[3] == [5], "the job started over"
    for step in (10, 20, 30, 40):
        again.begin(3, step)
    assert again.begins[3] == [20, 30, 40]
