"""Advances, steps, stalls and losses, by hand: values at their limits and just beside them."""

import math

import numpy as np
import pytest
from tests.support.verdict_tables import PEERS, POLICY, world

from ingero.core.verdict.channels.advance import (
    advance_effect,
    close_advances,
    is_own_delay,
    keep_advances,
)
from ingero.core.verdict.channels.stall import stall_period, update_stalls
from ingero.core.verdict.channels.stall_rates import LEAST_RATE, weigh
from ingero.core.verdict.job_steps import (
    close_steps,
    find_calm,
    follow_steps,
    mark_restless,
    recent_steps,
)
from ingero.core.verdict.members import Member
from ingero.core.verdict.own_times import make_batch
from ingero.core.verdict.table import (
    CHRONIC,
    HEALTHY,
    STALL,
    STRAGGLER,
    SUSPECT,
    MemberRows,
)
from ingero.core.verdict.what_if import (
    _stalled_share,
    find_hidden,
    loss_share,
    part_of_loss,
    recent_frames,
)

ONE = np.array([0])


def advanced(share: float, **given: float) -> MemberRows:
    """Return members after a sample of advances; the bias is 1/8, the scale 1/8."""
    registry = world()
    rows = registry.rows
    rows.advance_learned[:8], rows.advance_samples[:8] = 20, 20
    rows.advance_history[:8, :20] = 0.125
    rows.advance_bias[:8], rows.advance_scale[:8] = 0.125, 0.125
    rows.advance_limit[:8], rows.advance_k[:8] = 10.0, 1.0
    rows.state[0] = HEALTHY
    for name, value in given.items():
        getattr(rows, name)[0] = value
    rows.advance_sum[0], rows.advance_count[0] = 4 * share, 4
    registry.cohorts.step_samples[1] = 33
    close_advances(rows, registry.cohorts, np.arange(8), POLICY, np.full(8, 30.0))
    return rows


@pytest.mark.parametrize(
    ("share", "before", "after", "rises"),
    [
        (0.25, 0.0, 0.0, 0), (0.375, 0.0, 1.0, 1), (0.375, 2.0, 3.0, 1),
        (2.0, 0.0, 3.0, 1), (2.0, 15.0, 16.0, 1), (0.0, 3.0, 1.0, 0),
    ],
)  # fmt: skip
def test_a_sample_moves_the_advance_channel(
    share: float, before: float, after: float, rises: int
) -> None:
    rows = advanced(share, advance_cusum=before, advance_turn=6)
    assert (rows.advance_cusum[0], rows.advance_rises[0]) == (after, rises)
    assert (rows.advance_turn[0], rows.advance_recent[0, 1]) == (7, share - 0.125)
    assert rows.advance_rose_at[0] == (33 if after == 0 else 0)


@pytest.mark.parametrize(
    ("share", "given", "kept"),
    [
        (0.5, {}, True), (0.501, {}, False),  # three scales above its bias
        (0.125, {"advance_cusum": 4.0}, True),  # three tenths of the limit, after this sample
        (0.125, {"advance_cusum": 4.01}, False),
        (0.125, {"advance_samples": 239, "advance_learned": 240}, True),
        (0.125, {"advance_samples": 240, "advance_learned": 240}, False),
        (0.125, {"state": SUSPECT}, False),
        (9.0, {"advance_learned": 0}, True),  # there is nothing to compare with
    ],
)  # fmt: skip
def test_usual_advances_are_kept(share: float, given: dict[str, float], kept: bool) -> None:
    rows = advanced(share, **given)
    before = int(given.get("advance_samples", 20))
    assert rows.advance_samples[0] == before + kept
    if kept:
        assert rows.advance_history[0, before] == share


def test_advances_are_shares_of_steps_that_have_a_length() -> None:
    registry = world()
    rows = registry.rows
    rows.state[0] = HEALTHY
    for step, (advance_s, span_s) in enumerate(
        ((0.5, 2.0), (0.5, 1.0), (0.5, 0.0), (math.nan, 1.0), (0.5, math.nan))
    ):
        columns = [np.array([each]) for each in (advance_s, span_s, 0.1 * step, 0.2 * step, 3.0)]
        advance, span, start, enqueue, queue = columns
        keep_advances(rows, registry.cohorts, make_batch(
            ONE, np.array([1.0]), np.array([step]), advance_s=advance, span_s=span,
            start_late_s=start, enqueue_late_s=enqueue, queue_s=queue,
        ))  # fmt: skip
    assert (rows.advance_sum[0], rows.advance_count[0], rows.late_frames[0]) == (0.75, 2, 2)
    assert rows.start_late_s[0, :3].tolist()[:2] == [0.0, 0.1]
    assert rows.enqueue_late_s[0, 1] == 0.2
    assert np.isnan(rows.queue_s[0, 2])


@pytest.mark.parametrize(
    ("given", "is_learned"),
    [
        ({}, True), ({"cusum": 3.0}, True), ({"cusum": 3.01}, False),
        ({"advance_cusum": 3.0}, True), ({"advance_cusum": 3.01}, False), ({"state": 1}, False),
    ],
)  # fmt: skip
def test_the_usual_queue_is_learned_while_nobody_seems_slow(
    given: dict[str, float], is_learned: bool
) -> None:
    registry = world()
    rows = registry.rows
    rows.state[0], rows.cusum[0], rows.advance_limit[:8] = HEALTHY, 0.0, 10.0
    rows.baseline_queue_s[0], rows.late_frames[0] = 1.0, 39
    for name, value in given.items():
        getattr(rows, name)[0] = value
    one = np.array([1.0])
    batch = make_batch(ONE, one, ONE, advance_s=one, span_s=one, queue_s=3 * one)
    keep_advances(rows, registry.cohorts, batch)
    # a fortieth of the two seconds: it is the fortieth step that was sent whole
    assert rows.baseline_queue_s[0] == pytest.approx(1.05 if is_learned else 1.0)
    assert rows.queue_noise_s[0] == pytest.approx(0.05 if is_learned else 0.0)


def test_the_usual_queue_is_a_mean_that_follows_slowly_later() -> None:
    """Steps that are sent whole are few, and hosts that run ahead make their queues vary a lot."""
    registry = world()
    rows, one = registry.rows, np.array([1.0])
    rows.state[0], rows.cusum[0] = HEALTHY, 0.0
    for step in range(50):
        queue_s = np.array([4.0 if step % 5 == 0 else 1.0])
        batch = make_batch(ONE, one, np.array([step]), advance_s=one, span_s=one, queue_s=queue_s)
        keep_advances(rows, registry.cohorts, batch)
    assert rows.baseline_queue_s[0] == pytest.approx(1.6)
    rows.late_frames[0] = 1000
    keep_advances(rows, registry.cohorts, batch)
    assert rows.baseline_queue_s[0] == pytest.approx(1.6 - 0.6 / 50)


def test_own_time_must_have_grown_with_three_tenths_of_the_advance() -> None:
    rows = world().rows
    rows.advance_recent[0], rows.span_s[:8] = 0.5, 2.0
    rows.baseline_log_own[:8] = 0.0
    assert advance_effect(rows, ONE)[0] == 0.5
    assert advance_effect(rows, np.array([1]))[0] == -np.inf
    for effect, is_own in ((math.log1p(0.31), True), (math.log1p(0.29), False), (-1.0, False)):
        found = is_own_delay(rows, np.full(8, effect))
        assert found.tolist() == [is_own] + [True] * 7


def test_steps_become_samples_of_their_mean() -> None:
    registry = world()
    cohorts = registry.cohorts
    present, starts = np.array([1]), np.array([0])
    for span_s in ([2.0, 4.0], [5.0, math.nan], [math.nan, 0.0]):
        follow_steps(cohorts, present, starts, np.array(span_s), np.array([0.3]))
    assert (cohorts.step_sum_s[1], cohorts.step_count[1]) == (8.0, 2.0)
    chosen, at = close_steps(cohorts, present)
    assert (chosen.tolist(), at.tolist()) == ([1], [0])
    assert cohorts.step_log[1, 0] == pytest.approx(math.log(4.0))
    assert cohorts.step_level[1, 0] == pytest.approx(0.3)
    assert (cohorts.step_is_calm[1, 0], cohorts.step_samples[1]) == (1.0, 1)
    assert (cohorts.step_sum_s[1], cohorts.step_count[1], cohorts.step_level_sum[1]) == (0, 0, 0)
    assert close_steps(cohorts, present)[0].tolist() == []


def test_the_latest_steps_are_returned_oldest_first() -> None:
    cohorts = world().cohorts
    cohorts.step_samples[1] = 130
    cohorts.step_log[1] = np.roll(np.arange(2, 130), 2)  # sample n is n; the ring began anew
    assert recent_steps(cohorts, 1, 127, 10)[0].tolist() == [127, 128, 129]
    assert recent_steps(cohorts, 1, 100, 4)[0].tolist() == [126, 127, 128, 129]
    assert len(recent_steps(cohorts, 1, 0, 500)[0]) == 128
    assert len(recent_steps(cohorts, 1, 130, 10)[0]) == 0
    assert len(recent_steps(cohorts, 1, 140, 10)[0]) == 0
    cohorts.step_samples[1] = 3
    assert len(recent_steps(cohorts, 1, -5, 10)[0]) == 3


def test_restless_samples_are_the_last_ones_of_all_cohorts_of_a_job() -> None:
    registry = world()
    registry.put(Member(cluster="c", node="m", rank=20, job="j", role="x"), 0.0)
    registry.put(Member(cluster="c", node="o", rank=1, job="k"), 0.0)
    cohorts = registry.cohorts
    cohorts.step_is_calm[1:4], cohorts.step_samples[1:4] = 1.0, 10
    mark_restless(cohorts, 1, 3)
    for cohort in (1, 2):
        assert np.flatnonzero(cohorts.step_is_calm[cohort] == 0).tolist() == [7, 8, 9]
    assert cohorts.step_is_calm[3].all()
    mark_restless(cohorts, 1, 1000)
    assert not cohorts.step_is_calm[1].any()


def test_twenty_calm_steps_are_enough_and_hiccups_are_cut() -> None:
    cohorts = world().cohorts
    cohorts.step_is_calm[1, :100], cohorts.step_samples[1] = 1.0, 100
    cohorts.step_log[1, :100] = 0.0
    assert find_calm(cohorts, 1, 19) is None
    found = find_calm(cohorts, 1, 20)
    assert found is not None
    assert (found.log_s, found.mean_s, found.inflation) == (0.0, 1.0, 1.0)
    assert (found.noise, found.error) == (0.001, pytest.approx(0.001 / 2))
    cohorts.step_log[1, :2] = 5.0
    cut = find_calm(cohorts, 1, 100)
    assert cut is not None and cut.mean_s < 1.2, "2 % of the steps do not move the mean"


@pytest.mark.parametrize(
    ("gaps", "period"),
    [
        ([10] * 7, 10), ([10, 10, 20, 10, 10, 30, 10], 10),  # a missed stall doubles a gap
        ([10, 12, 8, 10, 12, 8, 10], 10), ([10, 13, 7, 13, 7, 13, 7], None), ([1] * 7, None),
        ([2] * 7, 2),
    ],
)  # fmt: skip
def test_the_period_of_stalls(gaps: list[int], period: int | None) -> None:
    rows = world().rows
    rows.onsets[0] = 100 + np.cumsum([0, *gaps])
    rows.onset_count[0] = 8
    assert stall_period(rows, 0) == period
    rows.onset_count[0] = 2
    assert stall_period(rows, 0) is None


def test_the_stall_channel_weighs_onsets_by_how_often_peers_stall() -> None:
    """Without stalls of anybody, one is as rare as any can be known to be."""
    registry = world()
    rows = registry.rows
    rows.bias[:8], rows.scale[:8], rows.stall_steps[:8] = 0.0, 0.001, 10_000.0
    members, of_step = np.arange(8), (np.full(8, np.nan), np.ones(8))
    residual = np.where(members == 0, 0.5, 0.0)
    update_stalls(rows, registry.cohorts, members, residual, np.full(8, 77), *of_step)
    (stall,), (other,) = weigh(np.array([LEAST_RATE]))
    assert rows.stall_cusum[0] == pytest.approx(stall)
    assert rows.stall_cusum[1] == 0.0
    assert (rows.onsets[0, 0], rows.onset_count[0], rows.stall_size[0]) == (77, 1, 0.5)
    assert (rows.recent_stalls[0], rows.recent_stalls[1]) == (1.0, 0.0)
    update_stalls(rows, registry.cohorts, members, np.zeros(8), np.full(8, 78), *of_step)
    assert rows.stall_cusum[0] == pytest.approx(stall + other)
    assert rows.recent_stalls[0] == pytest.approx(0.995)
    assert rows.recent_steps[0] == pytest.approx(1.995)
    update_stalls(rows, registry.cohorts, members, 0.8 * (members == 0), np.full(8, 79), *of_step)
    assert rows.stall_size[0] == pytest.approx(0.65), "the mean of both"


@pytest.mark.parametrize(
    ("own", "peers", "hidden"),
    [(1.0, 0.94, 0.0), (1.0, 0.90, -math.log(0.90)), (0.99, 0.90, 0.0)],
)
def test_peers_hide_compute_where_their_own_time_fell_by_seven_percent(
    own: float, peers: float, hidden: float
) -> None:
    registry = world()
    rows = registry.rows
    rows.baseline_log_own[0] = 0.0
    rows.own_s[0], rows.own_s[1:8] = own, peers
    assert find_hidden(registry, 0, POLICY) == pytest.approx(hidden)
    rows.baseline_log_own[0] = np.nan
    assert find_hidden(registry, 0, POLICY) == 0.0


@pytest.mark.parametrize(
    ("frames", "raised", "window"),
    [
        (10, 3, range(3, 10)), (10, 9, range(6, 10)), (100, 0, range(68, 100)),
        (2, 0, range(0, 2)),
    ],
)  # fmt: skip
def test_the_steps_since_an_episode_began_are_at_least_four(
    frames: int, raised: int, window: range
) -> None:
    rows = world().rows
    rows.frames[0], rows.raised_frame[0] = frames, raised
    assert recent_frames(rows, 0).tolist() == [each % 32 for each in window]


def test_the_loss_of_blamed_members_is_what_the_slowest_of_the_others_leaves() -> None:
    own = np.array([[1.0, 1.0], [1.1, 1.1], [1.0, 1.0], [2.0, 1.5]])
    blamed = np.array([False, False, False, True])
    assert loss_share(own, np.full(4, 4.0), blamed) == pytest.approx((0.9 + 0.4) / 2 / 4.0)
    assert loss_share(own, np.full(4, np.nan), blamed) == pytest.approx(0.65 / 1.75)
    assert loss_share(own, np.full(4, 4.0), blamed, pace_s=1.4) == pytest.approx(0.35 / 4.0)
    assert loss_share(own, np.full(4, 4.0), np.ones(4, bool)) == 0.0
    assert loss_share(np.full((4, 2), np.nan), np.full(4, 4.0), blamed) == 0.0


def test_a_joint_loss_is_divided_by_excess_own_time() -> None:
    registry = world(excess=0.0)
    rows = registry.rows
    rows.own_s[0], rows.own_s[1] = 1.3, 1.1
    assert part_of_loss(rows, 0, PEERS) == 1.0, "nobody else is blamed"
    rows.state[1] = STRAGGLER
    assert part_of_loss(rows, 0, PEERS) == pytest.approx(0.75)
    rows.channel[1] = CHRONIC
    assert part_of_loss(rows, 0, PEERS) == 1.0
    rows.channel[:2] = STALL
    assert part_of_loss(rows, 0, PEERS) == 1.0, "stalls come at different steps"


def test_suspects_have_a_part_in_a_loss_if_they_surely_are_half_as_slow() -> None:
    registry = world(excess=0.0)
    rows = registry.rows
    rows.own_s[0], rows.own_s[1], rows.state[1] = 1.3, 1.1, SUSPECT
    assert part_of_loss(rows, 0, PEERS) == 1.0, "a third as slow"
    rows.own_s[1] = 1.2
    assert part_of_loss(rows, 0, PEERS) == pytest.approx(0.6)
    rows.own_s[1, ::2], rows.own_s[1, 1::2] = 0.2, 2.2
    assert part_of_loss(rows, 0, PEERS) == 1.0, "it may be less than half"
    rows.state[1] = STRAGGLER
    assert part_of_loss(rows, 0, PEERS) == pytest.approx(0.6)


def test_long_steps_bound_what_stalls_cost() -> None:
    """Nine steps of 1 s and one of 2 s: a mean of 1.1 s, and 1.645 errors of 0.3 / √10 more."""
    spans = np.array([1.0] * 9 + [2.0, math.nan])
    assert _stalled_share(spans) == pytest.approx(1 - 1 / (1.1 + 1.645 * 0.3 / math.sqrt(10)))
    assert _stalled_share(np.array([1.0, 1.0, 9.0])) == 0.0, "three steps say nothing"
    assert _stalled_share(np.ones(4)) == 0.0
