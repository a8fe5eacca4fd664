"""Clock skew: the published vector, medians and uncertainty."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero.core.clocks.skew import (
    MAX_WARNINGS,
    ClockOffset,
    TimeSample,
    estimate_offset,
    skew_warnings,
    unsure_nodes,
)


def test_v5_offset_and_round_trip_of_one_sample() -> None:
    sample = TimeSample(1_000_000_000, 1_002_000_000, 1_051_000_000)
    assert (sample.offset_ns, sample.rtt_ns) == (50_000_000, 2_000_000)


def test_f150_median_of_three_samples() -> None:
    samples = [TimeSample(0, 0, int(ms * 1e6)) for ms in (49.9, 53.0, 50.0)]
    assert estimate_offset(samples).offset_ms == pytest.approx(50.0)


def test_v5_warns_strictly_above_the_limit() -> None:
    here = ClockOffset(0.0, 1.0)
    assert skew_warnings({"a": here, "b": ClockOffset(10.0, 1.0)}, 10.0) == []
    (warning,) = skew_warnings({"a": here, "b": ClockOffset(50.0, 1.0)}, 10.0)
    assert str(warning) == "b is 50 ms ahead of a (round trip 1 ms)"
    (behind,) = skew_warnings({"a": here, "b": ClockOffset(-50.0, 1.0)}, 10.0)
    assert str(behind) == "b is 50 ms behind a (round trip 1 ms)"


def test_a_long_round_trip_makes_it_uncertain() -> None:
    (warning,) = skew_warnings({"a": ClockOffset(0, 1), "b": ClockOffset(50, 60)}, 10.0)
    assert warning.is_uncertain
    assert str(warning).endswith("too long to be sure")


def test_clocks_that_cannot_be_compared_that_closely_are_named() -> None:
    """The error is half a round trip: an offset of 10 ms shows up to a round trip of 20 ms."""
    offsets = {"near": ClockOffset(0.0, 20.0), "far": ClockOffset(0.0, 20.1)}
    assert (skew_warnings(offsets, 10.0), unsure_nodes(offsets, 10.0)) == ([], ["far"])


def test_one_wrong_clock_among_many_is_named_once() -> None:
    offsets = {f"n{i}": ClockOffset(i * 0.01, 1.0) for i in range(50)} | {
        "bad": ClockOffset(5000.0, 1.0)
    }
    assert [warning.other for warning in skew_warnings(offsets, 10.0)] == ["bad"]


@given(
    st.dictionaries(st.text(min_size=1, max_size=3), st.floats(-1e6, 1e6), max_size=20),
    st.floats(-1e6, 1e6),
)
def test_only_differences_count(offsets: dict[str, float], shift: float) -> None:
    """The offset of our own clock does not matter."""
    plain = skew_warnings({name: ClockOffset(ms, 1.0) for name, ms in offsets.items()}, 10.0)
    moved = skew_warnings(
        {name: ClockOffset(ms + shift, 1.0) for name, ms in offsets.items()}, 10.0
    )
    close = [w for w in (*plain, *moved) if abs(abs(w.offset_ms) - 10.0) < 1e-3]
    if not close and len(offsets) <= MAX_WARNINGS:
        assert {(w.node, w.other) for w in plain} == {(w.node, w.other) for w in moved}
