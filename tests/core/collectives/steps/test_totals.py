"""Steps that have only their bytes in common, since gradients are fused differently in each."""

import time

import numpy as np
import pytest

from ingero.core.collectives.columns import Ints
from ingero.core.collectives.steps.totals import MOST_CALLS, cut_totals, find_total

UNIT = 7 << 20


def fused(steps: int, tensors: int = 12, share: float = 0.4, seed: int = 1) -> list[list[int]]:
    """Return the sizes of the calls of each step: tensors in turn, fused as it happens."""
    dice = np.random.default_rng(seed)
    found = []
    for _ in range(steps):
        cuts = np.append(np.flatnonzero(dice.random(tensors - 1) < share) + 1, tensors)
        found.append((np.diff(cuts, prepend=0) * UNIT).tolist())
    return found


def joined(steps: list[list[int]]) -> Ints:
    return np.array([size for step in steps for size in step], np.int64)


@pytest.mark.parametrize("share", [0.2, 0.4, 0.6])
def test_the_total_of_a_step_is_found_wherever_records_begin(share: float) -> None:
    volume = joined(fused(200, share=share))
    for cut in (0, 1, 2, 3):
        assert find_total(volume[cut:]) == 12 * UNIT


def test_tensors_of_any_size_have_a_total() -> None:
    dice = np.random.default_rng(4)
    tensors = dice.integers(1 << 20, 1 << 26, 12)
    steps = []
    for _ in range(60):
        cuts = np.append(np.flatnonzero(dice.random(11) < 0.4) + 1, 12)
        steps.append([int(part.sum()) for part in np.split(tensors, cuts[:-1])])
    assert find_total(joined(steps)) == int(tensors.sum())


def test_an_evaluation_now_and_then_hides_nothing() -> None:
    steps = fused(200)
    for at in range(20, 200, 40):
        steps[at] = [*steps[at], 3 * UNIT + 4096]
    volume = joined(steps)
    assert find_total(volume) == 12 * UNIT
    begins, calls = cut_totals(volume, np.zeros(len(volume)), 12 * UNIT)
    assert len(begins) >= 190
    sums = [int(volume[at : at + n].sum()) for at, n in zip(begins, calls, strict=True)]
    assert set(sums) == {12 * UNIT}


@pytest.mark.parametrize("most", [2, 5, 40, 1000])
def test_sizes_by_chance_have_no_total(most: int) -> None:
    for seed in range(10):
        dice = np.random.default_rng([seed, most])
        assert find_total(dice.integers(1, most + 1, 600) * UNIT) == 0


def test_calls_that_repeat_alike_say_nothing() -> None:
    """A kind that repeats is found by itself; any multiple of equal calls would fit as well."""
    assert find_total(np.full(400, UNIT)) == 0
    assert find_total(np.tile([UNIT, 2 * UNIT], 200)) == 0
    assert find_total(np.empty(0, np.int64)) == 0


def periodic(seed: int, calls: int, most: int) -> Ints:
    """Return steps of the same calls, of which a part may add up to a share of the step."""
    dice = np.random.default_rng([seed, calls])
    return np.tile(dice.integers(1, most, calls) * UNIT, 2000 // calls)


@pytest.mark.parametrize(("calls", "most"), [(8, 60), (12, 9), (24, 20), (60, 10)])
def test_parts_of_a_step_that_repeats_are_no_steps(calls: int, most: int) -> None:
    for seed in range(6):
        assert find_total(periodic(seed, calls, most)) == 0


def test_neither_are_those_of_a_job_whose_steps_change_or_are_interrupted() -> None:
    for seed in range(6):
        dice = np.random.default_rng(seed)
        one, other = periodic(seed, 8, 10), periodic(seed, 12, 5)
        assert find_total(np.concatenate((one[:800], other[:900]))) == 0
        at = dice.integers(0, len(other), 30)
        assert find_total(np.insert(other, at, dice.integers(1, 5, 30) * UNIT)) == 0


def test_nor_is_half_of_two_steps_where_calls_change_their_order() -> None:
    for seed in range(6):
        dice = np.random.default_rng([seed, 5])
        steps = periodic(seed, 12, 9).reshape(-1, 12)
        for step in steps:
            at = int(dice.integers(11))
            step[at : at + 2] = step[at : at + 2][::-1].copy()
        assert find_total(steps.ravel()) in (0, int(steps[0].sum()))


@pytest.mark.parametrize("tensors", [2, 4])
def test_few_ways_to_fuse_gradients_have_a_total_when_they_were_seen_for_long(
    tensors: int,
) -> None:
    assert find_total(joined(fused(800, tensors=tensors))) == tensors * UNIT


def test_a_step_begins_after_the_longer_silence_where_several_calls_may_begin_it() -> None:
    """The first tensor is always alone, so steps could end after it as well."""
    steps = [[UNIT, *step] for step in fused(60)]
    volume = joined(steps)
    first = np.cumsum([0, *map(len, steps)])[:-1]
    silence = np.full(len(volume), 0.01)
    silence[first] = 0.05
    begins, calls = cut_totals(volume[1:], silence[1:], 13 * UNIT)
    assert (begins + 1).tolist() == first[1:].tolist()
    assert calls.max() <= MOST_CALLS
    begins, _ = cut_totals(volume, silence, 13 * UNIT)
    assert begins.tolist() == first.tolist()


def test_calls_between_steps_cost_no_more_in_a_long_recording() -> None:
    """After each of them the next step is looked for anew."""
    spent_s = []
    for steps in (4_000, 40_000):
        volume = joined([[*step, 3 * UNIT + 4096] for step in fused(steps)])
        silence = np.zeros(len(volume))
        began_s = time.thread_time()
        assert len(cut_totals(volume, silence, 12 * UNIT)[0]) == steps
        spent_s.append(time.thread_time() - began_s)
    assert spent_s[1] < 20 * spent_s[0], "ten times as many steps"
