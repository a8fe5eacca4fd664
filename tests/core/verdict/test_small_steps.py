"""What is learned and kept of steps, on tables alone."""

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.support.step_tables import CALM, with_steps
from tests.support.verdict_tables import POLICY, world

from ingero.core.verdict import baseline, residuals
from ingero.core.verdict.baseline import YOUNG, forget_start, relearn
from ingero.core.verdict.channels.advance import _learn as learn_advances
from ingero.core.verdict.channels.advance import close_advances
from ingero.core.verdict.channels.stall import update_stalls
from ingero.core.verdict.channels.step import STEP_LIMIT
from ingero.core.verdict.job_steps import BLOCK
from ingero.core.verdict.loss import change_of_step
from ingero.core.verdict.members import Member, MemberRegistry
from ingero.core.verdict.own_times import FrameBuffer, make_batch
from ingero.core.verdict.table import (
    HISTORY,
    RECENT_HISTORY,
    STALL,
    STRAGGLER,
)
from ingero.core.verdict.verdicts import episode_id


def test_repeated_samples_of_two_cohorts_leave_whole_steps() -> None:
    buffer = FrameBuffer()
    members, steps = [0, 0, 1, 2, 3, 3, 0, 1, 2, 3], [1, 1, 1, 1, 1, 1, 2, 2, 2, 2]
    buffer.add(make_batch(np.array(members), np.ones(10), np.array(steps)), 0.0)
    cohort_of, live = np.array([0, 0, 1, 1]), np.array([2.0, 2.0])
    frames = buffer.close(cohort_of, live, np.array([9.0, 9.0]), 0.0)
    assert buffer.duplicates == 2
    found = [list(zip(f.batch.member.tolist(), f.batch.step.tolist(), strict=True)) for f in frames]
    assert found == [[(0, 1), (1, 1), (2, 1), (3, 1)], [(0, 2), (1, 2), (2, 2), (3, 2)]]
    assert [f.cohort.tolist() for f in frames] == [[0, 0, 1, 1]] * 2


def test_turns_are_as_many_as_a_member_has_samples() -> None:
    assert [turn.tolist() for turn in residuals._turns(np.array([4, 7, 4, 4]))] == [
        [0, 1], [2], [3],
    ]  # fmt: skip
    assert residuals._turns(np.array([], np.intp)) == []


def test_a_member_without_residuals_makes_no_sample() -> None:
    registry = world()
    rows = registry.rows
    rows.residual_sum[1], rows.residual_count[1] = 0.3, 3
    residuals._close_samples(registry, np.array([0, 1]))
    assert rows.samples[:2].tolist() == [0, 1]
    assert rows.latest[1, 0] == pytest.approx(0.1)


def test_a_stall_is_an_excess_over_what_is_usual_for_the_member() -> None:
    registry = world()
    rows = registry.rows
    rows.bias[:8], rows.scale[:8] = 0.1, 0.001
    residual = np.array([0.1, 0.3])
    unknown = np.full(2, np.nan)
    members = np.array([0, 1])
    update_stalls(rows, registry.cohorts, members, residual, np.array([5, 5]), unknown, unknown)
    assert rows.onset_count[:2].tolist() == [0, 1]
    assert rows.stall_size[1] == pytest.approx(0.2)


@pytest.mark.parametrize(("blocks", "spread"), [((1.0, 1.2, 1.4), 0.2), ((1.2, 1.2, 1.2), 0.0)])
def test_stalls_that_come_in_bunches_make_their_loss_uncertain(
    blocks: tuple[float, ...], spread: float
) -> None:
    values = np.log(np.repeat(blocks, BLOCK))
    change = change_of_step(with_steps(values, STALL), 0, replace(CALM, noise=0.0))
    assert change is not None and change.slow_s == pytest.approx(1.2)
    expected = spread / 1.2 / math.sqrt(3)
    assert change.error == pytest.approx(1 / 1.2 * math.hypot(CALM.error, expected))


def test_an_episode_is_named_by_sixteen_digits() -> None:
    """`ingero replay EPISODE` and the files of kept episodes take this name."""
    name = episode_id(Member(cluster="c", node="n", rank=1, job="j"), 77.0)
    assert re.fullmatch("[0-9a-f]{16}", name)


def test_medians_of_steps_are_kept_apart() -> None:
    for stride in (1, 2, 64, 1024):
        places = residuals._slot(np.arange(0, 200 * stride, stride, dtype=np.int64))
        assert len(set(places.tolist())) > 150, stride


def a_step(registry: MemberRegistry, log_own: list[float], step: int) -> None:
    """Close one step of the first members."""
    members = np.arange(len(log_own))
    batch = make_batch(members, np.exp(log_own), np.full(len(log_own), step))
    frame = residuals.Frame(registry.rows.cohort[members], batch)
    residuals.take_frame(registry, frame, 100.0)


def test_a_late_sample_is_compared_with_the_middle_of_what_peers_showed() -> None:
    registry = world()
    rows, cohorts = registry.rows, registry.cohorts
    cohorts.frames_per_sample[1] = 100
    a_step(registry, [0.0, 0.1, 0.2, 0.3], 7)  # without one of them, the medians are 0.1 or 0.2
    late = make_batch(np.array([5]), np.array([math.exp(0.45)]), np.array([7]))
    assert residuals.take_late(registry, late, 101.0) == 0
    assert rows.residual_sum[5] == pytest.approx(0.30, abs=1e-6)
    unknown = make_batch(np.array([6]), np.array([1.0]), np.array([8]))
    assert residuals.take_late(registry, unknown, 101.0) == 1
    assert rows.residual_count[6] == 0


@pytest.mark.parametrize(("members", "too_late"), [(2, 0), (1, 1)])
def test_a_late_sample_needs_two_peers_at_its_step(members: int, too_late: int) -> None:
    registry = world()
    a_step(registry, [0.1] * members, 7)
    late = make_batch(np.array([5]), np.array([1.0]), np.array([7]))
    assert residuals.take_late(registry, late, 101.0) == too_late


@pytest.mark.parametrize(("per_sample", "moved"), [(1, 0.02), (10, 0.002), (0, 0.02)])
def test_a_baseline_follows_whole_samples(per_sample: int, moved: float) -> None:
    registry = world()
    registry.rows.baseline_log_own[:8], registry.rows.state[0] = 0.0, 0
    registry.rows.cusum[0], registry.rows.frames[:8] = 0.0, 1000
    registry.cohorts.frames_per_sample[1] = per_sample
    members = np.arange(4)
    batch = make_batch(members, np.full(4, math.e), np.full(4, 1))
    residuals._follow_baselines(registry, batch, np.ones(4), registry.rows.cohort[members])
    assert registry.rows.baseline_log_own[0] == pytest.approx(moved)


def test_each_cohort_of_a_step_counts_once() -> None:
    registry = world()
    for rank in range(100, 104):
        registry.put(Member(cluster="c", node=f"m{rank}", rank=rank, job="k"), 0.0)
    rows, cohorts = registry.rows, registry.cohorts
    members = np.array([0, 1, 2, 8, 9, 10])
    batch = make_batch(members, np.ones(6), np.full(6, 1))
    present = residuals._advance_cohorts(
        registry, batch, rows.cohort[members], np.zeros(cohorts.size), 100.0
    )
    assert present.tolist() == [rows.cohort[0], rows.cohort[8]]


def test_a_member_starts_over_with_its_last_minute() -> None:
    rows = world().rows
    rows.baseline_samples[:8], rows.samples[:8] = 240, 240
    rows.latest[0] = np.linspace(0, 1, RECENT_HISTORY)
    rows.last_log_own[0] = 0.7
    baseline._start_over(rows, np.array([0]))
    assert (rows.baseline_samples[0], rows.samples[0]) == (0, RECENT_HISTORY)
    assert rows.history[0, :RECENT_HISTORY].tolist() == rows.latest[0].tolist()
    assert rows.last_log_own[0] == pytest.approx(0.7)
    assert rows.baseline_samples[1] == 240


def test_a_cohort_that_has_settled_learns_anew() -> None:
    registry = world()
    rows, cohorts = registry.rows, registry.cohorts
    rows.baseline_samples[:8], cohorts.baseline_level[1] = 240, 0.5
    forget_start(rows, cohorts)
    assert rows.baseline_samples[0] == 240
    cohorts.has_settled[1] = True
    forget_start(rows, cohorts)
    assert not rows.baseline_samples[:8].any()
    assert np.isnan(cohorts.baseline_level[1])
    assert not cohorts.has_settled[1]


def compiled_first(samples: int) -> MemberRegistry:
    """Return a world whose first member was slow when its baseline was learned, and is no more."""
    registry = world()
    rows = registry.rows
    rows.state[0] = 0
    rows.baseline_samples[:8], rows.samples[:8] = 60, samples
    rows.raw_bias[0], rows.latest[:8] = 0.2, 0.0
    rows.scale[:8] = rows.own_scale[:8] = 0.003
    return registry


@pytest.mark.parametrize(
    ("samples", "is_again"),
    [(120, True), (119, False), (YOUNG - RECENT_HISTORY, True), (YOUNG, False)],
)
def test_what_was_learned_of_a_slow_start_is_learned_again_in_the_first_half_hour(
    samples: int, is_again: bool
) -> None:
    registry = compiled_first(samples)
    relearn(registry.rows, registry.cohorts, np.arange(8))
    assert (registry.rows.baseline_samples[0] == 0) == is_again
    assert registry.rows.baseline_samples[1] == 60


@pytest.mark.parametrize(("spread", "is_again"), [(0.2, True), (0.45, False)])
def test_chance_lets_no_member_start_over(spread: float, is_again: bool) -> None:
    registry = compiled_first(120)
    registry.rows.own_scale[:8] = spread  # a bias of 0.2 is beyond three of its errors, or not
    relearn(registry.rows, registry.cohorts, np.arange(8))
    assert (registry.rows.baseline_samples[0] == 0) == is_again


def test_nobody_starts_over_while_somebody_slows_the_job_down() -> None:
    registry = compiled_first(120)
    registry.cohorts.step_cusum[registry.rows.cohort[0]] = STEP_LIMIT + 0.1
    relearn(registry.rows, registry.cohorts, np.arange(8))
    assert registry.rows.baseline_samples[0] == 60


def test_two_calm_windows_in_a_row_let_a_cohort_start_over() -> None:
    """How calm they are is the spread around their middle, wherever that is."""
    registry = compiled_first(120)
    rows, cohorts = registry.rows, registry.cohorts
    rows.raw_bias[0], rows.scale[:8] = 0.0, 0.02
    rows.latest[:8] = 0.5 + 0.001 * np.resize([1.0, -1.0], RECENT_HISTORY)
    relearn(rows, cohorts, np.arange(8))
    assert (cohorts.calm_windows[1], rows.baseline_samples[1]) == (1, 60)
    relearn(rows, cohorts, np.arange(8))
    assert (cohorts.calm_windows[1], rows.baseline_samples[1]) == (0, 0)


def test_the_bias_is_the_clipped_mean_of_skewed_samples() -> None:
    rows = world().rows
    rows.baseline_samples[0] = 0
    history = np.resize([0.10, 0.11, 0.12, 0.20], HISTORY)
    rows.history[0] = history
    baseline._compute_members(rows, np.array([0]), 40)
    assert rows.raw_bias[0] == pytest.approx(history[:40].mean(), abs=0.01)
    assert rows.raw_bias[0] > np.median(history[:40])


@pytest.mark.parametrize(("moved", "is_learned"), [(0.005, True), (0.05, False)])
def test_a_slowdown_is_not_learned_as_the_usual_advance(moved: float, is_learned: bool) -> None:
    registry = world()
    rows = registry.rows
    rows.advance_samples[:8] = 60
    rows.advance_history[:8, :60] = 0.02 + 0.0005 * np.resize([1, -1], 60)
    learn_advances(rows, registry.cohorts, 1, POLICY)
    first = rows.advance_bias[:8].copy()
    assert first == pytest.approx(0.02, abs=1e-3)
    rows.advance_learned[:8] = 60
    rows.advance_history[0, :60] += moved
    learn_advances(rows, registry.cohorts, 1, POLICY)
    assert rows.advance_bias[0] == pytest.approx(first[0] + (moved if is_learned else 0), abs=1e-3)
    assert rows.advance_bias[1:8] == pytest.approx(first[1:], abs=1e-6)


def advances(share: float, *, cusum: float = 0.0, state: int = 0) -> MemberRegistry:
    """Return a world in which the first member has a baseline, and one sample is closed."""
    registry = world()
    rows = registry.rows
    rows.advance_learned[:8], rows.advance_samples[:8] = 20, 20
    rows.advance_bias[:8], rows.advance_scale[:8] = 0.01, 0.01
    rows.advance_limit[:8], rows.advance_k[:8] = 10.0, 0.75
    rows.advance_cusum[0], rows.state[0] = cusum, state
    rows.advance_sum[0], rows.advance_count[0] = 2 * share, 2
    first = np.full(8, 30.0)
    close_advances(rows, registry.cohorts, np.arange(8), POLICY, first)
    return registry


@pytest.mark.parametrize(
    ("given", "is_learned"),
    [
        ({"share": 0.012}, True),
        ({"share": 0.05}, False),  # far above what is usual
        ({"share": 0.012, "cusum": 5.0}, False),  # the channel has risen
        ({"share": 0.012, "state": STRAGGLER}, False),
    ],
)
def test_advances_are_learned_while_a_member_is_calm(
    given: dict[str, Any], is_learned: bool
) -> None:
    rows = advances(**given).rows
    assert rows.advance_samples[0] == (21 if is_learned else 20)
    assert rows.advance_samples[1] == 20, "without an advance there is nothing to learn"
    assert (rows.advance_sum[0], rows.advance_count[0]) == (0.0, 0.0)


def test_a_baseline_level_is_set_once() -> None:
    registry = world()
    rows, cohorts = registry.rows, registry.cohorts
    rows.baseline_samples[:8], rows.own_scale[:8] = 60, 0.01
    cohorts.level[1], cohorts.baseline_level[1] = 0.3, np.nan
    baseline.compute_cohort(rows, cohorts, 1, POLICY)
    assert cohorts.baseline_level[1] == pytest.approx(0.3)
    cohorts.level[1] = 0.9
    baseline.compute_cohort(rows, cohorts, 1, POLICY)
    assert cohorts.baseline_level[1] == pytest.approx(0.3)


@pytest.mark.parametrize(("cusum", "is_learned"), [(0.9, True), (1.1, False)])
def test_a_baseline_is_not_learned_from_a_tenth_of_the_limit_on(
    cusum: float, is_learned: bool
) -> None:
    registry = world()
    rows = registry.rows
    rows.baseline_log_own[:8], rows.state[0], rows.cusum[0] = 0.0, 0, cusum
    members = np.arange(4)
    batch = make_batch(members, np.full(4, math.e), np.full(4, 1))
    residuals._follow_baselines(registry, batch, np.ones(4), rows.cohort[members])
    assert (rows.baseline_log_own[0] > 0) == is_learned
