"""The last steps of each rank, as percentages above the median of the step."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

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


def test_steps_may_be_far_apart_and_their_numbers_large() -> None:
    """Ranks of fast jobs send the mean of many steps, numbered by the first of them."""
    strip, numbers = StepStrip(), [10**12 + 4096 * turn for turn in range(STEPS + 20)]
    for number in numbers:
        strip.add(ALL, np.full(3, number), np.array([1.0, 1.0, 1.25]), OWNERS)
    assert strip.percentages(ALL) == (numbers[20:], [[0, 0, 25]] * STEPS)


def test_a_step_that_is_sent_again_is_the_same_step() -> None:
    strip = filled(10)
    strip.add(ALL, np.full(3, 8), np.ones(3), OWNERS)
    strip.add(ALL, np.full(3, 10), np.ones(3), OWNERS)
    assert strip.percentages(ALL)[0] == list(range(11))


def test_a_job_that_begins_again_forgets_the_steps_of_its_last_run() -> None:
    strip = filled(1000)
    strip.add(ALL, np.full(3, 7), np.array([2.0, 1.0, 1.0]), OWNERS)
    assert strip.percentages(ALL) == ([7], [[100, 0, 0]])


def test_a_rank_costs_little_more_than_a_kilobyte() -> None:
    strip, many = StepStrip(), np.arange(MAX_MEMBERS)
    for step in range(5):
        strip.add(many, np.full(MAX_MEMBERS, step), np.ones(MAX_MEMBERS), {})
    assert strip.size_bytes <= 1250 * MAX_MEMBERS


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40), st.floats(1e-4, 60)), max_size=60),
    st.integers(1, 8),
)
def test_the_picture_is_that_of_the_numbers_themselves(
    own: list[tuple[int, int, float]], at_once: int
) -> None:
    """However many come at once: each step of a member is its last value, within a percent."""
    own = sorted(own, key=lambda each: each[1])
    strip, wanted = StepStrip(), dict[int, dict[int, float]]()
    for start in range(0, len(own), at_once):
        part = own[start : start + at_once]
        member, step, own_s = (np.array(each) for each in zip(*part, strict=True))
        strip.add(member, step, own_s, {})
    for member, step, own_s in own:
        wanted.setdefault(step, {})[member] = own_s
    steps, values = strip.percentages(np.arange(4))
    assert steps == sorted(wanted)
    for step, row in zip(steps, values, strict=True):
        middle = float(np.median(list(wanted[step].values())))
        for member in range(4):
            expected = wanted[step].get(member)
            found = row[member]
            assert (found is None) == (expected is None)
            if found is not None and expected is not None:
                exact = 100 * (expected / middle - 1)
                assert abs(found - exact) <= 0.6 + 0.002 * abs(100 + exact)
