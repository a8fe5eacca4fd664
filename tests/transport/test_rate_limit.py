"""Rate limits: by caller, in a table of bounded size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero.transport.rate_limit import RateLimit, address_group


def test_f099_burst_plus_one_waits_and_another_caller_does_not() -> None:
    limit = RateLimit(20, 40)
    assert [limit.take("a", 0.0) for _ in range(40)] == [0.0] * 40
    assert limit.take("a", 0.0) == pytest.approx(0.05)
    assert limit.take("b", 0.0) == 0.0
    assert limit.take("a", 0.05) == 0.0
    assert limit.take("a", 0.05) > 0
    assert [limit.take("a", 1000.0) == 0.0 for _ in range(41)] == [True] * 40 + [False]


@given(st.lists(st.floats(0, 2), max_size=200))
def test_no_caller_exceeds_rate_times_time_plus_burst(gaps: list[float]) -> None:
    limit, now, allowed = RateLimit(5, 10), 0.0, 0
    for gap in gaps:
        now += gap
        allowed += limit.take("a", now) == 0.0
    assert allowed <= 5 * now + 10 + 1e-6


def test_callers_are_forgotten_oldest_first() -> None:
    limit = RateLimit(1, 1, max_callers=2)
    for caller in ("a", "b", "c"):
        assert limit.take(caller, 0) == 0
    assert limit.take("c", 0) > 0
    assert limit.take("a", 0) == 0, "forgotten, so it starts anew"


def test_addresses_of_one_network_count_together_only_in_ipv6() -> None:
    assert address_group("10.0.0.1") == "10.0.0.1"
    assert address_group("2001:db8::1") == address_group("2001:db8::ffff:0:1")
    assert address_group("2001:db8:0:1::1") != address_group("2001:db8::1")
    assert address_group(None) == ""
