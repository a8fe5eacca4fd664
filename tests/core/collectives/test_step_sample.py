"""Which steps are sent whole: all ranks choose the same ones."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero.core.collectives.step_sample import StepSample, is_chosen

STEPS = np.arange(10_000)


@given(st.floats(0.001, 1.0), st.floats(0.001, 1.0))
def test_a_smaller_share_is_a_subset_of_a_larger_one(one: float, other: float) -> None:
    small, large = is_chosen(STEPS, min(one, other)), is_chosen(STEPS, max(one, other))
    assert not (small & ~large).any()


@given(st.floats(0.01, 0.99))
def test_chosen_steps_are_spread_evenly(share: float) -> None:
    at = np.flatnonzero(is_chosen(STEPS, share))
    assert len(at) == pytest.approx(share * len(STEPS), rel=0.05, abs=4)
    assert np.diff(at).max() <= 3.0 / share + 1


@pytest.mark.parametrize("period", [2, 3, 4, 5, 8, 10, 16, 20, 64])
def test_the_choice_coincides_with_no_period_of_the_job(period: int) -> None:
    at = np.flatnonzero(is_chosen(STEPS, 0.2))
    counts = np.bincount(at % period, minlength=period) * period / len(at)
    assert counts.min() > 0.7
    assert counts.max() < 1.3


@pytest.mark.parametrize(
    ("span_s", "length"), [(0.015, 4), (0.04, 6), (0.05, 20), (1.0, 12), (60.0, 500), (1.0, 2000)]
)
def test_the_rate_stays_within_the_limit_and_a_step_per_second_is_seen(
    span_s: float, length: int
) -> None:
    sample, per_s = StepSample(32.0), 32.0
    for _ in range(20):
        sample.choose(
            np.repeat(np.arange(4), length), np.tile(np.arange(length), 4), np.full(4, span_s)
        )
    steps = np.repeat(np.arange(4000), length)
    sent = sample.choose(steps, np.tile(np.arange(length), 4000), np.full(4000, span_s))
    assert sent.sum() / (4000 * span_s) <= per_s * 1.1
    seen = len(np.unique(steps[sent])) / (4000 * span_s)
    assert seen >= 0.8 * min(1.0, 1.0 / span_s)
    assert sample.weight == pytest.approx(len(steps) / sent.sum(), rel=0.1)


def test_the_share_follows_a_changed_pace_but_not_its_noise() -> None:
    sample, chance = StepSample(32.0), np.random.default_rng(5)
    shares = set()
    for _ in range(200):
        span_s = 0.04 * chance.lognormal(0.0, 0.05, 25)
        sample.choose(np.repeat(np.arange(25), 6), np.tile(np.arange(6), 25), span_s)
        shares.add(sample.steps)
    assert len(shares) <= 2
    for _ in range(40):
        sample.choose(np.repeat(np.arange(2), 6), np.tile(np.arange(6), 2), np.full(2, 0.5))
    assert sample.steps == 1.0


def test_steps_without_a_number_are_not_chosen() -> None:
    assert not is_chosen(np.array([-1, -1]), 0.5).any()
