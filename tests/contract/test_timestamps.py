"""Times as text."""

from ingero.contract.timestamps import rfc3339, rfc3339_ns


def test_the_same_moment_to_the_second_and_to_the_nanosecond() -> None:
    assert rfc3339(1_794_709_957_298_798_752) == "2026-11-15T02:32:37Z"
    assert rfc3339_ns(1_794_709_957_298_798_752) == "2026-11-15T02:32:37.298798752Z"


def test_times_have_nine_digits() -> None:
    assert rfc3339_ns(1_000_000_000_000_000_001) == "2001-09-09T01:46:40.000000001Z"
