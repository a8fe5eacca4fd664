"""Durations as text, short and readable."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero.core.durations import human_duration, readable_duration, readable_seconds

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
        (0, "0 ns"), (999, "999 ns"), (16_700, "16.7 µs"), (73_194, "73.2 µs"),
        (999_960, "1 ms"), (1_904_932, "1.9 ms"), (25_799_899, "25.8 ms"),
        (154_635_043, "154.6 ms"), (988_000_000, "988 ms"), (999_960_000, "1 s"),
        (6_273_000_000, "6.27 s"), (59_960_000_000, "1 min"), (90 * S, "1 min 30 s"),
    ],
)  # fmt: skip
def test_readable_form(duration_ns: int, text: str) -> None:
    assert readable_duration(duration_ns) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"), (1e-12, "0 s"), (0.154635043, "154.6 ms"), (-0.002, "-2 ms"),
        (90.0, "1 min 30 s"), (float("nan"), "an unknown time"),
    ],
)  # fmt: skip
def test_seconds_read_like_durations(seconds: float, text: str) -> None:
    assert readable_seconds(seconds) == text


@given(st.integers(0, 10**13))
def test_a_readable_duration_is_right_to_three_digits(duration_ns: int) -> None:
    units = {"ns": 1, "µs": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9}
    words = readable_duration(duration_ns).split()
    read = sum(
        float(value) * units[unit] for value, unit in zip(words[::2], words[1::2], strict=True)
    )
    assert read == pytest.approx(duration_ns, rel=0.01)
