"""Numbers in the attributes of events: compiled code spells them as `repr` does."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.compiled import needs_codecs

from ingero.compiled import CODECS, compiled_or_pure

spell = compiled_or_pure(CODECS, "spell", repr)
POWERS = [math.ldexp(1.0, power) for power in range(-1074, 1024)]
TENS = [float(f"{digits}e{power}") for power in range(-320, 308) for digits in (1, 5, 9.5)]


@needs_codecs
@settings(max_examples=1000)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_any_double_is_spelled_as_repr_does(value: float) -> None:
    assert spell(value) == repr(value)


@needs_codecs
@settings(max_examples=1000)
@given(st.integers(-(10**17), 10**17), st.integers(-12, 3))
def test_measured_numbers_are_spelled_as_repr_does(digits: int, power: int) -> None:
    value = float(f"{digits}e{power}")
    assert spell(value) == repr(value)
    assert spell(digits / 3) == repr(digits / 3)


@needs_codecs
@pytest.mark.parametrize("values", [POWERS, TENS], ids=["powers of two", "powers of ten"])
def test_powers_and_their_neighbours_are_spelled_as_repr_does(values: list[float]) -> None:
    for value in values:
        for near in (value, math.nextafter(value, 0.0), -math.nextafter(value, 1.0)):
            assert spell(near) == repr(near)
