"""Jobs whose pace wanders: which calm steps count, and what stalls cost between them."""

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.support.step_tables import cohort_table
from tests.support.verdict_tables import CALM, POLICY, world

from ingero.core.verdict.episodes import Episodes
from ingero.core.verdict.job_steps import (
    BLOCK,
    FORETOLD,
    _describe,
    _nearest,
    close_steps,
    find_calm,
    follow_steps,
)
from ingero.core.verdict.loss import _between_stalls, _spread_of_stalls, change_of_step
from ingero.core.verdict.table import (
    FAST,
    FRAMES,
    RECOVERING,
    STALL,
    STRAGGLER,
    SUSPECT,
    CohortRows,
)

DICE = np.random.default_rng(13)


def calm_samples(log_s: np.ndarray) -> CohortRows:
    cohorts = cohort_table()
    count = len(log_s)
    cohorts.step_log[1, :count], cohorts.step_is_calm[1, :count] = log_s, 1.0
    cohorts.step_level[1, :count] = np.nan
    cohorts.step_samples[1] = count
    return cohorts


def test_calm_steps_next_to_an_episode_count_where_the_pace_changed() -> None:
    pace = np.repeat([0.0, 0.05], 50) + DICE.normal(0, 0.003, 100)
    found = find_calm(calm_samples(pace), 1, 100, only_near=True)
    assert found is not None and found.log_s == pytest.approx(0.05, abs=0.003)
    assert found.mean_s == pytest.approx(math.exp(0.05), rel=0.003)


def test_all_calm_steps_count_where_the_pace_is_steady() -> None:
    pace = DICE.normal(0, 0.01, 120)
    found = find_calm(calm_samples(pace), 1, 120, only_near=True)
    assert found is not None and found.log_s == pytest.approx(np.median(pace))
    assert found.error < 0.005


def test_the_error_covers_a_pace_that_wanders() -> None:
    """Twenty walks: what comes next is within two errors in at least 17 of them."""
    covered = 0
    for _ in range(20):
        walk = np.cumsum(DICE.normal(0, 0.005, 140)) + DICE.normal(0, 0.005, 140)
        found = find_calm(calm_samples(walk[:120]), 1, 120, only_near=True)
        assert found is not None
        spread = found.noise * found.inflation / math.sqrt(2)
        covered += abs(np.median(walk[120:130]) - found.log_s) <= 2 * math.hypot(
            found.error, spread
        )
    assert covered >= 17


@pytest.mark.parametrize(("samples", "is_near"), [(64, False), (65, True)])
def test_four_forecasts_of_the_past_are_needed_to_leave_old_steps_out(
    samples: int, is_near: bool
) -> None:
    """The first is made after forty samples and the others every five, each of ten samples."""
    pace = np.where(np.arange(samples) < 33, 0.0, 0.05)
    found = find_calm(calm_samples(pace), 1, samples, only_near=True)
    assert found is not None
    assert (found.mean_s == pytest.approx(math.exp(0.05))) == is_near


@pytest.mark.parametrize(
    ("spans_s", "quick_s"), [([4.0, 2.0, 3.0, 5.0], 2.0), ([4.0, 2.0, 3.0, 5.0, 6.0], 3.0)]
)
def test_a_quarter_of_the_steps_of_a_sample_are_quicker_than_its_quick_one(
    spans_s: list[float], quick_s: float
) -> None:
    """Steps of earlier samples do not count."""
    cohorts, only = cohort_table(), np.array([1])
    for part in ([1.0] * 8, spans_s):
        for span in part:
            cohorts.frames[1] += 1
            follow_steps(cohorts, only, np.array([0]), np.array([span]), np.zeros(1))
        close_steps(cohorts, only)
    assert math.exp(cohorts.step_quick[1, 1]) == pytest.approx(quick_s)


def test_what_was_foretold_wrong_is_the_error_of_the_middle_and_of_the_samples_foretold() -> None:
    """Neighbouring blocks resemble each other in such a job: both errors are wider for it."""
    dice, walk = np.random.default_rng(219), np.zeros(80)
    for at in range(1, 80):
        walk[at] = 0.8 * walk[at - 1] + dice.normal(0, 0.01)
    found, (_, wrong) = _describe(walk, None, True), _nearest(walk)
    assert found.inflation > 1.2
    of_samples = found.noise * found.inflation / math.sqrt(FORETOLD / BLOCK)
    assert 0 < of_samples < wrong
    assert math.hypot(found.error, of_samples) == pytest.approx(wrong)


@pytest.mark.parametrize(
    ("blocks", "noise", "far"), [(4, 0.02, 0.04), (1, 0.01, 0.02), (1, 0.001, 0.015)]
)
def test_the_paces_of_before_and_between_stalls_are_weighted_by_how_well_they_are_known(
    blocks: int, noise: float, far: float
) -> None:
    """Calm steps are known by 0.015 but wander by twice the noise of their quick ones.

    The pace between stalls differs by 0.015 and by what its blocks wander.
    """
    before = replace(CALM, error=0.015, quick=replace(CALM, noise=noise, inflation=2.0))
    near = math.hypot(0.015, 2 * noise / math.sqrt(blocks))
    calm_s, error = _between_stalls(before, before, 0.0, np.full(blocks * BLOCK, 0.01))
    assert math.log(calm_s) == pytest.approx(0.01 * far**2 / (far**2 + near**2))
    assert error == pytest.approx(far * near / math.hypot(far, near))


def test_quick_steps_are_those_without_a_stall() -> None:
    cohorts, only = cohort_table(), np.array([1])
    for number in range(20):
        span = np.array([2.5 if number % 10 == 3 else 1.0])
        cohorts.frames[1] += 1
        follow_steps(cohorts, only, np.array([0]), span, np.zeros(1))
        if number % 10 == 9:
            close_steps(cohorts, only)
    assert np.exp(cohorts.step_log[1, :2]) == pytest.approx([1.15, 1.15], rel=1e-5)
    assert cohorts.step_quick[1, :2].tolist() == [0.0, 0.0]
    assert FRAMES > 20  # the second sample does not see the first one


@pytest.mark.parametrize(
    ("pace", "error", "loss"),
    [
        (1.0, 0.03, 0.1 / 1.1),  # as before
        (1.05, 0.03, 0.115 / 1.155),  # slower by itself: four fifths of that are not lost
        (1.05, 0.001, 0.155 / 1.155),  # a steady job: it is slower because of the stalls
        (1.3, 0.03, 0.43 / 1.43),  # stalls everywhere: nothing lies between them
    ],
)
def test_stalls_cost_what_they_add_to_the_steps_between_them(
    pace: float, error: float, loss: float
) -> None:
    registry = world()
    registry.rows.channel[0] = STALL
    cohorts = registry.cohorts
    cohorts.step_log[1, :30], cohorts.step_quick[1, :30] = math.log(1.1 * pace), math.log(pace)
    cohorts.step_level[1, :30], cohorts.step_samples[1] = 0.0, 30
    change = change_of_step(registry, 0, replace(CALM, error=error, quick=CALM))
    assert change is not None and change.share == pytest.approx(loss, abs=0.012)
    assert change.slow_s == pytest.approx(1.1 * pace)


def test_blocks_of_steps_show_how_well_the_mean_of_stalls_is_known() -> None:
    stalls = np.log(np.repeat([1.0, 2.0, 3.0], 5))
    assert _spread_of_stalls(stalls) == pytest.approx(1.0 / 2.0 / math.sqrt(3))
    assert _spread_of_stalls(np.concatenate(([9.0], stalls))) != _spread_of_stalls(stalls[5:])
    for few in (14, 10, 5, 1):
        assert _spread_of_stalls(stalls[:few]) == 0.0, "two blocks say nothing"


def test_an_episode_is_compared_with_the_calm_steps_next_to_it() -> None:
    registry = world()
    cohorts = registry.cohorts
    cohorts.step_log[1, :100] = np.repeat([0.0, 0.05], 50) + DICE.normal(0, 0.003, 100)
    cohorts.step_level[1, :100], cohorts.step_is_calm[1, :100] = np.nan, 1.0
    cohorts.step_samples[1], registry.rows.samples[0], registry.rows.rose_at[0] = 100, 100, 100
    episodes = Episodes(registry, POLICY)
    episodes._suspect(0, SUSPECT, 200.0)
    calm = episodes._calm[0]
    assert calm is not None and calm.log_s == pytest.approx(0.05, abs=0.003)


@pytest.mark.parametrize(("state", "is_calm"), [(STRAGGLER, False), (RECOVERING, True)])
def test_steps_are_calm_again_once_a_member_recovers(state: int, is_calm: bool) -> None:
    registry = world()
    rows = registry.rows
    rows.state[0], rows.channel[0] = STRAGGLER, FAST
    episodes = Episodes(registry, POLICY)
    episodes._suspect(0, STRAGGLER, 200.0)
    rows.state[0] = state
    episodes._mark_restless()
    assert (not registry.cohorts.is_restless[rows.cohort[0]]) == is_calm
