"""Decisions about one member: suspected, blamed, recovering and healthy again."""

import numpy as np
import pytest
from tests.support.verdict_tables import LONG_WARM_UP, NOW_S, POLICY, RANKS, calm_world

from ingero.core.verdict.channels.stall_rates import stall_limit
from ingero.core.verdict.decision import decide
from ingero.core.verdict.members import MemberRegistry
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


def slow(registry: MemberRegistry, excess: float = 0.1, cusum: float = 10.1) -> None:
    """Let the first member be slow, in every sample."""
    registry.rows.cusum[0] = cusum
    registry.rows.recent_excess[0] = excess
    registry.rows.rises[0] = 2**32 - 1
    registry.rows.own_s[0] = np.exp(excess)


def step(registry: MemberRegistry, now_s: float = NOW_S, judged: bool = True) -> int:
    """Decide once, and return the state of the first member."""
    effect = np.median(registry.rows.recent_excess[:RANKS], axis=1)
    changed, _ = decide(registry, np.full(RANKS, judged), effect, now_s, LONG_WARM_UP)
    assert set(changed) <= {0}
    assert (registry.rows.state[1:RANKS] == HEALTHY).all()
    return int(registry.rows.state[0])


@pytest.mark.parametrize(("cusum", "state"), [(10.0, HEALTHY), (10.01, STRAGGLER)])
def test_a_plain_effect_is_blamed_at_the_limit(cusum: float, state: int) -> None:
    registry = calm_world()
    slow(registry, cusum=cusum)
    assert step(registry) == state
    if state == STRAGGLER:
        assert registry.rows.channel[0] == FAST
        assert registry.rows.since_s[0] == NOW_S
        assert registry.rows.raised_frame[0] == 64


def test_nobody_is_blamed_who_may_not_be() -> None:
    registry = calm_world()
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
    registry = calm_world()
    slow(registry, excess, cusum)
    assert step(registry) == state


def test_an_effect_must_exceed_its_margin_of_error() -> None:
    for correlation, state in ((0.8, STRAGGLER), (0.9, SUSPECT)):  # margins of 0.027 and 0.039
        registry = calm_world()
        registry.rows.correlation[0] = correlation
        slow(registry, 0.038, 15.0)
        assert step(registry) == state


def test_a_slowdown_with_gaps_is_only_suspected() -> None:
    registry = calm_world()
    slow(registry)
    registry.rows.rises[0] = 0b0101_0101
    assert step(registry) == SUSPECT


@pytest.mark.parametrize(("late_s", "state"), [(0.0, STRAGGLER), (-0.01, SUSPECT)])
def test_a_rank_that_arrives_earlier_than_its_peers_keeps_nobody_waiting(
    late_s: float, state: int
) -> None:
    registry = calm_world()
    slow(registry)
    registry.rows.lateness_s[:RANKS] = 0.0
    registry.rows.lateness_s[0] = late_s
    assert step(registry) == state


@pytest.mark.parametrize(("cusum", "state"), [(3.1, SUSPECT), (2.9, HEALTHY)])
def test_a_suspicion_is_dropped_when_its_channel_falls(cusum: float, state: int) -> None:
    registry = calm_world()
    slow(registry, 0.01)
    assert step(registry) == SUSPECT
    registry.rows.cusum[0] = cusum
    assert step(registry) == state
    assert registry.rows.cusum[0] == (0.0 if state == HEALTHY else cusum)
    assert registry.rows.ended_s[0] == -np.inf  # it never was blamed


def blamed(excess: float = 0.1) -> MemberRegistry:
    registry = calm_world()
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
    _, gone = decide(registry, np.zeros(RANKS, bool), effect, NOW_S + silent_s, LONG_WARM_UP)
    assert registry.rows.state[0] == state
    assert gone[0] == (state == HEALTHY)


@pytest.mark.parametrize(
    ("bias", "samples", "state"),
    [(0.051, HISTORY, STRAGGLER), (0.049, HISTORY, HEALTHY), (0.051, HISTORY - 1, HEALTHY)],
)
def test_a_member_that_always_was_slow_is_blamed_once_its_baseline_is_complete(
    bias: float, samples: int, state: int
) -> None:
    registry = calm_world()
    registry.rows.raw_bias[0], registry.rows.bias[0] = bias, 0.05
    registry.rows.baseline_samples[0] = samples
    assert step(registry) == state
    if state == STRAGGLER:
        assert registry.rows.channel[0] == CHRONIC


def test_a_member_that_always_was_slow_recovers_when_it_is_as_fast_as_its_peers() -> None:
    registry = calm_world()
    registry.rows.raw_bias[0] = registry.rows.bias[0] = 0.06
    assert step(registry) == STRAGGLER
    registry.rows.recent_excess[0] = -0.05
    assert step(registry) == STRAGGLER
    registry.rows.recent_excess[0] = -0.053
    assert step(registry) == RECOVERING


@pytest.mark.parametrize(("samples", "state"), [(191, HEALTHY), (192, STRAGGLER)])
def test_a_baseline_is_complete_at_eight_times_its_first_history(samples: int, state: int) -> None:
    """Samples of ten seconds need 24 of them for the first one."""
    registry = calm_world()
    registry.cohorts.sample_s[registry.rows.cohort[0]] = 10.0
    registry.rows.raw_bias[0] = registry.rows.bias[0] = 0.06
    registry.rows.baseline_samples[0] = samples
    assert step(registry) == state


def test_rank_zero_and_members_of_small_cohorts_may_always_be_slow() -> None:
    for change in ("is_structural", "is_small"):
        registry = calm_world()
        registry.rows.raw_bias[0] = registry.rows.bias[0] = 0.3
        if change == "is_structural":
            registry.rows.is_structural[0] = True
        else:
            registry.cohorts.is_small[registry.rows.cohort[0]] = True
        assert step(registry) == HEALTHY


@pytest.mark.parametrize(
    ("above", "stalls", "state"),
    [(0.1, 4, STRAGGLER), (-0.1, 4, HEALTHY), (0.1, 1, SUSPECT)],
)
def test_stalls_are_blamed_beyond_their_limit_if_peers_stall_less(
    above: float, stalls: int, state: int
) -> None:
    registry = calm_world()
    rows, cohorts = registry.rows, registry.cohorts
    limit = float(stall_limit(cohorts, POLICY)[rows.cohort[0]])
    rows.stall_cusum[0], rows.stall_steps[:RANKS], cohorts.frames[:] = limit + above, 200.0, 200
    rows.run_s[0], rows.run_stalls[0], rows.run_steps[0] = 1.0, stalls, 30.0
    rows.least_stall_s[0] = 0.1
    assert step(registry) == state
    if state == STRAGGLER:
        assert rows.channel[0] == STALL
        rows.stall_cusum[0] = 0.3 * limit + 0.01
        assert step(registry) == STRAGGLER
        rows.stall_cusum[0] = 0.3 * limit - 0.01
        assert step(registry) == RECOVERING


def test_a_suspicion_that_ends_leaves_what_other_channels_gathered() -> None:
    registry = calm_world()
    rows = registry.rows
    rows.state[0], rows.channel[0], rows.cusum[0], rows.stall_cusum[0] = SUSPECT, FAST, 1.0, 8.0
    assert step(registry) == HEALTHY
    assert (rows.cusum[0], rows.stall_cusum[0]) == (0.0, 8.0)


def test_what_the_job_waits_for_takes_over_from_a_suspicion_of_own_time() -> None:
    registry = calm_world()
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
    registry = calm_world()
    slow(registry, excess, cusum)
    rows = registry.rows
    rows.scale[:RANKS], rows.recent_excess[0, :calm] = 0.003, 0.0
    rows.state[0], rows.channel[0] = before, ADVANCE
    rows.advance_recent[0], rows.advance_cusum[0] = advance, 3.1
    state = step(registry)
    assert rows.channel[0] == channel
    is_calm = channel == ADVANCE and advance < LONG_WARM_UP.gate / 2
    assert state == (RECOVERING if is_calm else STRAGGLER if channel == FAST else before)
