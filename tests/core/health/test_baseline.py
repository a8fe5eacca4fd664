"""Baselines: published series, missing values, degradation."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero.core.health.baseline import (
    Baseline,
    BaselinePolicy,
    baseline_signals,
    fold,
    hard_floor,
    is_degraded,
    is_warm,
    relative_signals,
    same_alphas,
)
from ingero.core.health.score import Signals
from ingero.errors import ConfigError

POLICY = BaselinePolicy()


def after(*samples: Signals, policy: BaselinePolicy = POLICY) -> Baseline:
    baseline = Baseline()
    for sample in samples:
        baseline = fold(baseline, sample, policy)
    return baseline


def rates(*values: float) -> list[Signals]:
    return [Signals(value, 0.9, 0.9, 0.9) for value in values]


def computes(*values: float) -> list[Signals]:
    return [Signals(100.0, value, 0.9, 0.9) for value in values]


def test_first_sample_is_already_meaningful_vector_20() -> None:
    baseline = after(*rates(100))
    assert baseline.fast.throughput == pytest.approx(10)
    assert baseline_signals(baseline, POLICY).throughput == pytest.approx(100)


def test_series_vectors_21_22_f051() -> None:
    two = after(*rates(100, 200))
    assert two.fast.throughput == pytest.approx(29)
    assert baseline_signals(two, POLICY).throughput == pytest.approx(152.63157894736847)
    assert baseline_signals(after(*rates(100, 200, 300)), POLICY).throughput == pytest.approx(
        207.01107011070118
    )


def test_slow_average_remembers_vector_23() -> None:
    baseline = after(*computes(*[0.9] * 100, *[0.5] * 30))
    assert baseline_signals(baseline, POLICY).compute == pytest.approx(0.516956, abs=1e-6)
    assert hard_floor(baseline, POLICY).compute == pytest.approx(0.803022, abs=1e-6)


def test_degradation_vectors_24_25() -> None:
    baseline = after(*computes(*[0.9] * 200))
    first = None
    for sample in range(1, 101):
        baseline = fold(baseline, *computes(0.2), POLICY)
        if first is None and is_degraded(baseline, POLICY):
            first = sample
            assert baseline_signals(baseline, POLICY).compute == pytest.approx(0.419667, abs=1e-6)
            assert hard_floor(baseline, POLICY).compute == pytest.approx(0.859742, abs=1e-6)
    assert first == 11
    assert baseline_signals(baseline, POLICY).compute == pytest.approx(0.200019, abs=1e-6)
    assert hard_floor(baseline, POLICY).compute == pytest.approx(0.642972, abs=1e-6)
    assert is_degraded(baseline, POLICY)


@pytest.mark.parametrize("missing", [None, math.nan, math.inf, -math.inf])
def test_bug_missing_value_is_skipped_not_folded_as_zero_vector_26(missing: float | None) -> None:
    """The reference took one step toward zero (89.99976); a missing value must not change it."""
    before = after(*rates(*[100] * 100))
    now = fold(before, Signals(missing, 0.9, 0.9, 0.9), POLICY)
    assert baseline_signals(now, POLICY).throughput == pytest.approx(100)
    assert now.counts == (100, 101, 101, 101)


def test_ratio_of_an_empty_baseline_is_zero_vector_27() -> None:
    assert relative_signals(Baseline(), Signals(100, 0.9, 0.9, 0.9), POLICY) == Signals(
        0.0, 0.9, 0.9, 0.9
    )


def test_ratio_against_the_baseline_rate_vector_28() -> None:
    ratio = relative_signals(
        after(*rates(*[100] * 50)), Signals(50, 0.9, 0.9, 0.9), POLICY
    ).throughput
    assert ratio == pytest.approx(0.5)


def test_ratio_is_read_before_the_sample_is_folded() -> None:
    baseline = after(*rates(*[100] * 50))
    biased = relative_signals(fold(baseline, Signals(50), POLICY), Signals(50), POLICY).throughput
    assert biased is not None
    assert biased > 0.52


def test_no_warning_before_warm_up_vector_29() -> None:
    policy = BaselinePolicy(warmup_samples=50)
    assert not is_degraded(
        after(*[Signals(0.001, 0.001, 0.001, 0.001)] * 10, policy=policy), policy
    )


def test_no_warning_for_levels_that_never_were_warm_vector_30() -> None:
    policy = BaselinePolicy(warmup_samples=5, floor_warmth_min=0.5)
    samples = [Signals(v, v, v, v) for v in (0.1, 0.1, 0.1, 0.1, 0.1, 0.01, 0.01, 0.01)]
    assert not is_degraded(after(*samples, policy=policy), policy)


def test_foreign_alphas_are_recognised_vector_31() -> None:
    assert same_alphas(0.1, 0.001, POLICY)
    assert not same_alphas(0.1, 0.001, BaselinePolicy(fast_alpha=0.3, floor_alpha=0.01))


def test_warm_after_thirty_samples() -> None:
    assert not is_warm(after(*rates(*[1] * 29)), POLICY)
    assert is_warm(after(*rates(*[1] * 30)), POLICY)


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=20))
def test_averages_stay_finite_whatever_comes(values: list[float]) -> None:
    baseline = after(
        *[Signals(v, v, v, v) for v in values if not (math.isfinite(v) and abs(v) > 1e300)]
    )
    for _, value in baseline_signals(baseline, POLICY).items():
        assert value is not None
        assert math.isfinite(value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"fast_alpha": 0.0},
        {"fast_alpha": 1.0},
        {"floor_alpha": 0.1},
        {"warning_ratio": 0.0},
        {"warmup_samples": -1},
        {"floor_warmth_min": 1.0},
    ],
)
def test_policy_out_of_range_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        BaselinePolicy(**wrong)
