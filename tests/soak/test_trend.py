"""The slope by which `make soak` judges: what it notices, and what it does not."""

import random

import pytest
from tests.soak.trend import LIMIT, Finding, medians_by_bin, theil_sen, trend_of

MB = 1e6


def series(
    minutes: int, rise: float, noise: float = 0.005, seed: int = 1, level: float = 100 * MB
) -> tuple[list[float], list[float]]:
    """Samples every five seconds that rise by a share of their level in ten minutes."""
    chance = random.Random(seed)
    times = [5.0 * i for i in range(minutes * 12)]
    values = [level * (1 + rise * at_s / 600) * (1 + chance.gauss(0, noise)) for at_s in times]
    return times, values


def test_theil_sen_finds_the_slope_of_a_line_and_ignores_outliers() -> None:
    x = [float(i) for i in range(20)]
    y = [3.0 + 0.5 * i for i in x]
    assert theil_sen(x, y) == pytest.approx((0.5, 0.5, 0.5))
    y[4], y[11], y[17] = 1e6, -1e6, 1e6
    slope, low, high = theil_sen(x, y)
    assert slope == pytest.approx(0.5)
    assert low <= slope <= high


def test_the_interval_covers_the_true_slope_about_as_often_as_it_says() -> None:
    chance = random.Random(3)
    x = [float(i) for i in range(25)]
    covered = 0
    for _ in range(200):
        _, low, high = theil_sen(x, [0.2 * i + chance.gauss(0, 1) for i in x])
        covered += low <= 0.2 <= high
    assert 0.90 <= covered / 200 <= 1.0


@pytest.mark.parametrize("seed", range(20))
def test_a_leak_of_four_percent_is_noticed_and_noise_is_not(seed: int) -> None:
    assert trend_of(*series(30, 2 * LIMIT, seed=seed)).finding is Finding.RISING
    assert trend_of(*series(30, 0.0, seed=seed)).finding is Finding.STEADY
    assert trend_of(*series(15, 0.0, noise=0.02, seed=seed)).finding is not Finding.RISING


def test_a_slope_is_a_share_of_the_level_in_ten_minutes() -> None:
    times, values = series(30, 0.03, noise=0.0)
    trend = trend_of(times, values)
    assert trend.slope == pytest.approx(0.03 / 1.045, rel=0.01)  # of the level in the middle
    assert trend.bins == 30


def test_one_step_up_is_no_leak() -> None:
    """An allocator that takes one more arena, once, does not rise any more."""
    times, values = series(30, 0.0, noise=0.001)
    stepped = [v * (1.06 if at_s > 700 else 1.0) for at_s, v in zip(times, values, strict=True)]
    assert trend_of(times, stepped).finding is not Finding.RISING


def test_one_handle_that_stays_open_in_every_ten_minutes_is_noticed() -> None:
    times = [5.0 * i for i in range(30 * 12)]
    values = [30.0 + at_s // 600 for at_s in times]
    assert trend_of(times, values).finding is Finding.RISING
    assert trend_of(times, [30.0] * len(times)).finding is Finding.STEADY


def test_a_short_run_does_not_pretend_to_know() -> None:
    assert trend_of(*series(5, 0.5)).finding is Finding.TOO_SHORT
    assert trend_of([], []).finding is Finding.TOO_SHORT


def test_a_fault_in_every_minute_does_not_move_the_median_of_that_minute() -> None:
    times, values = series(3, 0.0, noise=0.0)
    disturbed = [
        v * (3.0 if at_s % 60 < 25 else 1.0) for at_s, v in zip(times, values, strict=True)
    ]
    assert medians_by_bin(times, disturbed) == [(0, 100 * MB), (1, 100 * MB), (2, 100 * MB)]
