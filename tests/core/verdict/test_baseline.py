"""Baselines: what is usual for a member, how wide it scatters, and when it is learned."""

import math

import numpy as np
import pytest
from tests.support.verdict_tables import LONG_WARM_UP, NOW_S, POLICY, RANKS, calm_world, world

from ingero.core.verdict import baseline
from ingero.core.verdict.members import MemberRegistry
from ingero.core.verdict.policy import (
    VerdictPolicy,
    decision_limit,
    drift_allowance,
    samples_between_alarms,
)
from ingero.core.verdict.table import (
    HEALTHY,
    HISTORY,
    SUSPECT,
)


def learned(history: np.ndarray) -> MemberRegistry:
    """Return members whose first baseline is computed from these residuals."""
    registry = calm_world()
    rows, count = registry.rows, history.shape[1]
    rows.baseline_samples[:RANKS] = 0
    rows.history[:RANKS, :count] = history
    rows.samples[:RANKS] = count
    baseline.compute(rows, registry.cohorts, np.arange(RANKS), LONG_WARM_UP)
    return registry


def noise(count: int = 60, spread: float = 0.01) -> np.ndarray:
    return np.random.default_rng(5).normal(0.0, spread, (RANKS, count))


def test_a_baseline_is_the_mean_and_spread_of_its_history() -> None:
    rows = learned(noise() + np.arange(RANKS)[:, None] * 0.002).rows
    assert rows.bias[:RANKS] == pytest.approx(np.arange(RANKS) * 0.002, abs=0.005)
    assert rows.scale[:RANKS] == pytest.approx(0.01, rel=0.4)
    assert (rows.baseline_samples[:RANKS] == 60).all()
    assert (rows.limit[:RANKS] > 5).all()
    assert not rows.is_uneven[:RANKS].any()


@pytest.mark.parametrize(("used", "is_forgotten"), [(60, True), (HISTORY, False)])
def test_a_first_baseline_of_calm_and_slow_samples_is_forgotten_and_no_full_one(
    used: int, is_forgotten: bool
) -> None:
    """Whoever is suspected for the first time after many minutes has a good baseline."""
    registry = calm_world()
    rows = registry.rows
    rows.state[2], rows.samples[:RANKS], rows.baseline_samples[:RANKS] = SUSPECT, 960, used
    rows.own_scale[:RANKS], rows.latest[:RANKS] = 0.05, np.float32(0.1)
    baseline.relearn(rows, registry.cohorts, np.array([2]))
    assert (rows.baseline_samples[2] == 0) == is_forgotten


def test_a_baseline_excuses_at_most_five_percent() -> None:
    history = noise()
    history[2] += 0.2
    rows = learned(history).rows
    assert rows.raw_bias[2] == pytest.approx(0.2, abs=0.01)
    assert rows.bias[2] == pytest.approx(0.05)


def test_far_samples_of_the_history_hardly_move_it_and_are_counted() -> None:
    history = noise(spread=0.001)
    history[3, [10, 11, 30]] = 5.0
    rows = learned(history).rows
    assert rows.bias[3] == pytest.approx(3 * 4 * 0.003 / 60, abs=0.002)
    assert (rows.far[3], rows.far_again[3]) == (3, 1)
    assert rows.far[0] == 0


def test_no_member_is_steadier_than_its_cohort_or_than_a_timer() -> None:
    history = noise()
    history[1] = 0.0
    rows = learned(history).rows
    assert rows.scale[1] == pytest.approx(np.median(rows.own_scale[:RANKS]))
    assert (learned(np.zeros((RANKS, 60))).rows.scale[:RANKS] == 0.003).all()
    wide = learned(noise(spread=0.04)).rows
    assert wide.is_uneven[:RANKS].all()


def test_two_groups_with_nothing_in_between_are_a_split() -> None:
    assert baseline.is_split(np.array([0.0, 0.0, 0.1, 0.1]), 0.003)
    assert not baseline.is_split(np.array([0.0, 0.0, 0.0, 0.1]), 0.003)  # one is a slow node
    assert not baseline.is_split(np.array([0.0, 0.0, 0.029, 0.029]), 0.003)
    assert baseline.is_split(np.array([0.0, 0.0, 0.031, 0.031]), 0.003)
    assert baseline.is_split(np.array([0.0, 0.0, 0.1, 0.1]), 0.049)
    assert not baseline.is_split(np.array([0.0, 0.0, 0.1, 0.1]), 0.051)  # two scales apart
    assert not baseline.is_split(np.array([0.0, 0.0, 0.1, 0.1]), 0.06)
    assert not baseline.is_split(np.array([0.0, 0.1, 0.1]), 0.003)
    many = np.concatenate((np.zeros(26), np.full(4, 0.1)))
    assert baseline.is_split(many, 0.003)
    assert not baseline.is_split(np.concatenate((np.zeros(28), np.full(2, 0.1))), 0.003)


def test_gaps_of_a_history_are_filled_with_its_own_samples() -> None:
    history = np.array([[1.0, np.nan, 3.0, np.nan, np.nan], [1.0, 2.0, 3.0, 4.0, 5.0]])
    filled = baseline.filled(history.copy())
    assert filled[0].tolist() == [1.0, 1.0, 3.0, 3.0, 1.0]
    assert filled[1].tolist() == history[1].tolist()


@pytest.mark.parametrize(("sample_s", "first"), [(0.5, 60), (1.0, 60), (10.0, 24), (100.0, 21)])
def test_long_steps_need_fewer_samples_for_a_first_baseline(sample_s: float, first: int) -> None:
    registry = calm_world()
    registry.cohorts.sample_s[registry.rows.cohort[0]] = sample_s
    assert baseline.first_history(registry.rows, registry.cohorts, LONG_WARM_UP)[0] == first


@pytest.mark.parametrize(
    ("samples", "used", "is_due"),
    [(59, 0, False), (60, 0, True), (119, 60, False), (120, 60, True), (239, 120, False),
     (240, 120, True), (999, 240, False)],
)  # fmt: skip
def test_a_baseline_is_refined_twice_and_then_frozen(samples: int, used: int, is_due: bool) -> None:
    registry = calm_world()
    registry.rows.samples[0], registry.rows.baseline_samples[0] = samples, used
    due = baseline.due(registry.rows, registry.cohorts, LONG_WARM_UP)
    assert (0 in due.tolist()) == is_due
    registry.rows.state[0] = SUSPECT
    assert 0 not in baseline.due(registry.rows, registry.cohorts, LONG_WARM_UP).tolist()


def test_samples_under_suspicion_or_during_an_event_are_not_learned() -> None:
    registry = calm_world()
    rows, cohorts = registry.rows, registry.cohorts
    rows.samples[:RANKS], rows.baseline_samples[:RANKS] = 100, 60
    rows.cusum[0], rows.cusum[1] = 3.1, 2.9
    baseline.learn(rows, cohorts, np.arange(2), np.array([0.5, 0.5]))
    assert np.isnan(rows.history[0, 100])
    assert rows.history[1, 100] == 0.5
    cohorts.reason_since_s[rows.cohort[2]] = NOW_S
    baseline.learn(rows, cohorts, np.array([2]), np.array([0.5]))
    assert np.isnan(rows.history[2, 100])
    rows.baseline_samples[2] = 0  # the first history is learned whatever happens
    baseline.learn(rows, cohorts, np.array([2]), np.array([0.5]))
    assert rows.history[2, 100] == 0.5


def test_the_bias_goes_on_as_a_clipped_mean_and_moves_by_a_hundredth_at_most() -> None:
    registry = calm_world()
    rows, one = registry.rows, np.array([0])
    rows.samples[0] = 999
    baseline.learn(rows, registry.cohorts, one, np.array([0.02]))
    assert rows.bias[0] == pytest.approx(0.02 / 1000)
    baseline.learn(rows, registry.cohorts, one, np.array([9.0]))
    assert rows.bias[0] == pytest.approx(0.02 / 1000 + 0.04 / 1000)
    rows.samples[0] = HISTORY
    for _ in range(1000):
        baseline.learn(rows, registry.cohorts, one, np.array([9.0]))
    assert rows.bias[0] == pytest.approx(0.01)
    rows.samples[0] = 8 * HISTORY
    baseline.learn(rows, registry.cohorts, one, np.array([-9.0]))
    assert rows.bias[0] == pytest.approx(0.01)


@pytest.mark.parametrize(("moved", "is_learned"), [(0.0095, True), (0.0105, False)])
def test_a_refined_baseline_is_refused_where_a_slowdown_is_being_learned(
    moved: float, is_learned: bool
) -> None:
    registry = learned(np.full((RANKS, 60), 0.02))
    rows = registry.rows
    rows.history[:RANKS, :120] = 0.02 + moved
    rows.samples[:RANKS] = 120
    baseline.compute(rows, registry.cohorts, np.arange(RANKS), LONG_WARM_UP)
    assert rows.raw_bias[0] == pytest.approx(0.02 + moved * is_learned)
    assert rows.baseline_samples[0] == 120


def test_groups_that_no_label_explains_are_not_capped() -> None:
    history = noise(spread=0.001)
    history[:4] += 0.1
    registry = learned(history)
    assert registry.cohorts.is_split[registry.rows.cohort[0]]
    assert registry.rows.bias[0] == pytest.approx(registry.rows.raw_bias[0])
    assert registry.rows.raw_bias[0] == pytest.approx(0.1, abs=0.001)


@pytest.mark.parametrize(
    ("raw", "count", "taken_for"),
    [
        (0.3, 20, 0.3 + 1.9 / 20 + 1 / math.sqrt(20 * 8)),  # its bias, and the error of 8 members
        (0.3, 240, 0.3 + 1.9 / 240 + 1 / math.sqrt(240 * 8)),
        (0.0, 20, 1 / 20 + 1 / math.sqrt(20 * 8)),
        (0.95, 240, 0.9),
        (-0.5, 240, 0.0),
    ],
)
def test_a_short_record_is_taken_for_more_correlated_than_it_looks(
    raw: float, count: int, taken_for: float
) -> None:
    rows = calm_world().rows
    rows.correlation[:RANKS], rows.baseline_samples[:RANKS] = raw, count
    found = baseline._cohort_correlation(rows, np.arange(RANKS))
    assert found == pytest.approx(taken_for)


def test_correlated_samples_and_short_records_widen_the_limit_of_a_cohort() -> None:
    """The same noise, once as it is and once with every sample twice in a row."""
    white = learned(noise(60)).rows.limit[0]
    twice = learned(np.repeat(noise(30), 2, axis=1)).rows.limit[0]
    short = learned(noise(20)).rows.limit[0]
    assert twice > 1.3 * white
    assert short > 1.1 * white


def test_a_member_is_judged_after_thirty_samples_unless_configured_otherwise() -> None:
    registry = calm_world()
    registry.rows.baseline_samples[:RANKS] = 0
    for samples, is_due in ((29, False), (30, True)):
        registry.rows.samples[:RANKS] = samples
        found = baseline.due(registry.rows, registry.cohorts, VerdictPolicy())
        assert (0 in found.tolist()) == is_due


def test_only_members_with_a_baseline_make_the_scale_of_a_cohort() -> None:
    registry = world()
    rows = registry.rows
    rows.baseline_samples[:3], rows.own_scale[:8] = 60, 0.02
    rows.own_scale[3:8] = 5.0
    baseline.compute_cohort(rows, registry.cohorts, 1, POLICY)
    assert rows.scale[:3].tolist() == [0.02] * 3
    assert rows.scale[3] == 0.01, "as before"


def test_a_pool_of_four_histories_makes_a_limit() -> None:
    """The limit of more members is that of four, since they share their noise."""
    limits = []
    for members in (1, 2, 4, 8):
        registry = world()
        rows = registry.rows
        rows.baseline_samples[:members], rows.own_scale[:8] = 60, 0.02
        baseline.compute_cohort(rows, registry.cohorts, 1, POLICY)
        correlation = 1 / 60 + 1 / math.sqrt(60 * members)
        k = drift_allowance(np.array([0.02]), np.array([60.0]), correlation, POLICY)
        between = float(samples_between_alarms(registry.cohorts.sample_s[1], POLICY))
        expected = decision_limit(
            k, np.array([60.0 * min(members, 4)]), correlation=correlation, between_alarms=between
        )
        assert rows.limit[0] == pytest.approx(expected[0])
        limits.append(rows.limit[0])
    assert limits == sorted(limits, reverse=True)


@pytest.mark.parametrize(("raw", "doubt"), [(0.0, 1 / 60), (0.2, 1.6 / 60)])
def test_a_short_record_hides_some_of_its_correlation(raw: float, doubt: float) -> None:
    rows = world().rows
    rows.baseline_samples[:8], rows.correlation[:8] = 60, raw
    found = baseline._cohort_correlation(rows, np.arange(8))
    assert found == pytest.approx(raw + doubt + 1 / math.sqrt(480))


def test_far_samples_of_a_first_history_are_counted_with_those_that_follow() -> None:
    rows = world().rows
    rows.bias[:8], rows.scale[:8] = 0.0, 0.01
    rows.history[0, :8] = [0.05, 0.05, 0.05, 0.0, 0.05, 0.0, 0.04, 0.0401]
    baseline._count_far(rows, np.array([0]))
    assert (rows.far[0], rows.far_again[0]) == (5.0, 2.0)


@pytest.mark.parametrize(("longest_s", "size_s"), [(2.0, math.expm1(0.5)), (1.1, 0.1)])
def test_far_steps_of_a_first_history_are_stalls_and_the_others_were_watched(
    longest_s: float, size_s: float
) -> None:
    """A stall makes the step of the job longer, so it is no longer than that shows."""
    registry = world()
    rows, cohorts = registry.rows, registry.cohorts
    rows.bias[:8], rows.scale[:8], rows.baseline_log_own[:8], rows.samples[:8] = 0.0, 0.01, 0.0, 27
    rows.history[:8, :27] = 0.0
    rows.history[2, 5] = 0.5
    cohorts.step_log[1, :27] = 0.0
    cohorts.step_log[1, 5] = math.log(longest_s)
    cohorts.frames_per_sample[1] = 4
    baseline._count_watched(rows, cohorts, np.arange(8))
    assert (rows.stall_steps[0], cohorts.stall_count[1]) == (0, 0), "samples of several steps"
    cohorts.frames_per_sample[1] = 1
    baseline._count_watched(rows, cohorts, np.arange(8))
    assert rows.stall_steps[:8].tolist() == [27.0] * 8
    assert (cohorts.stall_count[1], cohorts.stall_member[1, 0]) == (1, 2)
    assert cohorts.stall_s[1, 0] == pytest.approx(size_s, rel=1e-5)


@pytest.mark.parametrize(
    ("used", "count", "is_due"),
    [(0, 29, False), (0, 30, True), (30, 59, False), (60, 240, True), (240, 500, False)],
)
def test_baselines_are_due_after_the_warm_up_and_refined_later(
    used: int, count: int, is_due: bool
) -> None:
    registry = world()
    rows = registry.rows
    rows.baseline_samples[:8], rows.samples[:8] = 240, 500
    rows.baseline_samples[0], rows.samples[0], rows.state[0] = used, count, HEALTHY
    registry.cohorts.sample_s[1] = 1.0
    assert (0 in baseline.due(rows, registry.cohorts, POLICY).tolist()) == is_due
