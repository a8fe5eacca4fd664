"""The channel of what a job waits for one member alone, and what is usual for a member."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.member_tables import member_table
from tests.support.verdict_tables import POLICY, world

from ingero.core.verdict.channels import advance
from ingero.core.verdict.channels.advance import (
    _learn,
    close_advances,
    has_advance,
    is_own_delay,
)
from ingero.core.verdict.own_times import make_batch
from ingero.core.verdict.policy import VerdictPolicy
from ingero.core.verdict.table import (
    ADVANCE,
    FAST,
    HEALTHY,
    SUSPECT,
    CohortRows,
    MemberRows,
)

Floats = NDArray[np.float64]


def wait(
    rows: MemberRows, cohorts: CohortRows, shares: Sequence[Floats], first: float = 20.0
) -> None:
    """Feed samples of advances, as shares of steps of 2 s."""
    members = np.arange(rows.size)
    for share in shares:
        batch = make_batch(
            members, np.ones(rows.size), np.zeros(rows.size, np.int64),
            span_s=np.full(rows.size, 2.0), advance_s=2.0 * np.asarray(share, float),
            start_late_s=np.full(rows.size, 0.3), enqueue_late_s=np.full(rows.size, 0.1),
        )  # fmt: skip
        advance.keep_advances(rows, cohorts, batch)
        advance.close_advances(rows, cohorts, members, VerdictPolicy(), np.full(rows.size, first))


def calm_waits(count: int, members: int = 4, seed: int = 1) -> list[Floats]:
    return list(np.random.default_rng(seed).exponential(0.004, (count, members)))


def test_a_baseline_of_advances_is_learned_after_the_first_samples() -> None:
    rows, cohorts = member_table()
    wait(rows, cohorts, calm_waits(19))
    assert rows.advance_learned[0] == 0
    wait(rows, cohorts, calm_waits(1, seed=2))
    assert rows.advance_learned[:4].tolist() == [20] * 4
    assert rows.advance_bias[:4] == pytest.approx(0.004, abs=0.003)
    assert (rows.advance_scale[:4] > 0.001).all()
    assert (rows.advance_limit[:4] > 1).all()
    wait(rows, cohorts, calm_waits(25, seed=3))
    assert (rows.advance_learned[:4] >= 40).all()


def test_the_job_waits_for_one_member_and_its_channel_rises() -> None:
    rows, cohorts = member_table()
    wait(rows, cohorts, calm_waits(60))
    learned = rows.advance_samples[2]
    wait(rows, cohorts, [np.array([0, 0, 0.2, 0])] * 8)
    assert rows.advance_cusum[2] > rows.advance_limit[2]
    assert rows.advance_samples[2] == learned  # a slowdown is not learned
    effect = advance.advance_effect(rows, np.arange(4))
    assert effect[2] == pytest.approx(0.2 - rows.advance_bias[2])
    assert (effect[[0, 1, 3]] < 0.01).all()
    assert int(rows.advance_rises[2]) & 0xFF == 0xFF


def test_an_effect_is_unknown_before_five_samples() -> None:
    rows, cohorts = member_table()
    wait(rows, cohorts, calm_waits(20))
    wait(rows, cohorts, calm_waits(4, seed=5))
    assert advance.advance_effect(rows, np.array([0]))[0] == -np.inf
    wait(rows, cohorts, calm_waits(1, seed=6))
    assert np.isfinite(advance.advance_effect(rows, np.array([0]))[0])


def test_how_late_host_and_gpu_were_is_kept_for_each_step() -> None:
    rows, cohorts = member_table()
    wait(rows, cohorts, calm_waits(3))
    assert rows.late_frames[:4].tolist() == [3] * 4
    assert rows.start_late_s[0, :3].tolist() == [0.3] * 3
    assert rows.enqueue_late_s[0, :3].tolist() == [0.1] * 3
    assert np.isnan(rows.start_late_s[0, 3])


def test_steps_of_unknown_length_are_left_out() -> None:
    rows, cohorts = member_table()
    batch = make_batch(
        np.arange(3), np.ones(3), span_s=np.array([np.nan, 0.0, 2.0]),
        advance_s=np.array([1.0, 1.0, np.nan]),
    )  # fmt: skip
    advance.keep_advances(rows, cohorts, batch)
    assert rows.advance_count[:3].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("rises", "waited", "effect", "is_found"),
    [
        (0b1111111, 0.1, 0.1, True),
        (0b1111101, 0.1, 0.1, True),
        (0b1111001, 0.1, 0.1, False),  # six of the last seven
        (0b1111111, 0.0149, 0.1, False),  # the gate
        (0b1111111, 0.0151, 0.1, True),
        (0b1111111, 0.1, 0.058, False),  # 0.3 of 0.1 · 2 s must be explained by 1 s of own time
        (0b1111111, 0.1, 0.059, True),
        (0b1111111, 0.1, -0.1, False),
    ],
)
def test_the_job_must_have_waited_for_long_and_own_time_must_have_grown(
    rises: int, waited: float, effect: float, is_found: bool
) -> None:
    rows, _ = member_table()
    rows.channel[:4] = ADVANCE
    rows.channel[1] = FAST
    rows.advance_rises[:4] = rises
    rows.advance_recent[:4] = waited
    rows.baseline_log_own[:4] = 0.0
    rows.span_s[:4] = 2.0
    found = advance.has_advance(rows, np.full(4, effect), VerdictPolicy())
    assert found.tolist() == [is_found, False, is_found, is_found]


def test_the_channel_remembers_where_it_left_zero() -> None:
    rows, cohorts = member_table()
    wait(rows, cohorts, calm_waits(60))
    cohorts.step_samples[1] = 70
    wait(rows, cohorts, [np.zeros(4)] * 10)
    assert rows.advance_rose_at[2] == 70
    cohorts.step_samples[1] = 80
    wait(rows, cohorts, [np.array([0, 0, 0.2, 0])] * 3)
    assert rows.advance_rose_at[2] == 70
    assert rows.advance_rose_at[0] == 80


def usual_of(late_s: float, steps: int = 100, noise_s: float = 0.1) -> tuple[Floats, Floats]:
    """Return what is usual after one more step, for a host that was 1 s late, give or take."""
    rows, cohorts = member_table()
    rows.late_frames[0], rows.usual_late_s[0], rows.late_noise_s[0] = steps, 1.0, noise_s
    advance._follow_usual(rows, cohorts, np.array([0]), np.full((1, 6), late_s))
    return rows.usual_late_s[0], rows.late_noise_s[0]


@pytest.mark.parametrize(
    ("late_s", "steps", "usual_s"),
    [
        (1.1, 100, 1.0 + 0.1 / 50), (0.9, 100, 1.0 - 0.1 / 50),  # a mean over fifty steps
        (9.0, 100, 1.0 + 0.4 / 50), (-9.0, 100, 1.0 - 0.4 / 50),  # a hiccup: four noises
        (9.0, 11, 1.0 + 0.4 / 11), (9.0, 10, 1.0 + 8.0 / 10),  # of a few steps all count
    ],
)  # fmt: skip
def test_one_late_step_says_little_about_what_is_usual(
    late_s: float, steps: int, usual_s: float
) -> None:
    usual, noise = usual_of(late_s, steps)
    assert usual == pytest.approx([usual_s] * 6)
    moved_s = abs(usual_s - 1.0) * min(steps, 50)
    assert noise == pytest.approx([0.1 + (moved_s - 0.1) / min(steps, 50)] * 6)


def test_the_first_step_is_what_is_usual_and_unknown_ones_are_left_out() -> None:
    rows, cohorts = member_table()
    rows.late_frames[:2] = 1
    late_s = np.array([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [1.0, np.nan, 3.0, 4.0, 5.0, 6.0]])
    advance._follow_usual(rows, cohorts, np.array([0, 1]), late_s)
    assert rows.usual_late_s[0].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert np.isnan(rows.usual_late_s[1]).all()


@pytest.mark.parametrize("slow", ["state", "cusum", "advance_cusum", "step_cusum"])
def test_nothing_is_usual_while_somebody_seems_to_be_slow(slow: str) -> None:
    rows, cohorts = member_table()
    rows.late_frames[:2], rows.advance_limit[:4] = 1, 10.0
    where = cohorts.step_cusum if slow == "step_cusum" else getattr(rows, slow)
    where[1 if slow == "step_cusum" else 0] = 3.1 if "cusum" in slow else SUSPECT
    members = np.array([0, 1])
    advance._follow_queue(rows, cohorts, members, np.array([5.0, np.nan]))
    advance._follow_usual(rows, cohorts, members, np.ones((2, 6)))
    assert np.isnan(rows.usual_late_s[0]).all()
    assert np.isnan(rows.baseline_queue_s[:2]).all(), "or where it is not known"


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


@pytest.mark.parametrize(("own_s", "is_own"), [(1.0, False), (2.0, True)])
def test_a_share_of_a_longer_own_time_explains_more(own_s: float, is_own: bool) -> None:
    """The job waits half a second for it, of which 0.15 s must be own time: 10 % of 2 s are."""
    rows = world().rows
    rows.advance_recent[0], rows.span_s[:8] = 0.5, 1.0
    rows.baseline_log_own[:8] = math.log(own_s)
    assert is_own_delay(rows, np.full(8, math.log1p(0.1)))[0] == is_own


@pytest.mark.parametrize(
    ("used", "count", "is_learned"),
    [(0, 18, False), (0, 19, True), (20, 38, False), (20, 39, True)],
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
    ("rises", "advance", "is_found"),
    [
        (0b1111111, 0.02, True),
        (0b1111110, 0.02, True),
        (0b0111111, 0.02, True),
        (0b1111100, 0.02, False),
        (0b11111100, 0.02, False),  # the sixth is the eighth last sample
        (0b1111111, 0.015, True),
        (0b1111111, 0.0149, False),
    ],
)
def test_the_job_must_wait_in_six_of_the_last_seven_samples(
    rises: int, advance: float, is_found: bool
) -> None:
    rows = world().rows
    rows.channel[0], rows.advance_rises[0], rows.advance_recent[0] = ADVANCE, rises, advance
    rows.baseline_log_own[:8], rows.span_s[:8] = 0.0, 1.0
    found = has_advance(rows, np.full(8, 0.1), POLICY)
    assert found.tolist() == [is_found] + [False] * 7
