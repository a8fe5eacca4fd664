"""Durations and sizes: what people write is read, and written back in the same form."""

import pytest
from hypothesis import given
from hypothesis.strategies import integers

from ingero.core.units import format_duration, format_size, parse_duration_s, parse_size_bytes


def test_durations_and_sizes() -> None:
    assert [parse_duration_s(t) for t in ("500ms", "2d", "1h30m", "7")] == [
        0.5,
        172800.0,
        5400.0,
        7.0,
    ]
    assert [parse_size_bytes(t) for t in ("10g", "1.5MiB", "7")] == [10 << 30, 1572864, 7]
    for bad in ("-1s", "nan", "1x", "s", "inf"):
        with pytest.raises(ValueError, match="duration"):
            parse_duration_s(bad)


@given(milliseconds=integers(0, 10**12))
def test_a_written_duration_reads_back(milliseconds: int) -> None:
    seconds = round(milliseconds / 1000, 3)
    assert parse_duration_s(format_duration(seconds)) == pytest.approx(seconds, rel=1e-5)


@given(size_bytes=integers(0, 2**50))
def test_a_written_size_reads_back(size_bytes: int) -> None:
    assert parse_size_bytes(format_size(size_bytes)) == size_bytes


def test_the_largest_unit_that_divides_is_used() -> None:
    assert [format_duration(s) for s in (0, 0.1, 1.5, 60, 5400, 86400 * 90)] == [
        "0s", "100ms", "1.5s", "1m", "90m", "90d",
    ]  # fmt: skip
    assert [format_size(n) for n in (0, 1000, 4 << 20, 10 << 30)] == ["0", "1000", "4m", "10g"]
