"""Decisions about one member: suspected, blamed, recovering and healthy again."""

import math

import numpy as np
import pytest

from ingero.core.verdict import baseline
from ingero.core.verdict.decision import decide
from ingero.core.verdict.members import Member, MemberRegistry
from ingero.core.verdict.policy import VerdictPolicy
from ingero.core.verdict.table import (
    ADVANCE,
    CHRONIC,
    FAST,
    HEALTHY,
    HISTORY,
    RECOVERING,
    STALL,
    STRAGGLER,
    SUSPECT,
)

POLICY = VerdictPolicy(warmup_samples=60)
NOW_S = 1000.0
RANKS = 8


def world() -> MemberRegistry:
    """Return eight calm members with a baseline: scale 0.01, limit 10."""
    registry = MemberRegistry(POLICY)
    for rank in range(1, RANKS + 1):
        member = Member(cluster="c", node=f"n{rank}", rank=rank, job="j")
        registry.rows.last_seen_s[registry.put(member, 0.0)] = NOW_S
    rows = registry.rows
    rows.limit[:RANKS], rows.scale[:RANKS], rows.k[:RANKS] = 10.0, 0.01, 0.5
    rows.baseline_samples[:RANKS], rows.samples[:RANKS] = HISTORY, 1000
    rows.recent_excess[:RANKS] = 0.0
    rows.advance_limit[:RANKS] = 10.0
    rows.frames[:RANKS], rows.own_s[:RANKS], rows.baseline_log_own[:RANKS] = 64, 1.0, 0.0
    registry.cohorts.expected[1] = float(RANKS)
    return registry


def slow(registry: MemberRegistry, excess: float = 0.1, cusum: float = 10.1) -> None:
    """Let the first member be slow, in every sample."""
    registry.rows.cusum[0] = cusum
    registry.rows.recent_excess[0] = excess
    registry.rows.rises[0] = 2**32 - 1
    registry.rows.own_s[0] = np.exp(excess)


def step(registry: MemberRegistry, now_s: float = NOW_S, judged: bool = True) -> int:
    """Decide once, and return the state of the first member."""
    effect = np.median(registry.rows.recent_excess[:RANKS], axis=1)
    changed, _ = decide(registry, np.full(RANKS, judged), effect, now_s, POLICY)
    assert set(changed) <= {0}
    assert (registry.rows.state[1:RANKS] == HEALTHY).all()
    return int(registry.rows.state[0])


@pytest.mark.parametrize(("cusum", "state"), [(10.0, HEALTHY), (10.01, STRAGGLER)])
def test_a_plain_effect_is_blamed_at_the_limit(cusum: float, state: int) -> None:
    registry = world()
    slow(registry, cusum=cusum)
    assert step(registry) == state
    if state == STRAGGLER:
        assert registry.rows.channel[0] == FAST
        assert registry.rows.since_s[0] == NOW_S
        assert registry.rows.raised_frame[0] == 64


def test_nobody_is_blamed_who_may_not_be() -> None:
    registry = world()
    slow(registry)
    assert step(registry, judged=False) == HEALTHY


@pytest.mark.parametrize(
    ("excess", "cusum", "state"),
    [
        (0.0375, 10.1, STRAGGLER),  # four scales without the noise of the peers' median
        (0.0373, 10.1, SUSPECT),
        (0.0373, 14.1, STRAGGLER),  # a small effect must last until it is well above the limit
        (0.0373, 13.9, SUSPECT),
        (0.0149, 15.0, SUSPECT),  # below the gate nothing is confirmed
        (0.0151, 15.0, STRAGGLER),
    ],
)
def test_a_small_effect_must_last(excess: float, cusum: float, state: int) -> None:
    registry = world()
    slow(registry, excess, cusum)
    assert step(registry) == state


def test_an_effect_must_exceed_its_margin_of_error() -> None:
    for correlation, state in ((0.8, STRAGGLER), (0.9, SUSPECT)):  # margins of 0.027 and 0.039
        registry = world()
        registry.rows.correlation[0] = correlation
        slow(registry, 0.038, 15.0)
        assert step(registry) == state


def test_a_slowdown_with_gaps_is_only_suspected() -> None:
    registry = world()
    slow(registry)
    registry.rows.rises[0] = 0b0101_0101
    assert step(registry) == SUSPECT


@pytest.mark.parametrize(("late_s", "state"), [(0.0, STRAGGLER), (-0.01, SUSPECT)])
def test_a_rank_that_arrives_earlier_than_its_peers_keeps_nobody_waiting(
    late_s: float, state: int
) -> None:
    registry = world()
    slow(registry)
    registry.rows.lateness_s[:RANKS] = 0.0
    registry.rows.lateness_s[0] = late_s
    assert step(registry) == state


@pytest.mark.parametrize(("cusum", "state"), [(3.1, SUSPECT), (2.9, HEALTHY)])
def test_a_suspicion_is_dropped_when_its_channel_falls(cusum: float, state: int) -> None:
    registry = world()
    slow(registry, 0.01)
    assert step(registry) == SUSPECT
    registry.rows.cusum[0] = cusum
    assert step(registry) == state
    assert registry.rows.cusum[0] == (0.0 if state == HEALTHY else cusum)
    assert registry.rows.ended_s[0] == -np.inf  # it never was blamed


def blamed(excess: float = 0.1) -> MemberRegistry:
    registry = world()
    slow(registry, excess)
    assert step(registry) == STRAGGLER
    return registry


@pytest.mark.parametrize(("excess", "state"), [(0.0076, STRAGGLER), (0.0074, RECOVERING)])
def test_a_blamed_member_recovers_below_half_of_the_gate(excess: float, state: int) -> None:
    registry = blamed()
    registry.rows.recent_excess[0] = excess
    assert step(registry) == state
    if state == RECOVERING:
        assert registry.rows.quiet_samples[0] == 0


def test_an_episode_ends_after_forty_quiet_samples() -> None:
    registry = blamed()
    registry.rows.recent_excess[0] = 0.0
    registry.rows.cusum[0] = 0.0
    assert step(registry) == RECOVERING
    registry.rows.quiet_samples[0] = 39
    assert step(registry) == RECOVERING
    registry.rows.quiet_samples[0] = 40
    assert step(registry, NOW_S + 50) == HEALTHY
    assert registry.rows.ended_s[0] == NOW_S + 50


def test_a_member_that_relapses_is_blamed_again_and_held_longer() -> None:
    registry = blamed()
    registry.rows.recent_excess[0] = 0.0
    assert step(registry) == RECOVERING
    registry.rows.quiet_samples[0] = 20
    slow(registry)
    assert step(registry) == STRAGGLER
    assert registry.rows.hold_samples[0] == 2 * 20 + 10
    registry.rows.recent_excess[0] = 0.0  # now it must be calm for fifty samples
    assert step(registry) == STRAGGLER
    registry.rows.samples[0] += 49
    assert step(registry) == STRAGGLER
    registry.rows.samples[0] += 1
    assert step(registry) == RECOVERING


@pytest.mark.parametrize(("pause_s", "is_same"), [(600.0, True), (600.1, False)])
def test_a_member_that_is_slow_again_soon_goes_on_with_its_episode(
    pause_s: float, is_same: bool
) -> None:
    registry = blamed()
    registry.rows.state[0], registry.rows.ended_s[0] = HEALTHY, NOW_S
    registry.rows.last_seen_s[:RANKS] = NOW_S + pause_s
    assert step(registry, NOW_S + pause_s) == STRAGGLER
    assert (registry.rows.since_s[0] == NOW_S) == is_same
    assert registry.rows.hold_samples[0] == (150 if is_same else 0)


@pytest.mark.parametrize(("silent_s", "state"), [(300.0, STRAGGLER), (300.1, HEALTHY)])
def test_a_member_that_is_gone_is_not_blamed_any_more(silent_s: float, state: int) -> None:
    registry = blamed()
    effect = np.full(RANKS, 0.1)
    _, gone = decide(registry, np.zeros(RANKS, bool), effect, NOW_S + silent_s, POLICY)
    assert registry.rows.state[0] == state
    assert gone[0] == (state == HEALTHY)


@pytest.mark.parametrize(
    ("bias", "samples", "state"),
    [(0.051, HISTORY, STRAGGLER), (0.049, HISTORY, HEALTHY), (0.051, HISTORY - 1, HEALTHY)],
)
def test_a_member_that_always_was_slow_is_blamed_once_its_baseline_is_complete(
    bias: float, samples: int, state: int
) -> None:
    registry = world()
    registry.rows.raw_bias[0], registry.rows.bias[0] = bias, 0.05
    registry.rows.baseline_samples[0] = samples
    assert step(registry) == state
    if state == STRAGGLER:
        assert registry.rows.channel[0] == CHRONIC


def test_a_member_that_always_was_slow_recovers_when_it_is_as_fast_as_its_peers() -> None:
    registry = world()
    registry.rows.raw_bias[0] = registry.rows.bias[0] = 0.06
    assert step(registry) == STRAGGLER
    registry.rows.recent_excess[0] = -0.05
    assert step(registry) == STRAGGLER
    registry.rows.recent_excess[0] = -0.053
    assert step(registry) == RECOVERING


@pytest.mark.parametrize(("samples", "state"), [(191, HEALTHY), (192, STRAGGLER)])
def test_a_baseline_is_complete_at_eight_times_its_first_history(samples: int, state: int) -> None:
    """Samples of ten seconds need 24 of them for the first one."""
    registry = world()
    registry.cohorts.sample_s[registry.rows.cohort[0]] = 10.0
    registry.rows.raw_bias[0] = registry.rows.bias[0] = 0.06
    registry.rows.baseline_samples[0] = samples
    assert step(registry) == state


def test_rank_zero_and_members_of_small_cohorts_may_always_be_slow() -> None:
    for change in ("is_structural", "is_small"):
        registry = world()
        registry.rows.raw_bias[0] = registry.rows.bias[0] = 0.3
        if change == "is_structural":
            registry.rows.is_structural[0] = True
        else:
            registry.cohorts.is_small[registry.rows.cohort[0]] = True
        assert step(registry) == HEALTHY


@pytest.mark.parametrize(
    ("cusum", "stalls", "state"),
    [(9.1, 20.0, STRAGGLER), (9.0, 20.0, HEALTHY), (9.1, 1.0, SUSPECT)],
)
def test_stalls_are_blamed_beyond_their_limit_if_peers_stall_less(
    cusum: float, stalls: float, state: int
) -> None:
    registry = world()
    registry.rows.stall_cusum[0] = cusum
    registry.rows.recent_steps[:RANKS], registry.rows.recent_stalls[0] = 200.0, stalls
    assert step(registry) == state
    if state == STRAGGLER:
        assert registry.rows.channel[0] == STALL
        registry.rows.stall_cusum[0] = 2.7
        assert step(registry) == STRAGGLER
        registry.rows.stall_cusum[0] = 2.69
        assert step(registry) == RECOVERING


def test_what_the_job_waits_for_takes_over_from_a_suspicion_of_own_time() -> None:
    registry = world()
    slow(registry, 0.014)
    assert step(registry) == SUSPECT
    rows = registry.rows
    rows.advance_cusum[0], rows.advance_rises[0] = 10.1, 0b1111111
    rows.advance_recent[0], rows.span_s[:RANKS] = 0.02, 1.0
    assert step(registry) == STRAGGLER
    assert rows.channel[0] == ADVANCE
    rows.advance_recent[0] = 0.0076
    assert step(registry) == STRAGGLER
    rows.advance_recent[0] = 0.0074
    assert step(registry) == RECOVERING


@pytest.mark.parametrize("before", [STRAGGLER, RECOVERING])
@pytest.mark.parametrize(
    ("advance", "excess", "cusum", "calm", "channel"),
    [
        (0.0074, 0.0151, 3.1, 1, FAST),
        (0.0074, 0.1, 3.1, 2, ADVANCE),  # it recovers
        (0.0076, 0.1, 3.1, 0, ADVANCE),  # the job waits for it alone
        (0.0074, 0.0149, 3.1, 0, ADVANCE),
        (0.0074, 0.1, 2.9, 0, ADVANCE),  # its own time was not slow for long
    ],
)
def test_own_time_decides_where_another_is_as_late(
    before: int, advance: float, excess: float, cusum: float, calm: int, channel: int
) -> None:
    registry = world()
    slow(registry, excess, cusum)
    rows = registry.rows
    rows.scale[:RANKS], rows.recent_excess[0, :calm] = 0.003, 0.0
    rows.state[0], rows.channel[0] = before, ADVANCE
    rows.advance_recent[0], rows.advance_cusum[0] = advance, 3.1
    state = step(registry)
    assert rows.channel[0] == channel
    is_calm = channel == ADVANCE and advance < POLICY.gate / 2
    assert state == (RECOVERING if is_calm else STRAGGLER if channel == FAST else before)


def learned(history: np.ndarray) -> MemberRegistry:
    """Return members whose first baseline is computed from these residuals."""
    registry = world()
    rows, count = registry.rows, history.shape[1]
    rows.baseline_samples[:RANKS] = 0
    rows.history[:RANKS, :count] = history
    rows.samples[:RANKS] = count
    baseline.compute(rows, registry.cohorts, np.arange(RANKS), POLICY)
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
    registry = world()
    registry.cohorts.sample_s[registry.rows.cohort[0]] = sample_s
    assert baseline.first_history(registry.rows, registry.cohorts, POLICY)[0] == first


@pytest.mark.parametrize(
    ("samples", "used", "is_due"),
    [(59, 0, False), (60, 0, True), (119, 60, False), (120, 60, True), (239, 120, False),
     (240, 120, True), (999, 240, False)],
)  # fmt: skip
def test_a_baseline_is_refined_twice_and_then_frozen(samples: int, used: int, is_due: bool) -> None:
    registry = world()
    registry.rows.samples[0], registry.rows.baseline_samples[0] = samples, used
    due = baseline.due(registry.rows, registry.cohorts, POLICY)
    assert (0 in due.tolist()) == is_due
    registry.rows.state[0] = SUSPECT
    assert 0 not in baseline.due(registry.rows, registry.cohorts, POLICY).tolist()


def test_samples_under_suspicion_or_during_an_event_are_not_learned() -> None:
    registry = world()
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
    registry = world()
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
    baseline.compute(rows, registry.cohorts, np.arange(RANKS), POLICY)
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
    rows = world().rows
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
    registry = world()
    registry.rows.baseline_samples[:RANKS] = 0
    for samples, is_due in ((29, False), (30, True)):
        registry.rows.samples[:RANKS] = samples
        found = baseline.due(registry.rows, registry.cohorts, VerdictPolicy())
        assert (0 in found.tolist()) == is_due
