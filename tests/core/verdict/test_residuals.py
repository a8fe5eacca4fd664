"""Residuals: which samples are used, when one is closed, and what a job shares."""

import math

import numpy as np
import pytest
from tests.support.verdict_tables import POLICY, member, world

from ingero.core.verdict import residuals
from ingero.core.verdict.engine import VerdictEngine
from ingero.core.verdict.members import Member, MemberRegistry
from ingero.core.verdict.own_times import UNNUMBERED, FrameBuffer, make_batch
from ingero.core.verdict.table import HEALTHY

ONE, SECOND = np.array([0]), np.array([1])


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


def stages(shown: list[float], steps: list[int], per_sample: int = 0) -> MemberRegistry:
    """Return stages of one rank each, with such logarithms of own time and a baseline of zero."""
    registry = MemberRegistry(POLICY)
    for rank in range(4):
        registry.put(member(f"n{rank}", rank, role=f"stage{rank}"), 0.0)
    rows, cohorts = registry.rows, registry.cohorts
    cohorts.is_small[1:5], rows.baseline_log_own[:4], rows.frames[:4] = True, 0.0, 6
    cohorts.frames_per_sample[1:5] = per_sample
    rows.own_s[:4] = 1.0
    noise = np.linspace(-0.04, 0.04, len(steps)) if len(steps) > 1 else np.zeros(1)
    for step, by in zip(steps, noise, strict=True):
        rows.own_s[:4, step] = np.exp(by + np.array(shown))
    return registry


@pytest.mark.parametrize(("per_sample", "steps"), [(0, [5]), (2, [4, 5]), (9, range(6))])
def test_the_latest_own_times_show_what_a_job_shares(per_sample: int, steps: list[int]) -> None:
    """Two of three are 10 % above their baselines in the steps of a sample: so is the third."""
    registry = stages([0.0, 0.1, 0.2, 0.3], steps, per_sample)
    registry.cohorts.is_restless[1:5] = True
    rows = registry.rows
    residuals.find_common(registry, np.ones(4, bool))
    assert rows.common[:4] == pytest.approx([0.2, 0.2, 0.1, 0.1])
    assert rows.baseline_log_own[:4].tolist() == [0.0] * 4
    registry.cohorts.is_small[:] = False  # its small stages are gone: the others share nothing
    residuals.find_common(registry, np.ones(4, bool))
    assert rows.common[:4].tolist() == [0.0] * 4


@pytest.mark.parametrize(("samples", "moved"), [(0, 0.15), (4, 0.03), (1000, 0.0015)])
def test_what_a_calm_job_shares_becomes_usual_for_all_of_its_members(
    samples: int, moved: float
) -> None:
    """All move by the same, so what each differs by from the others stays as it is."""
    registry = stages([0.0, 0.1, 0.2, 0.3], [5])
    rows = registry.rows
    rows.samples[:4] = samples
    residuals.find_common(registry, np.ones(4, bool))
    assert rows.baseline_log_own[:4] == pytest.approx([moved] * 4)
    assert rows.common[:4] + moved == pytest.approx([0.2, 0.2, 0.1, 0.1])


def test_nothing_becomes_usual_during_an_event_of_the_job() -> None:
    registry = stages([0.1] * 4, [5])
    registry.cohorts.reason_since_s[2] = 100.0
    residuals.find_common(registry, np.ones(4, bool))
    assert registry.rows.baseline_log_own[:4].tolist() == [0.0] * 4


def test_the_first_steps_of_a_baseline_count_alike_and_later_ones_slowly() -> None:
    registry = world()
    rows, cohorts, cohort = registry.rows, registry.cohorts, registry.rows.cohort[SECOND]
    cohorts.frames_per_sample[1] = 2
    for frame, own_s in enumerate((1.0, math.e, math.e**2, math.e**3), 1):
        rows.frames[1] = frame
        batch = make_batch(SECOND, np.array([own_s]), np.array([frame]))
        residuals._follow_baselines(registry, batch, np.log(batch.own_s), cohort)
        assert rows.baseline_log_own[1] == pytest.approx((frame - 1) / 2)
    rows.frames[1] = 1000
    residuals._follow_baselines(registry, batch, np.array([2.5]), cohort)
    assert rows.baseline_log_own[1] == pytest.approx(1.5 + 0.01)


def test_samples_without_a_step_number_are_taken_with_the_next_tick() -> None:
    engine = VerdictEngine()
    members = [engine.register(Member(cluster="c", node=f"n{n}", rank=n, job="j"), 0.0)
               for n in range(3)]  # fmt: skip
    engine.observe(make_batch(np.array(members), np.full(3, math.e), np.full(3, UNNUMBERED)), 100.0)
    assert np.isnan(engine.registry.rows.last_log_own[:3]).all()
    engine.tick(100.0)
    assert engine.registry.rows.last_log_own[:3] == pytest.approx(1.0)


@pytest.mark.parametrize(("cusum", "is_learned"), [(0.9, True), (1.1, False)])
def test_own_time_is_learned_until_a_channel_has_risen_to_a_tenth_of_its_limit(
    cusum: float, is_learned: bool
) -> None:
    registry = world()
    rows, members = registry.rows, np.arange(8)
    rows.state[:8], rows.baseline_log_own[:8], rows.cusum[0] = HEALTHY, 0.0, cusum
    batch = make_batch(members, np.full(8, 2.0), np.full(8, 1))
    residuals.take_frame(registry, residuals.Frame(rows.cohort[members], batch), 100.0)
    assert (rows.baseline_log_own[0] > 0) == is_learned
    assert rows.baseline_log_own[1] > 0
