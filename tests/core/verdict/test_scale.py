"""Robust scale, and the decision limit derived from it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import floats

from ingero.core.scale import autocorrelation, qn, qn_factor, thinned
from ingero.core.verdict.policy import (
    VerdictPolicy,
    decision_limit,
    samples_between_alarms,
)


@pytest.mark.parametrize("count", [5, 6, 9, 20, 60])
def test_qn_is_unbiased_for_normal_samples_of_any_length(count: int) -> None:
    assert qn(np.random.default_rng(1).normal(0, 2, (4000, count))).mean() == pytest.approx(
        2.0, rel=0.05
    )


@given(shift=floats(-100, 100), factor=floats(0.01, 100))
def test_qn_ignores_the_centre_and_follows_the_unit(shift: float, factor: float) -> None:
    samples = np.random.default_rng(2).normal(0, 1, (3, 15))
    assert np.allclose(qn(samples * factor + shift), qn(samples) * factor, rtol=1e-6)


def test_qn_tolerates_a_third_of_outliers() -> None:
    samples = np.random.default_rng(3).normal(0, 1, (200, 30))
    samples[:, :10] = 1e6
    assert qn(samples).mean() < 4


def test_autocorrelation_is_recovered_from_a_short_record() -> None:
    rng = np.random.default_rng(4)
    series = np.zeros((500, 240))
    for t in range(1, 240):
        series[:, t] = 0.6 * series[:, t - 1] + rng.normal(0, 1, 500)
    assert np.median(autocorrelation(series)) == pytest.approx(0.6, abs=0.03)


def test_the_limit_grows_with_noise_correlation_and_a_smaller_budget() -> None:
    def limit(k: float = 1.5, correlation: float = 0.0, budget: float = 0.2) -> float:
        policy = VerdictPolicy(false_alarms_per_1000_node_hours=budget)
        column = decision_limit(
            np.array([k]),
            np.array([240.0]),
            correlation=correlation,
            between_alarms=float(samples_between_alarms(np.array(1.0), policy)),
        )
        return float(column[0])

    assert 8 < limit() < 10
    assert limit(k=0.5) > limit()
    assert limit(correlation=0.6) == pytest.approx(2 * limit())
    assert limit(budget=0.01) > limit()


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
