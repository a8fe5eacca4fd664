"""The step channel on tables alone: how it rises, what it learns, and who is behind it."""

import math

import numpy as np
import pytest
from tests.support.verdict_tables import POLICY, world

from ingero.core.verdict.channels.step import (
    _behind,
    find_behind,
    is_job_slower,
    learn_steps,
    slow_since,
    update_steps,
)
from ingero.core.verdict.members import MemberRegistry
from ingero.core.verdict.table import STEP_SAMPLES, CohortRows

NOISE = 0.01
ONE, FIRST = np.array([1]), np.array([0])


def channel(log_s: float, before: float = 0.0) -> CohortRows:
    """Return a cohort whose steps usually take 1 s, and whose tenth sample has been closed."""
    cohorts = world().cohorts
    cohorts.step_base[1], cohorts.step_noise[1] = 0.0, NOISE
    cohorts.step_cusum[1], cohorts.step_samples[1] = before, 10
    cohorts.step_log[1, 0] = log_s
    return cohorts


@pytest.mark.parametrize(
    ("scales", "before", "after"),
    [
        (2.0, 0.0, 1.0),  # one scale of every sample is allowed
        (2.0, 5.0, 6.0),
        (1.0, 5.0, 5.0),
        (20.0, 0.0, 3.0),  # no sample counts for more than four scales
        (-20.0, 5.5, 0.5),
        (-1.0, 1.0, 0.0),
        (4.0, 12.0, 12.8),  # 1.6 limits are the most
    ],
)
def test_the_channel_adds_up_what_steps_are_longer_by(
    scales: float, before: float, after: float
) -> None:
    cohorts = channel(scales * NOISE, before)
    update_steps(cohorts, ONE, FIRST)
    assert cohorts.step_cusum[1] == pytest.approx(after, abs=1e-5)
    assert cohorts.step_rose_at[1] == (11 if after == 0 else 0)


@pytest.mark.parametrize(
    ("scales", "is_restless", "moved"),
    [(-0.5, False, -0.005), (-8.0, False, -0.02), (-0.5, True, 0.0), (3.0, False, 0.0)],
)
def test_a_hundredth_of_what_calm_steps_show_is_followed(
    scales: float, is_restless: bool, moved: float
) -> None:
    """At most two scales of a sample count, and none while steps grow or somebody is suspected."""
    cohorts = channel(scales * NOISE)
    cohorts.is_restless[1] = is_restless
    update_steps(cohorts, ONE, FIRST)
    assert cohorts.step_base[1] == pytest.approx(NOISE * moved, abs=1e-9)


def test_where_nothing_is_known_of_steps_nothing_is_added() -> None:
    cohorts = channel(1.0)
    cohorts.step_base[1] = np.nan
    update_steps(cohorts, ONE, FIRST)
    assert cohorts.step_cusum[1] == 0.0


@pytest.mark.parametrize(("level", "after"), [(0.3, 1.0), (0.1, 3.0), (math.nan, 3.0)])
def test_steps_that_own_times_of_all_explain_are_not_longer(level: float, after: float) -> None:
    """Own times are 0.2 above their usual 0.1, of which a tenth shows in the steps."""
    cohorts = channel(4 * NOISE)
    cohorts.step_slope[1], cohorts.step_usual_level[1] = 0.1, 0.1
    cohorts.step_level[1, 0] = level
    update_steps(cohorts, ONE, FIRST)
    assert cohorts.step_cusum[1] == pytest.approx(after, abs=1e-4)


def learning(
    count: int, *, learned: int = 0, cusum: float = 0.0, rose_at: int = 0, calm: int = 128
) -> CohortRows:
    """Return a cohort with blocks of five steps that take exp(0) and exp(0.02) s in turn."""
    cohorts = world().cohorts
    cohorts.step_log[1] = np.resize(np.repeat([0.0, 0.02], 5), STEP_SAMPLES)
    cohorts.step_is_calm[1, :calm] = 1.0
    cohorts.step_samples[1], cohorts.step_learned[1] = count, learned
    cohorts.step_cusum[1], cohorts.step_rose_at[1] = cusum, rose_at
    learn_steps(cohorts)
    return cohorts


def test_the_usual_length_and_noise_of_steps_are_learned() -> None:
    """The spread of blocks is 0.02 / √3, and a single sample spreads 1 / 0.54 times as much."""
    cohorts = learning(20)
    assert cohorts.step_base[1] == pytest.approx(0.01)
    assert cohorts.step_noise[1] == pytest.approx(0.02 / math.sqrt(3) / 0.54, rel=1e-5)
    assert (cohorts.step_learned[1], cohorts.step_rose_at[1]) == (20, 20)
    assert (cohorts.step_slope[1], cohorts.step_usual_level[1]) == (0.0, 0.0)


def test_no_steps_are_steadier_than_the_floor() -> None:
    cohorts = world().cohorts
    cohorts.step_log[1, :20], cohorts.step_is_calm[1, :20] = 0.0, 1.0
    cohorts.step_samples[1] = 20
    learn_steps(cohorts)
    assert cohorts.step_noise[1] == 0.003


def test_what_own_times_explain_is_learned_with_the_rest() -> None:
    cohorts = world().cohorts
    level = np.resize([0.1, 0.3], 40)
    cohorts.step_level[1, :40], cohorts.step_log[1, :40] = level, 0.5 * level
    cohorts.step_is_calm[1, :40], cohorts.step_samples[1] = 1.0, 40
    learn_steps(cohorts)
    assert cohorts.step_slope[1] == pytest.approx(0.5, abs=1e-5)
    assert cohorts.step_usual_level[1] == pytest.approx(0.2, abs=1e-6)
    assert cohorts.step_base[1] == pytest.approx(0.1, abs=1e-6)


@pytest.mark.parametrize(
    ("given", "is_learned"),
    [
        ({"count": 19}, False), ({"count": 20}, True),
        ({"count": 39, "learned": 20}, False), ({"count": 40, "learned": 20}, True),
        ({"count": 117, "learned": 59}, False), ({"count": 118, "learned": 59}, True),
        ({"count": 119, "learned": 60}, False), ({"count": 120, "learned": 60}, True),
        ({"count": 179, "learned": 120}, False), ({"count": 180, "learned": 120}, True),
        ({"count": 400, "learned": 20, "cusum": 1.0, "rose_at": 100}, False),
        ({"count": 400, "learned": 20, "cusum": 1.0, "rose_at": 99}, True),  # for 300 samples
    ],
)  # fmt: skip
def test_steps_are_learned_after_twenty_then_twice_as_many_then_every_minute(
    given: dict[str, int], is_learned: bool
) -> None:
    cohorts = learning(**given)  # type: ignore[arg-type]
    assert (cohorts.step_learned[1] == given["count"]) == is_learned
    assert np.isnan(cohorts.step_base[1]) != is_learned
    if is_learned:
        assert cohorts.step_cusum[1] == 0.0


def test_too_few_calm_steps_are_not_learned_but_tried_again_later() -> None:
    cohorts = learning(60, calm=19)
    assert np.isnan(cohorts.step_base[1])
    assert cohorts.step_learned[1] == 60


def test_restless_steps_are_not_learned() -> None:
    cohorts = world().cohorts
    cohorts.step_log[1], cohorts.step_is_calm[1] = 0.0, 1.0
    cohorts.step_samples[1], cohorts.is_restless[1] = 60, True
    learn_steps(cohorts)
    assert cohorts.step_learned[1] == 0


@pytest.mark.parametrize(
    ("cusum", "of_steps", "of_member", "since"),
    [(8.0, 50, 30, 30), (8.1, 50, 30, 50), (8.1, 20, 30, 30)],
)
def test_a_slow_period_begins_where_steps_and_member_agree(
    cusum: float, of_steps: int, of_member: int, since: int
) -> None:
    cohorts = world().cohorts
    cohorts.step_cusum[1], cohorts.step_rose_at[1] = cusum, of_steps
    assert slow_since(cohorts, 1, of_member) == since
    assert is_job_slower(cohorts).tolist() == [False, cusum > 8.0]


def behind(
    *excess: float, length: int = 10, rise: float = 0.05, scale: float = NOISE, samples: int = 60
) -> MemberRegistry:
    """Return eight members of 1 s; the first ones have these excesses in their last samples."""
    registry = world()
    rows, cohorts = registry.rows, registry.cohorts
    rows.samples[:8], rows.scale[:8], rows.baseline_log_own[:8] = samples, scale, 0.0
    rows.latest[:8], rows.baseline_samples[:8] = 0.0, 240
    places = (samples - 1 - np.arange(length)) % 60
    for index, value in enumerate(excess):
        rows.latest[index, places] = value
    cohorts.step_base[1], cohorts.step_samples[1] = 0.0, 40
    cohorts.step_log[1, 39] = math.log1p(rise)
    return registry


def found(registry: MemberRegistry, length: int = 10, members: int = 8) -> int | None:
    return _behind(registry, np.arange(members), length, 1, POLICY)


def test_the_member_whose_own_time_grew_with_the_steps_is_behind_them() -> None:
    assert found(behind(0.03)) == 0
    assert found(behind(0.0, 0.0, 0.03)) == 2
    assert found(behind()) is None
    assert found(behind(0.03), members=1) is None, "nobody is compared with nobody"


@pytest.mark.parametrize(("length", "who"), [(4, None), (5, 0)])
def test_five_slow_samples_are_needed(length: int, who: int | None) -> None:
    """Five at 2.5 scales are 5.5 standard errors."""
    assert found(behind(0.03, length=length), length) == who


def test_the_last_samples_of_a_ring_that_began_anew_are_looked_at() -> None:
    assert found(behind(0.03, length=5, samples=72), 5) == 0
    registry = behind(0.03, length=5, samples=72)
    registry.rows.samples[:8] = 70
    assert found(registry, 5) is None, "two of its last five samples were not slow"


def test_members_with_fewer_samples_are_not_compared() -> None:
    registry = behind(0.03, 0.5)
    registry.rows.samples[1] = 9
    assert found(registry) == 0
    registry.rows.samples[1] = 10
    registry.rows.latest[1] = 0.5
    assert found(registry) == 1


@pytest.mark.parametrize(("second", "who"), [(0.025, None), (0.020, 0)])
def test_it_must_be_three_errors_ahead_of_the_next(second: float, who: int | None) -> None:
    """Ten samples at 3 scales are 9.5 errors; at 2.5 scales 7.9, and at 2 scales 6.3."""
    assert found(behind(0.03, second)) == who


@pytest.mark.parametrize(("lately", "who"), [(0.01, None), (0.02, 0)])
def test_half_of_its_excess_must_be_left_in_the_last_five(lately: float, who: int | None) -> None:
    """Of twenty samples, fifteen were at 4 scales."""
    registry = behind(0.04, length=20)
    registry.rows.latest[0, 55:60] = lately
    assert found(registry, 20) == who


def test_one_far_sample_proves_little() -> None:
    """Three of five at 3.5 scales count as 2.5: 4.2 errors are not enough."""
    registry = behind(0.035, length=5)
    registry.rows.latest[0, [55, 56]] = 0.01
    assert found(registry, 5) is None


@pytest.mark.parametrize(("low", "who"), [(0.10, 0), (0.03, None)])
def test_a_hiccup_beside_samples_that_are_slow_by_chance_is_no_slowdown(
    low: float, who: int | None
) -> None:
    """Three samples at 15 scales and two at ten are one slowdown; two at three scales are not."""
    registry = behind(0.15, length=5)
    registry.rows.latest[0, [55, 59]] = low
    assert found(registry, 5) == who


@pytest.mark.parametrize(("away", "who"), [(0.001, 0), (0.018, None)])
def test_samples_that_are_far_apart_prove_less(away: float, who: int | None) -> None:
    """Half of twenty samples at 3.5 scales and half at nothing are no slowdown that lasts."""
    registry = behind(0.017, length=20)
    registry.rows.latest[0, 40:60] += np.tile([away, -away], 10)
    assert found(registry, 20) == who


@pytest.mark.parametrize(("excess", "who"), [(0.014, None), (0.016, 0)])
def test_it_must_be_slower_by_what_counts_at_all(excess: float, who: int | None) -> None:
    assert found(behind(excess, scale=0.003)) == who


@pytest.mark.parametrize(("own_s", "who"), [(1.0, None), (2.0, 0)])
def test_it_must_explain_a_quarter_of_what_the_steps_grew_by(own_s: float, who: int | None) -> None:
    """Steps grew by 0.2 s; 3 % of own time are 30 or 61 ms, of which 50 are needed."""
    registry = behind(0.03, rise=0.2)
    registry.rows.baseline_log_own[0] = math.log(own_s)
    assert found(registry) == who


@pytest.mark.parametrize(("is_twinned", "who"), [(False, None), (True, 0)])
def test_a_twin_explains_what_it_comes_late_by(is_twinned: bool, who: int | None) -> None:
    """Steps of 1.2 s grew by 0.2 s: 30 ms of own time are too little, a tenth of a step is not."""
    registry = behind(0.03, rise=0.2)
    registry.rows.advance_recent[0], registry.cohorts.is_twinned[1] = 0.1, is_twinned
    assert found(registry) == who


@pytest.mark.parametrize(("correlation", "who"), [(0.0, 0), (0.5, 0), (0.95, None)])
def test_samples_that_resemble_each_other_prove_less(correlation: float, who: int | None) -> None:
    registry = behind(0.03, length=20)
    registry.rows.correlation[:8] = correlation
    assert found(registry, 20) == who


@pytest.mark.parametrize(("learned", "who"), [(30, None), (240, 0)])
def test_a_short_baseline_proves_less(learned: int, who: int | None) -> None:
    """Seven samples are 4.6 errors from a baseline of 30 samples, and 5.3 from one of 240."""
    registry = behind(0.03, length=7)
    registry.rows.baseline_samples[:8], registry.rows.correlation[:8] = learned, 0.2
    assert found(registry, 7) == who


@pytest.mark.parametrize(("cusum", "who"), [(8.0, []), (8.1, [0])])
def test_somebody_is_looked_for_where_steps_have_grown(cusum: float, who: list[int]) -> None:
    registry = behind(0.03)
    registry.cohorts.step_cusum[1], registry.cohorts.step_rose_at[1] = cusum, 30
    everyone = np.ones(registry.rows.size, bool)
    assert np.flatnonzero(find_behind(registry, everyone, POLICY)).tolist() == who
    nobody = np.zeros(registry.rows.size, bool)
    assert not find_behind(registry, nobody, POLICY).any()


def test_steps_may_have_grown_before_for_another_reason() -> None:
    """Steps are long for 38 samples, and the member is slow in the last sixteen of them."""
    registry = behind(0.03, length=16)
    registry.cohorts.step_cusum[1], registry.cohorts.step_rose_at[1] = 9.0, 2
    registry.rows.latest[0, :44] = -0.03
    assert found(registry, 38) is None
    everyone = np.ones(registry.rows.size, bool)
    assert np.flatnonzero(find_behind(registry, everyone, POLICY)).tolist() == [0]
