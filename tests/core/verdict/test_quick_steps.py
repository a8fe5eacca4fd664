"""Jobs with rare steps that are far longer: their quick steps are steadier, and show faults."""

import math

import numpy as np
import pytest
from tests.support.step_tables import Floats, registry

from ingero.core.verdict.job_steps import CalmSteps, find_calm, rose_at
from ingero.core.verdict.loss import Change, _clearest_change, change_of_step
from ingero.core.verdict.members import MemberRegistry
from ingero.core.verdict.table import ADVANCE, FAST, STALL

CALM, SLOW = 60, 20


def job(
    mean: float, quick: float, *, calm_noise: float = 0.04, above: float = 0.06
) -> tuple[MemberRegistry, CalmSteps]:
    """Return a job whose means and quick steps grew by so much, as logarithms.

    Means are `above` quick steps and vary by `calm_noise`; quick steps vary by 0.01.
    """
    found, dice = registry(), np.random.default_rng(305)
    cohort = int(found.rows.cohort[0])
    cohorts, all_samples = found.cohorts, CALM + SLOW
    is_slow = np.arange(all_samples) >= CALM
    steps = {
        "step_quick": quick * is_slow + dice.normal(0, 0.01, all_samples),
        "step_log": above + mean * is_slow + dice.normal(0, calm_noise, all_samples),
        "step_level": np.full(all_samples, np.nan),
        "step_is_calm": ~is_slow,
    }
    for name, values in steps.items():
        getattr(cohorts, name)[cohort, :all_samples] = values
    cohorts.step_samples[cohort] = all_samples
    found.rows.advance_rose_at[0] = found.rows.stall_rose_at[0] = CALM
    found.rows.channel[0] = ADVANCE
    calm = find_calm(cohorts, cohort, CALM, only_near=True)
    assert calm is not None
    return found, calm


def change(found: MemberRegistry, calm: CalmSteps) -> Change:
    result = _clearest_change(found, 0, calm, 0.0, 60)
    assert result is not None
    return result


def means_alone(found: MemberRegistry, calm: CalmSteps) -> Change:
    calm = CalmSteps(calm.log_s, calm.mean_s, calm.noise, calm.inflation, calm.error, None)
    return change(found, calm)


def test_quick_steps_that_are_far_steadier_weigh_more_than_means() -> None:
    found, calm = job(0.1, 0.1)
    assert calm.steadier().is_quick
    both, means = change(found, calm), means_alone(found, calm)
    assert both.share == pytest.approx(1 - math.exp(-0.1), abs=0.01)
    assert both.error < 0.5 * means.error
    assert both.slow_s == means.slow_s, "what a step takes now is its mean"
    assert both.calm_s == pytest.approx((1 - both.share) * both.slow_s)


@pytest.mark.parametrize(("calm_noise", "above"), [(0.01, 0.06), (0.04, 0.11)])
def test_means_are_compared_where_they_are_as_steady_or_steps_are_of_several_kinds(
    calm_noise: float, above: float
) -> None:
    found, calm = job(0.1, 0.1, calm_noise=calm_noise, above=above)
    assert calm.steadier() is calm
    assert change(found, calm) == means_alone(found, calm)


def test_a_fault_in_some_steps_only_is_what_means_show() -> None:
    found, calm = job(0.2, 0.0)
    assert change(found, calm) == means_alone(found, calm)


def test_stalls_change_means_and_not_quick_steps() -> None:
    found, calm = job(0.1, 0.1)
    found.rows.channel[0] = STALL
    assert change(found, calm) == change_of_step(found, 0, calm, 0.0, 60)


def began(excess: Floats, rose: int, channel: int = FAST) -> int:
    found = registry()
    rows, cohorts = found.rows, found.cohorts
    rows.channel[0], rows.bias[0] = channel, 0.01
    rows.rose_at[0] = rows.advance_rose_at[0] = rose
    rows.samples[0] = cohorts.step_samples[rows.cohort[0]] = len(excess)
    for at, value in enumerate(excess):
        rows.latest[0, at % rows.latest.shape[1]] = value + 0.01
    return rose_at(rows, cohorts, 0)


def test_a_member_is_slow_since_its_excess_is_above_half_of_what_it_is() -> None:
    noise = np.random.default_rng(7).normal(0, 0.01, 80)
    excess = noise + np.where(np.arange(80) >= 70, 0.1, 0.0)
    excess[62:64] = 0.06  # noise that raised the channel first
    assert began(excess, 62) == 70
    assert began(excess, 72) == 72, "its channel rose later"
    assert began(excess, 75) == 75, "so few samples say nothing"
    assert began(excess, 5) == 5, "nothing is remembered for so long"
    assert began(excess, 62, ADVANCE) == 62
