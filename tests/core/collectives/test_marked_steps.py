"""Own time from steps that a job marks."""

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis.strategies import integers, lists, tuples

from ingero.core.collectives.marked_steps import MAX_PENDING, MarkedSteps

S = 1_000_000_000
BASE = 1_700_000_000 * S


def at(seconds: float) -> int:
    return BASE + int(seconds * S)


def test_a_step_lasts_from_its_name_to_the_next_and_own_is_outside_collectives() -> None:
    steps = MarkedSteps()
    for number in range(4):
        steps.mark(7 + number, at(number))
    steps.enter([(at(0.5), at(0.75)), (at(0.6), at(0.9)), (at(1.8), at(2.1))])
    found = steps.take(at(10))
    assert found.step.tolist() == [7, 8, 9], "step 10 is still open"
    assert np.allclose(found.own_s, [0.6, 0.8, 0.9])
    assert np.allclose(found.span_s, 1.0)
    assert found.end_ns.tolist() == [at(1), at(2), at(3)]
    assert len(steps.take(at(10))) == 0


def test_spans_of_one_step_add_up() -> None:
    steps = MarkedSteps()
    for number in range(3):
        steps.mark(number, at(number), at(number + 0.25))
        steps.mark(number, at(number + 0.5), at(number + 0.75))
    steps.enter([(at(0.7), at(0.95))])
    found = steps.take(at(10))
    assert found.step.tolist() == [0, 1]
    assert np.allclose(found.own_s, [0.45, 0.5])
    assert np.allclose(found.span_s, [1.0, 1.0])


def test_a_step_is_returned_once_its_input_is_complete() -> None:
    steps = MarkedSteps()
    for number in range(3):
        steps.mark(number, at(number))
    assert len(steps.take(at(0.5))) == 0
    steps.enter([(at(0.2), at(0.4))])
    assert np.allclose(steps.take(at(1.5)).own_s, [0.8])
    steps.enter([(at(1.9), at(2.5))])
    steps.mark(3, at(3))
    assert np.allclose(steps.take(at(3)).own_s, [0.9, 0.5]), (
        "a collective that reaches into the next step is kept"
    )


def test_invalid_spans_are_ignored_and_steps_over_the_limit_are_counted() -> None:
    steps = MarkedSteps()
    steps.mark(1, at(5), at(4))
    steps.mark(1, at(5))
    steps.mark(2, at(4))  # the clock was set back
    assert len(steps.take(at(10))) == 0
    for number in range(MAX_PENDING + 10):
        steps.mark(number, at(10 + number), at(10.5 + number))
    steps.enter([(at(1), at(2))] * (MAX_PENDING + 5))
    assert steps.dropped == 15


@settings(max_examples=100, deadline=None)
@given(
    marks=lists(integers(1, 50), min_size=3, max_size=12),
    inside=lists(tuples(integers(0, 300), integers(0, 60))),
)
def test_own_and_inside_make_up_the_step(marks: list[int], inside: list[tuple[int, int]]) -> None:
    moments = np.cumsum([0, *marks]).tolist()
    busy = np.zeros(1000, bool)
    steps = MarkedSteps()
    for number, moment in enumerate(moments):
        steps.mark(number, at(moment))
    for begin, length in inside:
        busy[begin : begin + length] = True
    steps.enter([(at(begin), at(begin + length)) for begin, length in inside if length])
    found = steps.take(at(1000))
    assert found.step.tolist() == list(range(len(moments) - 1))
    expected = [float((~busy[a:b]).sum()) for a, b in pairwise(moments)]
    assert np.allclose(found.own_s, expected)
