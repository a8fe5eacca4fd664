"""The last steps of each rank, as percentages above the median of the step."""

import numpy as np

from ingero.core.live.strip import STEPS, StepStrip

OWNERS = {0: "a", 1: "b", 2: "c"}
ALL = np.array([0, 1, 2])


def filled(steps: int) -> StepStrip:
    strip = StepStrip()
    for step in range(steps):
        own = np.array([1.0, 1.0, 1.25])
        strip.add(ALL, np.full(3, step), own, OWNERS)
    return strip


def test_a_slow_rank_stands_out_in_every_step() -> None:
    assert filled(2).percentages(ALL) == ([0, 1], [[0, 0, 25], [0, 0, 25]])


def test_only_the_last_steps_are_kept_and_asked_for() -> None:
    strip = filled(STEPS + 5)
    assert strip.percentages(ALL)[0] == list(range(5, STEPS + 5))
    assert strip.percentages(ALL, after=STEPS + 2)[0] == [STEPS + 3, STEPS + 4]


def test_a_rank_that_did_not_report_a_step_is_unknown() -> None:
    strip = filled(1)
    strip.add(np.array([0, 2]), np.array([1, 1]), np.array([1.0, 3.0]), OWNERS)
    assert strip.percentages(ALL) == ([0, 1], [[0, 0, 25], [-50, None, 50]])


def test_steps_without_numbers_are_counted() -> None:
    strip = StepStrip()
    for _ in range(2):
        strip.add(ALL, np.full(3, -1), np.ones(3), OWNERS)
    assert strip.percentages(ALL)[0] == [0, 1]


def test_an_index_that_is_given_to_another_rank_starts_over() -> None:
    strip = filled(3)
    strip.add(np.array([2]), np.array([7]), np.array([1.0]), OWNERS | {2: "d"})
    steps, values = strip.percentages(ALL)
    assert steps == [0, 1, 2, 7]
    assert [row[2] for row in values] == [None, None, None, 0]
    assert StepStrip().percentages(ALL) == ([], [])
