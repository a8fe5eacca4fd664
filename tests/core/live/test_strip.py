"""The last steps of each rank, as percentages above the median of the step."""

import numpy as np

from ingero.core.live.strip import MAX_MEMBERS, STEPS, StepStrip

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


def test_several_steps_of_a_rank_may_come_at_once() -> None:
    strip = StepStrip()
    strip.add(np.array([0, 1, 0, 1, 2]), np.array([4, 4, 5, 5, 5]), np.array([1, 2, 1, 3, 1.0]),
              OWNERS)  # fmt: skip
    assert strip.percentages(np.array([0, 1])) == ([4, 5], [[-33, 33], [-50, 50]])
    assert strip.percentages(np.array([2, 0])) == ([4, 5], [[None, 0], [0, 0]])
    strip.add(np.array([0, 0]), np.array([6, 7]), np.array([1.0, 1.0]), OWNERS)
    assert strip.percentages(np.array([0]))[0] == [4, 5, 6, 7]


def test_percentages_are_of_the_median_and_whole() -> None:
    strip = StepStrip()
    strip.add(ALL, np.zeros(3, int), np.array([1.0, 2.0, 2.996]), OWNERS)
    assert strip.percentages(ALL) == ([0], [[-50, 0, 50]])


def test_ranks_that_were_never_seen_and_ranks_beyond_the_limit_are_not_drawn() -> None:
    strip = StepStrip()
    for index in (0, 63, 64, MAX_MEMBERS - 1, MAX_MEMBERS):
        strip.add(np.array([index]), np.array([1]), np.array([2.0]), {index: "x"})
    asked = np.array([0, 1, 63, 64, MAX_MEMBERS - 1, MAX_MEMBERS, MAX_MEMBERS + 5])
    assert strip.percentages(asked) == ([1], [[0, None, 0, 0, 0, None, None]])
