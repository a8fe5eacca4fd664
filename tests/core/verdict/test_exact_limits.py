"""Values that are exactly at a limit, and those just beside it: on which side they count."""

import math

import numpy as np
import pytest
from tests.support.verdict_tables import POLICY, world

from ingero.core.verdict import baseline
from ingero.core.verdict.channels.fast import (
    is_persistent,
    lasting_samples,
    margin_of_error,
    plain_effect,
    recent_effect,
    update_fast,
)
from ingero.core.verdict.channels.stall_rates import stall_limit
from ingero.core.verdict.decision import _channels, _has_effect
from ingero.core.verdict.events import fleet_events
from ingero.core.verdict.events.groups import Group, Groups
from ingero.core.verdict.members import Member, MemberRegistry
from ingero.core.verdict.table import (
    ADVANCE,
    CHRONIC,
    FAST,
    HEALTHY,
    STALL,
    STRAGGLER,
    SUSPECT,
    MemberRows,
)

ONE = np.array([0])


def sampled(
    residual: float, *, cusum: float = 0.0, state: int = HEALTHY, run: int = 0
) -> MemberRows:
    """Return members with a scale of a quarter and an allowance of one, after one sample."""
    registry = world()
    rows = registry.rows
    rows.scale[:8], rows.k[:8], rows.limit[:8], rows.bias[:8] = 0.25, 1.0, 10.0, 0.5
    rows.cusum[0], rows.state[0], rows.far_run[0], rows.rises[0] = cusum, state, run, 0b1
    rows.samples[0], registry.cohorts.step_samples[1], registry.cohorts.frames[1] = 7, 33, 44
    update_fast(rows, registry.cohorts, ONE, np.array([0.5 + residual]))
    return rows


@pytest.mark.parametrize(
    ("residual", "before", "after", "rises", "run"),
    [
        (0.25, 0.0, 0.0, 0b10, 0),  # as much as is allowed
        (0.5, 0.0, 1.0, 0b11, 0),
        (0.5, 2.0, 3.0, 0b11, 0),
        (1.0, 0.0, 3.0, 0b11, 1),  # four scales are far
        (9.0, 0.0, 3.0, 0b11, 1),  # and the most that counts
        (-9.0, 6.0, 1.0, 0b10, 0),
        (-9.0, 2.0, 0.0, 0b10, 0),
        (1.0, 15.0, 16.0, 0b11, 1),  # 1.6 limits
    ],
)
def test_a_sample_moves_the_fast_channel(
    residual: float, before: float, after: float, rises: int, run: int
) -> None:
    rows = sampled(residual, cusum=before)
    assert (rows.cusum[0], rows.rises[0], rows.far_run[0]) == (after, rises, run)
    assert rows.recent_excess[0, 7 % 5] == residual
    zero_at = (33, 44) if after == 0.0 else (0, 0)
    assert (rows.rose_at[0], rows.rose_frame[0]) == zero_at


@pytest.mark.parametrize(
    ("state", "far", "again"), [(HEALTHY, 3.0, 2.0), (SUSPECT, 3.0, 2.0), (STRAGGLER, 0.0, 0.0)]
)
def test_runs_of_far_samples_count_when_they_end_unless_somebody_is_blamed(
    state: int, far: float, again: float
) -> None:
    rows = sampled(0.0, state=state, run=3)
    assert (rows.far[0], rows.far_again[0], rows.far_run[0]) == (far, again, 0)
    going_on = sampled(1.0, state=state, run=3)
    assert (going_on.far[0], going_on.far_run[0]) == (0.0, 4)


def test_effects_of_five_samples() -> None:
    rows = world().rows
    rows.recent_excess[0] = [0.5, 0.1, 0.3, 0.2, 0.4]
    assert recent_effect(rows, ONE)[0] == 0.3
    assert plain_effect(rows, ONE)[0] == 0.2, "all but one reach it"
    rows.recent_excess[0, 2] = np.nan
    assert (recent_effect(rows, ONE)[0], plain_effect(rows, ONE)[0]) == (-np.inf, -np.inf)


@pytest.mark.parametrize(("correlation", "margin"), [(0.0, 1.0), (0.6, 2.0), (-0.5, 1.0)])
def test_the_margin_is_two_standard_errors_of_five_samples(
    correlation: float, margin: float
) -> None:
    rows = world().rows
    rows.scale[0], rows.correlation[0] = math.sqrt(5) / 2, correlation
    assert margin_of_error(rows, ONE)[0] == pytest.approx(margin)


def test_the_correlation_in_a_margin_has_a_limit() -> None:
    rows = world().rows
    rows.scale[:2], rows.correlation[:2] = 1.0, (0.9, 0.99)
    first, second = margin_of_error(rows, np.array([0, 1]))
    assert first == second == pytest.approx(2 * math.sqrt(19 / 5))


@pytest.mark.parametrize(
    ("far", "again", "needed"),
    [
        # Peers: begin = (7 far + 1) / (7 * 100 + 1); a run goes on with (0.5 + again) / (far + 5).
        (0.0, 0.0, math.ceil(1 + math.log(1e6 / 701) / math.log(10))),
        (1.0, 0.5, math.ceil(1 + math.log(8e6 / 701) / math.log(12 / 4))),
        (9.0, 9.0, 28),  # what is remembered
    ],
)
def test_a_slowdown_must_outlast_the_hiccups_of_the_peers(
    far: float, again: float, needed: int
) -> None:
    rows = world().rows
    rows.samples[:8], rows.far[1:8], rows.far_again[1:8] = 100, far, again
    assert lasting_samples(rows, np.full(8, 1e6))[0] == needed
    rows.is_uneven[0] = True
    assert lasting_samples(rows, np.full(8, 1e6))[0] == 16


def test_one_sample_in_seven_may_miss() -> None:
    rows = world().rows
    rows.is_uneven[:8] = True  # sixteen of the last eighteen
    for missed, is_enough in ((0, True), (0b11, True), (0b111, False), (0b11 << 16, True)):
        rows.rises[0] = (1 << 18) - 1 & ~missed
        assert is_persistent(rows, np.full(8, 1e6))[0] == is_enough
    rows.rises[0] = ((1 << 15) - 1) | 0b11 << 18  # older ones do not count
    assert not is_persistent(rows, np.full(8, 1e6))[0]


def channels(**given: float) -> tuple[list[bool], list[bool]]:
    """Return which channels of the first member are over their limit, and which hold."""
    registry = world(excess=0.0)
    rows = registry.rows
    rows.cusum[0], rows.advance_limit[:8], rows.baseline_samples[:8] = 0.0, 10.0, 240
    rows.baseline_log_own[:8], rows.span_s[:8], rows.advance_recent[:8] = 0.0, 1.0, 0.02
    for name, value in given.items():
        if name != "effect":
            getattr(rows, name)[0] = value
    over, holding = _channels(registry, np.full(8, given.get("effect", 0.0)), POLICY)
    return over[0].tolist(), holding[0].tolist()


@pytest.mark.parametrize(
    ("column", "at", "channel"),
    [("cusum", 10.0, FAST), ("stall_cusum", 0.0, STALL), ("advance_cusum", 10.0, ADVANCE)],
)
def test_a_channel_is_over_above_its_limit_and_holds_above_three_tenths(
    column: str, at: float, channel: int
) -> None:
    if channel == STALL:
        registry = world()
        at = float(stall_limit(registry.cohorts, POLICY)[registry.rows.cohort[0]])
    for value, is_over, holds in (
        (np.nextafter(at, 99), True, True), (at, False, True),
        (np.nextafter(0.3 * at, 99), False, True), (0.3 * at, False, False),
    ):  # fmt: skip
        over, holding = channels(**{column: value}, effect=0.1)
        assert (over[channel], holding[channel]) == (is_over, holds), value
        assert sum(over) == is_over


@pytest.mark.parametrize(
    ("advance", "effect", "is_over"), [(0.015, 0.1, True), (0.0149, 0.1, False), (0.02, 0.0, False)]
)
def test_the_job_must_wait_now_and_own_time_must_have_grown(
    advance: float, effect: float, is_over: bool
) -> None:
    over, holding = channels(advance_cusum=11.0, advance_recent=advance, effect=effect)
    assert (over[ADVANCE], holding[ADVANCE]) == (is_over, True)


@pytest.mark.parametrize(
    ("raw_bias", "scale", "effect", "is_chronic"),
    [
        (0.06, 0.01, 0.0, True), (0.05, 0.01, 0.0, False),  # a baseline excuses 5 %
        (0.06, 0.02, 0.0, False), (0.0601, 0.02, 0.0, True),  # and three scales
        (0.08, 0.01, -0.009, True), (0.08, 0.01, -0.011, False),  # half of it must be left
    ],
)  # fmt: skip
def test_who_always_was_slow_is_beyond_what_a_baseline_excuses(
    raw_bias: float, scale: float, effect: float, is_chronic: bool
) -> None:
    over, _ = channels(raw_bias=raw_bias, bias=0.05, scale=scale, effect=effect, cusum=99.0)
    assert over[CHRONIC] == is_chronic
    is_always = raw_bias > max(0.05, 3 * scale)
    assert over[FAST] != is_always, "its fast channel would say the same again"


@pytest.mark.parametrize(
    ("excess", "cusum", "is_enough"),
    [
        (0.0375, 10.0, True),  # 4 scales of a member alone: 0.04 √(7 / 8)
        (0.0374, 10.0, False),
        (0.016, 14.0, True),  # a small one must last until 1.4 limits
        (0.016, 13.9, False),
        (0.0149, 14.0, False),
        (0.0089, 99.0, False),
    ],
)
def test_a_large_effect_or_one_that_lasts_is_enough(
    excess: float, cusum: float, is_enough: bool
) -> None:
    registry = world(excess=excess)
    rows = registry.rows
    rows.cusum[0], rows.rises[:8] = cusum, 0xFFFFFFFF
    effect = recent_effect(rows, np.arange(8))
    assert _has_effect(registry, effect, POLICY)[0] == is_enough


@pytest.mark.parametrize(("cusum", "is_calm"), [(3.0, True), (np.nextafter(3.0, 9), False)])
def test_residuals_are_learned_up_to_three_tenths_of_the_limit(cusum: float, is_calm: bool) -> None:
    registry = world()
    rows = registry.rows
    rows.baseline_samples[:8], rows.samples[0], rows.cusum[0] = 30, 239, cusum
    baseline.learn(rows, registry.cohorts, ONE, np.array([0.25]))
    assert (rows.history[0, 239] == 0.25) == is_calm
    rows.samples[0], rows.scale[0], rows.bias[0] = 240, 0.01, 0.0
    baseline.learn(rows, registry.cohorts, ONE, np.array([0.25]))
    assert rows.bias[0] == pytest.approx(0.04 / 241 if is_calm else 0.0)
    rows.bias[0], rows.samples[0] = 0.0, 8 * 240
    baseline.learn(rows, registry.cohorts, ONE, np.array([0.25]))
    assert rows.bias[0] == 0.0, "it is frozen"


@pytest.mark.parametrize(
    ("judged", "effect", "margin", "is_moving"),
    [
        (True, 0.0151, 0.0, True), (True, 0.015, 0.0, False), (False, 0.5, 0.0, False),
        (True, 0.2, 0.2, False), (True, 0.2001, 0.2, True),
    ],
)  # fmt: skip
def test_members_move_beyond_gate_and_margin(
    judged: bool, effect: float, margin: float, is_moving: bool
) -> None:
    found = fleet_events.find_moving(
        np.array([1]), np.array([judged]), np.array([effect]), np.array([margin]), POLICY.gate
    )
    assert found.tolist() == [is_moving]


def test_who_is_slower_by_less_than_three_tenths_of_the_slowest_passes_a_delay_on() -> None:
    effect = np.array([0.5, 0.1499, 0.15, 0.1499])
    job, judged = np.array([1, 1, 1, 2]), np.ones(4, bool)
    found = fleet_events.find_moving(job, judged, effect, np.zeros(4), POLICY.gate)
    assert found.tolist() == [True, False, True, True]


@pytest.mark.parametrize(
    ("faster", "rise", "moved"),
    [(2, 0.11, 8.0), (2, 0.05, 1.0), (1, 0.11, 1.0), (0, 0.11, 1.0)],
)
def test_where_some_seem_faster_in_a_slower_cohort_the_others_moved(
    faster: int, rise: float, moved: float
) -> None:
    """Two of ten are 20 % below the median, which rose by more than half of that."""
    registry = world(ranks=10)
    cohorts = registry.cohorts
    cohorts.slow_level[1], cohorts.baseline_level[1] = rise, 0.0
    effect = np.zeros(10)
    effect[:faster] = -0.2
    moving = np.arange(10) == 9
    found = fleet_events.who_moved(
        cohorts, registry.rows.cohort[:10], np.ones(10, bool), effect, np.full(10, 0.01), moving
    )
    assert found.sum() == moved


@pytest.mark.parametrize(("effect", "moved"), [(-0.0301, 8.0), (-0.03, 1.0)])
def test_who_seems_faster_is_so_by_three_percent(effect: float, moved: float) -> None:
    registry = world(ranks=10)
    registry.cohorts.slow_level[1], registry.cohorts.baseline_level[1] = 0.1, 0.0
    effects = np.where(np.arange(10) < 2, effect, 0.0)
    found = fleet_events.who_moved(
        registry.cohorts, registry.rows.cohort[:10], np.ones(10, bool), effects,
        np.full(10, 0.0099), np.arange(10) == 9,
    )  # fmt: skip
    assert found.sum() == moved


def group(slow: int, cusum: float) -> tuple[Groups, MemberRegistry]:
    registry = MemberRegistry(POLICY)
    for rank in range(12):
        labels = (("rack", "r1" if rank < 4 else f"x{rank}"),)
        index = registry.put(Member(cluster="c", node=f"n{rank}", rank=rank, job="j",
                                    labels=labels), 0.0)  # fmt: skip
        registry.rows.last_seen_s[index] = 100.0
    rows = registry.rows
    rows.limit[:12], rows.cusum[:slow] = 10.0, cusum
    return Groups(registry), registry


@pytest.mark.parametrize(("cusum", "is_in"), [(5.0, False), (5.01, True)])
def test_ranks_on_half_of_their_way_to_the_limit_are_a_group(cusum: float, is_in: bool) -> None:
    groups, _ = group(4, cusum)
    everyone = np.ones(12, bool)
    inside = groups.advance(everyone, everyone, 100.0)
    assert inside.tolist() == [is_in] * 4 + [False] * 8
    for now_s, is_open in ((105.9, False), (106.0, True)):
        groups.advance(everyone, everyone, now_s)
        assert [each.is_open for each in groups.of_job.values()] == ([is_open] if is_in else [])


@pytest.mark.parametrize(
    ("cusums", "held_s"), [((3.1, 3.1, 0.0, 0.0), 20.0), ((3.1, 0.0, 0.0, 0.0), 10.0)]
)
def test_a_group_is_held_while_half_of_its_members_are_slow(
    cusums: tuple[float, ...], held_s: float
) -> None:
    groups, registry = group(4, 0.0)
    rows = registry.rows
    rows.cusum[:4] = cusums
    job = int(rows.job[0])
    groups.of_job[job] = Group("rack", "r1", 90.0, 110.0, [0, 1, 2, 3], 4, is_open=True)
    groups._follow(job, groups.of_job[job], 109.9)
    assert groups.of_job[job].held_until_s == pytest.approx(99.9 + held_s if held_s > 10 else 110)
    rows.cusum[:4] = 0.0
    groups._follow(job, groups.of_job[job], groups.of_job[job].held_until_s)
    assert groups.of_job == {}


def test_a_group_that_was_never_open_ends_with_its_last_slow_member() -> None:
    groups, registry = group(4, 0.0)
    job = int(registry.rows.job[0])
    for cusum, is_kept in ((3.1, True), (3.0, False)):
        registry.rows.cusum[0] = cusum
        groups.of_job[job] = Group("rack", "r1", 90.0, 110.0, [0, 1], 4)
        groups._follow(job, groups.of_job[job], 100.0)
        assert (job in groups.of_job) == is_kept
