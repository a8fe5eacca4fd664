"""Further rules of the verdict engine on tables alone: baselines, late samples, pace and queues."""

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.core.verdict.test_verdict_words import POLICY, world

from ingero.contract.verdict import CauseClass, VerdictState
from ingero.core.scale import autocorrelation, qn_factor, thinned
from ingero.core.verdict import baseline, residuals
from ingero.core.verdict.advance_channel import (
    _learn,
    close_advances,
    has_advance,
    is_own_delay,
)
from ingero.core.verdict.cause_class import _class_by_queue
from ingero.core.verdict.decision import _keeps_peers_waiting, decide
from ingero.core.verdict.engine import VerdictEngine
from ingero.core.verdict.events import fleet_events
from ingero.core.verdict.events.describe import describe_fleet_event, describe_group
from ingero.core.verdict.events.groups import Group, Groups
from ingero.core.verdict.events.structural import Recurrences
from ingero.core.verdict.loss import Loss
from ingero.core.verdict.members import Member, MemberRegistry
from ingero.core.verdict.own_times import FrameBuffer, make_batch
from ingero.core.verdict.pace import follow_pace
from ingero.core.verdict.policy import decision_limit, drift_allowance, samples_between_alarms
from ingero.core.verdict.table import ADVANCE, HEALTHY, RECOVERING, STRAGGLER, SUSPECT
from ingero.core.verdict.verdicts import _with_loss, describe_member
from ingero.core.verdict.what_if import own_shown

ONE = np.array([0])


def test_a_restless_member_hides_in_no_wide_scale_of_its_advance() -> None:
    """Its own scale is at most one and a half times that of its cohort."""
    registry = world()
    rows = registry.rows
    rows.advance_samples[:8] = 60
    rows.advance_history[:8, :60] = 0.02 + 0.01 * np.resize([1, -1], 60)
    rows.advance_history[0, :60] = 0.02 + 0.05 * np.resize([1, -1], 60)
    _learn(rows, registry.cohorts, 1, POLICY)
    usual = rows.advance_scale[1]
    assert rows.advance_scale[0] == pytest.approx(1.5 * usual)
    assert rows.advance_scale[1:8] == pytest.approx(np.full(7, usual))
    assert rows.advance_learned[:8].tolist() == [60] * 8


def test_a_member_with_half_of_the_usual_history_is_learned_with_the_others() -> None:
    registry = world()
    rows = registry.rows
    rows.advance_samples[:8] = 60
    rows.advance_samples[:2] = (30, 29)
    rows.advance_history[:8, :60] = 0.02 + 0.01 * np.resize([1, -1], 60)
    rows.advance_history[0, 30:] = np.nan
    _learn(rows, registry.cohorts, 1, POLICY)
    assert rows.advance_learned[:3].tolist() == [60, 0, 60]
    assert rows.advance_bias[0] == pytest.approx(0.02, abs=0.006)


def test_where_no_advance_is_watched_nobody_has_one() -> None:
    assert has_advance(world().rows, np.full(8, 0.1), POLICY).tolist() == [False] * 8


def test_a_node_without_ranks_is_none_of_the_ranks() -> None:
    node = Member(cluster="c", node="n")
    ranks = [replace(node, rank=rank) for rank in range(3)]
    assert len({member.rank_key for member in (node, *ranks)}) == 4


@pytest.mark.parametrize(("own_s", "is_own"), [(1.0, False), (2.0, True)])
def test_a_share_of_a_longer_own_time_explains_more(own_s: float, is_own: bool) -> None:
    """The job waits half a second for it, of which 0.15 s must be own time: 10 % of 2 s are."""
    rows = world().rows
    rows.advance_recent[0], rows.span_s[:8] = 0.5, 1.0
    rows.baseline_log_own[:8] = math.log(own_s)
    assert is_own_delay(rows, np.full(8, math.log1p(0.1)))[0] == is_own


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
    baseline._count_far(rows, ONE)
    assert (rows.far[0], rows.far_again[0]) == (5.0, 2.0)


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


def test_a_rank_is_compared_with_the_lateness_of_its_own_cohort() -> None:
    registry = world(ranks=6)
    for rank in range(20, 26):
        registry.put(Member(cluster="c", node=f"m{rank}", rank=rank, job="j", role="x"), 0.0)
    rows = registry.rows
    rows.state[0], rows.lateness_s[:12] = SUSPECT, 0.0
    rows.lateness_s[0], rows.lateness_s[6:12] = 0.1, 9.0
    assert _keeps_peers_waiting(rows)[0]
    rows.lateness_s[0], rows.lateness_s[6:12] = -0.1, -9.0
    assert not _keeps_peers_waiting(rows)[0]
    rows.lateness_s[0] = np.nan
    assert _keeps_peers_waiting(rows)[0], "unknown"


def test_a_cohort_that_becomes_small_starts_over_and_another_does_not() -> None:
    engine = VerdictEngine()
    for rank in range(3):
        engine.register(Member(cluster="c", node=f"n{rank}", rank=rank, job="j"), 100.0)
        engine.register(Member(cluster="c", node=f"n{rank}", rank=rank, job="k"), 100.0)
    rows = engine.registry.rows
    rows.last_seen_s[:6], rows.baseline_samples[:6] = 500.0, 60
    engine._update_expected(500.0)
    assert rows.baseline_samples[:6].tolist() == [60] * 6
    rows.last_seen_s[0] = 100.0  # silent for longer than anybody waits
    engine._update_expected(500.0)
    small = rows.cohort[:6] == rows.cohort[0]
    assert not rows.baseline_samples[:6][small].any()
    assert (rows.baseline_samples[:6][~small] == 60).all()


def test_what_is_shared_by_too_few_does_not_end_the_search() -> None:
    registry = MemberRegistry(POLICY)
    for rank in range(12):
        labels = (("rack", "r1"), ("row", "w1" if rank < 4 else f"x{rank}"))
        registry.put(Member(cluster="c", node=f"n{rank}", rank=rank, job="j", labels=labels), 0.0)
    found = Groups(registry)._shared(np.arange(3), np.arange(12))
    assert found == ("row", "w1"), "whatever comes first, the rack is shared by everybody"


def test_the_loss_of_a_slower_cohort_is_the_rise_of_its_own_time_where_steps_are_unknown() -> None:
    registry = world()
    cohorts = registry.cohorts
    cohorts.slow_level[1], cohorts.baseline_level[1] = math.log1p(1 / 6), 0.0
    cohorts.event_since_s[1], cohorts.high_since_s[1], cohorts.sample_s[1] = 500.0, 440.0, 1.0
    found = describe_fleet_event(registry, 1, fleet_events.SLOWER, 8, 8, POLICY)
    assert (found.loss, found.at_most, found.excess) == (0.1429, True, 0.1667)
    assert (found.state, found.job, found.node) == (VerdictState.FLEET_EVENT, "j", "")
    split = describe_fleet_event(registry, 1, fleet_events.SPLIT, 0, 8, POLICY)
    assert (split.loss, split.at_most, split.excess) == (None, False, None)
    assert split.state is VerdictState.NOT_SURE


def test_long_histories_are_thinned_evenly_and_in_order() -> None:
    for count, kept in ((60, 60), (61, 31), (120, 60), (121, 41), (240, 60)):
        found = thinned(np.arange(count, dtype=float)[None, :])[0]
        assert len(found) == kept
        assert found[0] == 0
        assert (np.diff(found) > 0).all()


def test_scales_of_odd_and_even_numbers_of_samples() -> None:
    assert [qn_factor(count) for count in (9, 10, 11)] == [0.872, 10 / 13.8, 11 / 12.4]


def test_the_autocorrelation_of_steady_and_of_alternating_samples() -> None:
    found = autocorrelation(np.array([[1.0] * 6, [1, -1] * 3, [1, 1, 1, -1, -1, -1]]))
    assert found == pytest.approx([0.0, -5 / 6, 3 / 6])


def test_a_sample_is_closed_once_and_starts_at_nothing() -> None:
    registry = world()
    rows = registry.rows
    rows.residual_sum[:2], rows.residual_count[:2] = 0.6, (3, 0)
    rows.samples[:2], rows.quiet_samples[:2] = 5, 7
    residuals._close_samples(registry, np.array([0, 1]))
    assert rows.latest[0, 5] == pytest.approx(0.2)
    assert (rows.residual_sum[0], rows.residual_count[0]) == (0.0, 0.0)
    assert (rows.samples[:2].tolist(), rows.quiet_samples[:2].tolist()) == ([6, 5], [8, 7])


@pytest.mark.parametrize(("per_sample", "count", "samples"), [(0, 9, 0), (2, 0, 0), (2, 1, 1)])
def test_late_steps_close_a_sample_when_it_is_complete(
    per_sample: int, count: int, samples: int
) -> None:
    registry = world()
    rows, cohorts = registry.rows, registry.cohorts
    place = residuals._slot(np.array([7]))
    cohorts.closed_step[1, place], cohorts.closed_members[1, place] = 7, 7
    cohorts.closed_middle[1, place], cohorts.frames_per_sample[1] = 0.5, per_sample
    rows.residual_count[0] = count
    late = make_batch(ONE, np.array([math.e]), np.array([7]))
    assert residuals.take_late(registry, late, 100.0) == 0
    assert rows.samples[0] == samples
    if not samples:
        assert (rows.residual_sum[0], rows.residual_count[0]) == (0.5, count + 1)


@pytest.mark.parametrize(("frames", "closes"), [(3, True), (2, False), (4, False)])
def test_a_sample_has_as_many_steps_as_the_pace_says(frames: int, closes: bool) -> None:
    registry = world()
    rows, cohorts = registry.rows, registry.cohorts
    cohorts.frames_per_sample[1], cohorts.frames[1], cohorts.window_s[1] = 4, frames, 99.0
    members = np.arange(8)
    batch = make_batch(members, np.ones(8), np.full(8, 1))
    residuals.take_frame(registry, residuals.Frame(rows.cohort[members], batch), 100.0)
    assert cohorts.frames[1] == frames + 1
    assert rows.samples[0] == (1 if closes else 0)
    assert rows.residual_count[0] == (0 if closes else 1)


def test_samples_with_too_few_peers_are_counted_and_left_out() -> None:
    registry = world()
    rows = registry.rows
    members = np.arange(2)
    batch = make_batch(members, np.ones(2), np.full(2, 1))
    frame = residuals.Frame(rows.cohort[members], batch)
    assert residuals.take_frame(registry, frame, 100.0) == 2
    assert rows.residual_count[:2].tolist() == [0, 0]


def paced(away: int, steps: int, span_s: float = np.nan) -> MemberRegistry:
    """Return a cohort with ten steps per sample that had some steps in the last five seconds."""
    registry = world()
    rows, cohorts = registry.rows, registry.cohorts
    rows.state[:8], rows.baseline_samples[:8] = HEALTHY, 60
    rows.own_scale[:8] = 0.01
    cohorts.frames_per_sample[1], cohorts.sample_s[1], cohorts.paced_away[1] = 10, 1.0, away
    cohorts.window_s[1], cohorts.window_frame[1], cohorts.first_frame_s[1] = 95.0, 0, 0.0
    cohorts.frames[1], cohorts.paced_span_s[1], cohorts.span_s[1] = steps, 1.0, span_s
    follow_pace(registry, np.array([1]), 100.0)
    return registry


@pytest.mark.parametrize(
    ("away", "steps", "per_sample", "counted"),
    [
        (0, 200, 10, 1), (3, 200, 10, 4),  # four times as fast, but not for long
        (5, 200, 40, 0),  # in six windows in a row
        (5, 75, 10, 6),  # not worth what was learned
        (5, 60, 10, 0),  # hardly faster
        (5, 50, 10, 0),  # as before
        (5, 20, 4, 0),  # slower
    ],
)  # fmt: skip
def test_another_pace_is_followed_when_it_has_lasted(
    away: int, steps: int, per_sample: int, counted: int
) -> None:
    cohorts = paced(away, steps).cohorts
    assert (cohorts.frames_per_sample[1], cohorts.paced_away[1]) == (per_sample, counted)


@pytest.mark.parametrize(
    ("away", "steps", "per_sample"),
    [
        (0, 90, 10), (1, 90, 18),  # in two windows in a row
        (1, 80, 10), (1, 25, 5), (1, 35, 10),  # from 1.7 times as many or as few on
    ],
)  # fmt: skip
def test_steps_of_the_same_length_that_come_in_other_groups_are_followed_at_once(
    away: int, steps: int, per_sample: int
) -> None:
    registry = paced(away, steps, span_s=1.0)
    assert registry.cohorts.frames_per_sample[1] == per_sample
    assert registry.rows.baseline_samples[:8].tolist() == [60] * 8, "and what was learned holds"


def test_a_faster_pace_is_learned_anew_and_a_slower_one_is_noisier() -> None:
    faster, slower = paced(5, 200).rows, paced(5, 20).rows
    assert not faster.baseline_samples[:8].any()
    assert slower.baseline_samples[:8].tolist() == [60] * 8
    assert slower.own_scale[0] == pytest.approx(0.01 * math.sqrt(10 / 4))


@pytest.mark.parametrize(
    ("queue_s", "noise_s", "found"),
    [
        (1.2, 0.0, CauseClass.COMPUTE),  # it waits longer by half of the loss, at least 2 %
        (1.04, 0.0, None), (1.06, 0.0, CauseClass.COMPUTE),
        (1.2, 0.09, CauseClass.COMPUTE), (1.2, 0.11, None),  # two noises
        (0.94, 0.0, CauseClass.HOST), (0.96, 0.0, None),  # half of what the job lost is gone
    ],
)  # fmt: skip
def test_the_queue_of_a_gpu_tells_it_from_its_host(
    queue_s: float, noise_s: float, found: CauseClass | None
) -> None:
    rows = world().rows
    rows.baseline_queue_s[0], rows.queue_noise_s[0], rows.late_frames[0] = 1.0, noise_s, 8
    rows.queue_s[0, :8] = queue_s
    lost = Loss(0.1, 0.01, is_late=False, usd_per_hour=None, calm_s=0.9, slow_s=1.0)
    assert _class_by_queue(rows, 0, lost) is found
    rows.late_frames[0] = 3
    assert _class_by_queue(rows, 0, lost) is None, "three steps say nothing"


def test_figures_of_a_loss_have_four_digits() -> None:
    verdict = describe_member(world(), 0, POLICY)
    lost = Loss(1 / 7, 1 / 70, is_late=False, usd_per_hour=1.23)
    found = _with_loss(verdict, lost)
    assert (found.loss, found.loss_error, found.usd_per_hour) == (0.1429, 0.0143, 1.23)


def test_hidden_compute_is_added_to_healthy_peers_only() -> None:
    rows = world(excess=0.0).rows
    rows.hidden[0], rows.state[1] = math.log(1.5), STRAGGLER
    own = own_shown(rows, 0, np.arange(1, 8), np.array([0, 1]))
    assert own[:, 0] == pytest.approx([1.0, *[1.5] * 6, 1.0])


def test_relapsed_and_confirmed_members_are_blamed() -> None:
    registry = world()
    rows = registry.rows
    rows.baseline_samples[:8], rows.k[:8], rows.rises[:8] = 60, 1.0, 0xFFFFFFFF
    rows.state[:2], rows.cusum[:2] = (RECOVERING, SUSPECT), 15.0
    rows.recent_excess[:2], rows.channel[2], rows.quiet_samples[0] = 0.1, ADVANCE, 20
    effect = np.where(np.arange(8) < 2, 0.1, 0.0)
    changed, gone = decide(registry, np.ones(8, bool), effect, 100.0, POLICY)
    assert sorted(changed) == [0, 1]
    assert rows.state[:3].tolist() == [STRAGGLER, STRAGGLER, HEALTHY]
    assert not gone.any()
    assert rows.hold_samples[:2].tolist() == [2 * 20 + 10, 0]


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


def test_members_are_found_by_job_node_and_rank() -> None:
    registry = world()
    assert registry.find_named("j", "n3", 3) == 2
    assert registry.find_named("j", "n3", 4) is None
    assert registry.find_named("k", "n3", 3) is None


def test_steps_wait_since_their_first_sample() -> None:
    buffer = FrameBuffer()
    cohort_of, live, wait_s = np.array([0, 0, 0]), np.array([3.0]), np.array([5.0])
    buffer.add(make_batch(np.array([0]), np.ones(1), np.array([1])), 10.0)
    assert buffer.close(cohort_of, live, wait_s, 10.0) == []
    buffer.add(make_batch(np.array([1]), np.ones(1), np.array([1])), 14.0)
    assert buffer.close(cohort_of, live, wait_s, 14.9) == []
    (frame,) = buffer.close(cohort_of, live, wait_s, 15.0)
    assert frame.batch.member.tolist() == [0, 1]
    assert buffer.close(cohort_of, live, wait_s, 99.0) == []


@pytest.mark.parametrize(
    ("used", "count", "is_learned"),
    [(0, 28, False), (0, 29, True), (20, 38, False), (20, 39, True)],
)
def test_advances_are_learned_after_the_warm_up_and_with_twice_as_many(
    used: int, count: int, is_learned: bool
) -> None:
    registry = world()
    rows = registry.rows
    rows.state[:8], rows.advance_learned[:8], rows.advance_samples[:8] = HEALTHY, used, count
    rows.advance_history[:8, :count] = 0.02
    rows.advance_bias[:8], rows.advance_scale[:8], rows.advance_k[:8] = 0.02, 0.01, 1.0
    rows.advance_limit[:8], rows.advance_sum[:8], rows.advance_count[:8] = 10.0, 0.02, 1
    close_advances(rows, registry.cohorts, np.arange(8), POLICY, np.full(8, 30.0))
    assert (rows.advance_learned[0] == count + 1) == is_learned


@pytest.mark.parametrize(
    ("kind", "node", "cause"),
    [("stage", "", CauseClass.STRUCTURAL), ("node", "v", CauseClass.FLEET),
     ("rack", "", CauseClass.FLEET)],
)  # fmt: skip
def test_a_stage_that_is_slow_together_is_structural(
    kind: str, node: str, cause: CauseClass
) -> None:
    found = describe_group(world(), Group(kind, "v", 50.0, 60.0, [0, 1, 2], 4), POLICY)
    assert (found.node, found.cause_class, found.shared) == (node, cause, f"{kind} v")
