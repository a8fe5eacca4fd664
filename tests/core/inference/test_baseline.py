"""Baselines of steps: the 95th percentile, the mean, and outliers that never enter them."""

import random

import pytest
from hypothesis import given
from hypothesis.strategies import floats, lists

from ingero.core.inference.baseline import (
    WARM_UP,
    Baselines,
    Quantile,
    StepBaseline,
    batch_bucket,
)


def test_the_middle_marker_is_the_quantile() -> None:
    estimate = Quantile()
    for sample in range(1, 101):
        estimate.add(float(sample))
    assert estimate.value == 95.0


def test_the_quantile_of_uniform_samples_is_close() -> None:
    chance, estimate = random.Random(3), Quantile()
    samples = [chance.uniform(0, 100) for _ in range(5000)]
    for sample in samples:
        estimate.add(sample)
    assert estimate.value == pytest.approx(sorted(samples)[4750], abs=1.0)


def test_the_mean_of_a_constant_is_that_constant() -> None:
    baseline = StepBaseline()
    for _ in range(30):
        baseline.judge(100.0)
    assert baseline.mean_s == pytest.approx(100.0)


@given(lists(floats(1.5, 1000.0), max_size=50))
def test_outliers_never_enter_the_baseline(outliers: list[float]) -> None:
    baseline = StepBaseline()
    for _ in range(WARM_UP):
        assert baseline.judge(1.0) is None
    before = (baseline.count, baseline.mean_s, baseline.p95.value)
    assert [baseline.judge(each) for each in outliers] == outliers
    assert (baseline.count, baseline.mean_s, baseline.p95.value) == before


def test_the_number_of_baselines_is_bounded() -> None:
    kept = Baselines(limit=3)
    first = kept.of("a")
    for key in ("b", "c", "a", "d"):
        kept.of(key)
    assert len(kept) == 3
    assert kept.of("a") is first  # it was used last, so that `b` went


@pytest.mark.parametrize(("one", "other"), [(1, 2), (8, 16), (64, 100)])
def test_batches_that_differ_by_a_third_are_not_equal(one: float, other: float) -> None:
    assert batch_bucket(one) != batch_bucket(other)
