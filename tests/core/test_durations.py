"""Durations as text, short and exact."""

import pytest

from ingero.core.durations import exact_duration, human_duration, rounded_to

S = 1_000_000_000


@pytest.mark.parametrize(
    ("duration_ns", "text"),
    [
        (0, "0"), (999, "999ns"), (1500, "1.5us"), (10_000, "10us"), (9_900_000, "9.9ms"),
        (456_000_000, "456ms"),
        (90 * S, "1m30s"), (9_996, "10us"), (1_500_000_000, "1.5s"), (59 * S, "59s"),
    ],
)  # fmt: skip
def test_short_form(duration_ns: int, text: str) -> None:
    assert human_duration(duration_ns) == text


@pytest.mark.parametrize(
    ("duration_ns", "text"),
    [
        (25_799_899, "25.799899ms"), (73_194, "73.194µs"), (1_904_932, "1.904932ms"),
        (6_273_000_000, "6.273s"),
        (988_000_000, "988ms"), (16_700, "16.7µs"), (1_050_000, "1.05ms"), (90 * S, "1m30s"),
        (0, "0ns"),
    ],
)  # fmt: skip
def test_exact_form(duration_ns: int, text: str) -> None:
    assert exact_duration(duration_ns) == text


def test_rounding() -> None:
    assert rounded_to(987_642_000, 1_000_000) == 988_000_000
