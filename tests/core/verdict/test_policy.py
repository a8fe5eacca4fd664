"""Parameters of the engine: their ranges, and the limits that follow from them."""

import math

import numpy as np
import pytest

from ingero.core.scale import autocorrelation, qn, qn_factor, thinned
from ingero.core.verdict.policy import (
    VerdictPolicy,
    decision_limit,
    drift_allowance,
    inflation_of,
    samples_between_alarms,
)
from ingero.errors import ConfigError


@pytest.mark.parametrize(
    ("key", "allowed", "refused"),
    [
        ("min_effect", [0.015, 0.5], [0.51]),
        ("gate", [0.001, 0.03], [0.0, 0.0301]),
        ("false_alarms_per_1000_node_hours", [0.001, 1000], [0.0009, 1000.1]),
        ("warmup_samples", [20, 240], [19, 241]),
        ("guard_share", [0.01, 0.49], [0.0, 0.5]),
        ("stale_s", [0.001, 300.0], [0.0]),
        ("forget_s", [30.0], [29.9]),
        ("max_members", [1], [0]),
    ],
)
def test_a_parameter_is_refused_just_beyond_its_range(
    key: str, allowed: list[float], refused: list[float]
) -> None:
    for value in allowed:
        assert getattr(VerdictPolicy(**{key: value}), key) == value  # type: ignore[arg-type]
    for value in refused:
        with pytest.raises(ConfigError, match=rf"verdict\.\w+: {value} is out of range"):
            VerdictPolicy(**{key: value})  # type: ignore[arg-type]
    VerdictPolicy(min_effect=0.005, gate=0.005)
    with pytest.raises(ConfigError, match=r"verdict\.min_effect"):
        VerdictPolicy(min_effect=0.0049, gate=0.001)


def test_the_defaults_are_those_of_the_documentation() -> None:
    policy = VerdictPolicy()
    assert (policy.min_effect, policy.gate, policy.guard_share) == (0.03, 0.015, 0.4)
    assert policy.false_alarms_per_1000_node_hours == 0.2
    assert (policy.warmup_samples, policy.max_members) == (30, 100_000)
    assert (policy.stale_s, policy.forget_s) == (30.0, 300.0)


@pytest.mark.parametrize(
    ("scale", "history", "k"),
    [
        (0.015, 10_000, 1.0),  # half the effect of 0.03, in scales
        (0.003, 10_000, 1.5),  # at most
        (0.1, 10_000, 0.75),  # at least
        (0.1, 9.0, 1.0),  # three standard errors of a short history
        (0.1, 6.25, 1.2),
    ],
)
def test_the_drift_allowance_is_half_the_effect_within_its_bounds(
    scale: float, history: float, k: float
) -> None:
    found = drift_allowance(np.array([scale]), np.array([history]), 0.0, VerdictPolicy())
    assert found == pytest.approx([k])


def test_correlated_samples_make_a_history_shorter() -> None:
    assert inflation_of(0.0) == 1.0
    assert inflation_of(0.6) == pytest.approx(2.0)
    plain, related = (
        drift_allowance(np.array([0.1]), np.array([16.0]), correlation, VerdictPolicy())
        for correlation in (0.0, 0.6)
    )
    assert (plain[0], related[0]) == (pytest.approx(0.75), pytest.approx(1.5))


def test_the_budget_is_a_number_of_samples() -> None:
    """0.2 alarms in 1,000 hours are one in 5,000 hours, of one sample a second or longer."""
    samples = samples_between_alarms(np.array([0.2, 1.0, 10.0]), VerdictPolicy())
    assert samples == pytest.approx([18e6, 18e6, 1.8e6])


@pytest.mark.parametrize("k", [0.5, 1.0, 1.5])
@pytest.mark.parametrize("between", [1e4, 1e6])
def test_the_limit_solves_siegmunds_formula(k: float, between: float) -> None:
    """Without the safety for tails and short histories it gives the wanted time between alarms."""
    history = np.array([1e9])
    (limit,) = decision_limit(np.array([k]), history, correlation=0.0, between_alarms=between)
    b = limit / 1.72 + 1.166
    assert (math.exp(2 * k * b) - 1 - 2 * k * b) / (2 * k * k) == pytest.approx(between, rel=0.02)


def test_a_short_history_and_correlation_widen_the_limit() -> None:
    def limit(history: float, correlation: float = 0.0, between: float = 1e6) -> float:
        return float(
            decision_limit(
                np.array([1.0]), np.array([history]),
                correlation=correlation, between_alarms=between,
            )[0]
        )  # fmt: skip

    long = limit(1e9)
    assert limit(45.0) == pytest.approx(2 * long)
    assert limit(90.0) == pytest.approx(1.25 * long)
    assert limit(1e9, correlation=0.6) == pytest.approx(2 * long)
    assert limit(1e9, between=1.0) == pytest.approx(1.72)  # never below one scale


def test_qn_has_a_factor_for_every_number_of_samples() -> None:
    published = [0.399, 0.994, 0.512, 0.844, 0.611, 0.857, 0.669, 0.872]
    assert [qn_factor(n) for n in range(2, 10)] == published
    assert (qn_factor(11), qn_factor(10)) == (pytest.approx(11 / 12.4), pytest.approx(10 / 13.8))


def test_qn_is_the_distance_that_a_quarter_of_the_pairs_do_not_exceed() -> None:
    """Of five samples, the third smallest of ten distances counts."""
    samples = np.array([[0.0, 1.0, 3.0, 7.0, 20.0]])  # distances 1, 2, 3, 4, 6, 7, …
    assert qn(samples) == pytest.approx([2.2219 * 0.844 * 3.0])
    assert qn(np.array([[2.0, 5.0]])) == pytest.approx([2.2219 * 0.399 * 3.0])
    assert np.isnan(qn(np.array([[1.0]]))).all()


@pytest.mark.parametrize(("count", "kept"), [(59, 59), (60, 60), (61, 31), (240, 60)])
def test_long_histories_are_thinned_evenly(count: int, kept: int) -> None:
    samples = np.arange(count, dtype=float)[None, :]
    found = thinned(samples)
    assert found.shape == (1, kept)
    assert len(set(np.diff(found[0]))) == 1


def test_autocorrelation_of_known_series() -> None:
    alternating = np.resize([1.0, -1.0], 100)
    pairs = np.resize([1.0, 1.0, -1.0, -1.0], 100)
    constant = np.full(100, 3.0)
    found = autocorrelation(np.stack([alternating, pairs, constant]) + 5)
    assert found == pytest.approx([-0.99, 0.01, 0.0])


def test_single_outliers_do_not_decide_the_autocorrelation() -> None:
    series = np.resize([1.0, 1.0, -1.0, -1.0], 400)
    series[[100, 101]] = 1e6
    assert autocorrelation(series[None, :])[0] == pytest.approx(0.0, abs=0.1)
