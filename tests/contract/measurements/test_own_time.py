"""Own times over OTLP: what is sent is what is read, and what makes no sense is refused."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.otlp_strategies import own_times

from ingero.contract import names
from ingero.contract.measurements.own_time import OwnTime, decode_own_time, encode_own_times
from ingero.contract.otlp.values import NumberPoint, attributes


@given(st.lists(own_times, max_size=4))
def test_own_times_come_back_as_they_were_sent(times: list[OwnTime]) -> None:
    metric = encode_own_times(times)
    assert metric.name == names.STEP_OWN_TIME_MS
    assert repr([decode_own_time(point) for point in metric.numbers]) == repr(times)  # NaN != NaN


@pytest.mark.parametrize(
    "point",
    [
        NumberPoint(),
        NumberPoint(as_double=-1.0),
        NumberPoint(as_double=math.inf),
        NumberPoint(as_double=1.0, attributes=attributes({names.STEP: -1})),
        NumberPoint(as_double=1.0, attributes=attributes({names.STEP: True})),
    ],
)
def test_points_that_make_no_sense_are_refused(point: NumberPoint) -> None:
    with pytest.raises((TypeError, ValueError)):
        decode_own_time(point)


def test_attributes_that_are_unknown_or_odd_are_left_out() -> None:
    odd = {names.STEP_COUNT: "two", names.STEP_IDLE_MS: -1.0, names.SOURCE: "abacus"}
    found = decode_own_time(NumberPoint(as_int=3, attributes=attributes(odd)))
    assert repr(found) == repr(OwnTime(step=None, own_ms=3.0))
