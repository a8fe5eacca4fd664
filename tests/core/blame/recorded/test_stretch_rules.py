"""Rules of recorded jobs by hand: runs, stretches, queues, own time and stalls."""

import math
from typing import Any

import numpy as np
import pytest
from tests.support.blame_tables import lateness, spell, steps_of

from ingero.core.blame.record_steps import _own_by_waiting, _sums, _typical
from ingero.core.blame.recorded.gpu_bound import find_gpu_bound
from ingero.core.blame.recorded.link_spells import _longest_run, links_loss
from ingero.core.blame.recorded.spells import (
    _around_stalls,
    _core,
    _heaviest,
    _is_wander,
    _without_hiccups,
)
from ingero.core.blame.recorded.uneven import LastArrivers
from ingero.core.blame.recorded_job import mean_period, structural_loss
from ingero.core.blame.suspects import (
    _alike,
    _cohort_reference,
    _limit,
    _median_of_others,
    _period,
    _split_cohorts,
    _spread,
    _stalling,
    _stalls,
)
from ingero.core.blame.transfer import SlowLink

NOT_KNOWN = math.nan


@pytest.mark.parametrize(
    ("slow", "run"),
    [
        ([True, True, False, True], (0, 1)), ([False, True, False, True, True], (3, 4)),
        ([True, False, True], (0, 0)), ([False, False], (0, -1)), ([True] * 3, (0, 2)),
    ],
)  # fmt: skip
def test_the_longest_run_of_slow_blocks(slow: list[bool], run: tuple[int, int]) -> None:
    assert _longest_run(slow) == run


def test_slow_links_with_a_common_rank_add_up() -> None:
    def link(loss_s: float, *members: int) -> SlowLink:
        return SlowLink(1, "AllReduce", 8, 2.0, 0.1, loss_s, members, ())

    assert links_loss(()) == 0.0
    assert links_loss((link(0.3, 1, 2), link(0.2, 2, 3))) == pytest.approx(0.5)
    assert links_loss((link(0.3, 1, 2), link(0.2, 3, 4))) == 0.3


def test_the_stretch_that_weighs_most() -> None:
    assert _heaviest(np.array([0.0, 2.0, 2.0, -9.0, 1.0]), 0.5) == (1, 3)
    assert _heaviest(np.array([0.0, 2.0, -0.1, 2.0, -9.0]), 0.5) == (1, 4)
    assert _heaviest(np.array([NOT_KNOWN, 2.0, NOT_KNOWN, 2.0, -1.0]), 0.5) == (1, 4)
    assert _heaviest(np.array([0.0, 0.0]), 0.5) == (0, 0)
    assert _heaviest(np.full(3, NOT_KNOWN), 0.5) == (0, 0)
    assert _heaviest(np.array([1.0, 1.0]), 0.5) == (0, 2)


def test_the_core_of_a_stretch_is_half_as_slow_as_all_of_it() -> None:
    values = np.array([0.0, 0.1, 1.0, 1.0, 1.0, 1.0, 0.1, 0.0])
    assert _core(values, 1, 7) == (2, 6)
    assert _core(np.array([0.0, 0.1, 0.1, 0.1, 1.0, 0.0]), 1, 5) == (1, 5), "that would be less"


def test_hiccups_are_cut_at_three_sigmas_of_their_worker() -> None:
    found = _without_hiccups(np.array([[0.0, 1.0, 2.0, 3.0, 99.0, -99.0, NOT_KNOWN]]))
    far = 3 * 1.4826 * 1.5
    assert found[0, :4].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert found[0, 4:6].tolist() == [pytest.approx(1.5 + far), pytest.approx(1.5 - far)]
    assert np.isnan(found[0, 6])


def test_a_spell_of_regular_stalls_reaches_from_the_first_to_the_last() -> None:
    stalls = {"stalls": (30, 40, 50), "stall_period": 10}
    found = _around_stalls(spell(0, 100, **stalls))
    assert (found.begin, found.end) == (30, 60)
    inside = _around_stalls(spell(35, 55, **stalls))
    assert (inside.begin, inside.end) == (35, 55)
    nearly = _around_stalls(spell(28, 60, **stalls))
    assert (nearly.begin, nearly.end) == (28, 60), "nearly all of it"
    irregular = spell(0, 100, stalls=(30, 40, 50))
    assert _around_stalls(irregular) is irregular


@pytest.mark.parametrize(("missed", "begin"), [(80, 100), (81, 200)])
def test_stalls_that_were_not_seen_in_more_than_eight_periods_are_not_one_spell(
    missed: int, begin: int
) -> None:
    later = range(120 + missed, 120 + missed + 60, 10)
    given = spell(0, 400, stalls=(100, 110, 120, *later), stall_period=10)
    found = _around_stalls(given)
    assert (found.begin, found.end) == (begin + (missed > 80), later[-1] + 10)


@pytest.mark.parametrize(
    ("launched", "agreement", "by_hosts", "is_uneven"),
    [
        (0.49, 0.3, 0.69, True), (0.5, 0.3, 0.0, False), (0.0, 0.29, 0.0, False),
        (0.0, 0.9, 0.7, False), (0.0, NOT_KNOWN, 0.0, True),
    ],
)  # fmt: skip
def test_work_is_uneven_unless_hosts_come_late_or_halves_differ(
    launched: float, agreement: float, by_hosts: float, is_uneven: bool
) -> None:
    assert LastArrivers(0.1, launched, agreement, by_hosts).is_uneven == is_uneven


def queued(behind_s: float, late_s: float = 1.0, added_s: float = 1.0, ranks: int = 5) -> Any:
    """Return a job of steps of 10 s in which the GPU of the third rank is behind its host."""
    start = np.zeros((ranks, 120, 1))
    enqueue = np.zeros((ranks, 120, 1))
    advance = np.full((ranks, 120, 1), 0.5)
    start[2], enqueue[2], advance[2] = late_s, late_s - behind_s, added_s
    table = lateness(start, enqueue_s=enqueue, advance_s=advance)
    return find_gpu_bound(table, np.full(120, 10.0))


@pytest.mark.parametrize(
    ("given", "is_found"),
    [
        ({"behind_s": 0.031}, True), ({"behind_s": 0.029}, False),  # six times 0.05 % of a step
        ({"behind_s": 1.0, "late_s": 0.149}, False), ({"behind_s": 1.0, "late_s": 0.151}, True),
        ({"behind_s": 1.0, "added_s": 0.99}, False), ({"behind_s": 1.0, "ranks": 3}, False),
        ({"behind_s": 1.0, "ranks": 4}, True),
    ],
)  # fmt: skip
def test_a_gpu_that_alone_is_behind(given: dict[str, Any], is_found: bool) -> None:
    found = queued(**given)
    assert (found is not None) == is_found
    if found is not None:
        late_s = given.get("late_s", 1.0)
        assert (found.worker, found.begin, found.end) == (2, 0, 120)
        assert (found.suspect.excess_s, found.suspect.excess) == (late_s, late_s / 10)
        assert (found.suspect.error, found.suspect.peers) == (0.0005, given.get("ranks", 5) - 1)
        assert (found.suspect.named_share, found.suspect.confidence) == (1.0, 0.7)


def test_the_mean_step_leaves_out_the_warm_up_of_ten_or_more() -> None:
    assert mean_period(steps_of([[1.0] * 9], [9.0] + [1.0] * 8)) == pytest.approx(17 / 9)
    assert mean_period(steps_of([[1.0] * 10], [9.0, 9.0] + [1.0] * 7 + [NOT_KNOWN])) == 1.0


def test_the_slowest_role_is_compared_with_the_mean_of_all() -> None:
    workers = steps_of([[8.0], [4.0], [6.0], [99.0]], [10.0], [0, 1, 2, 2])
    assert structural_loss(workers, {3}) == pytest.approx(8.0 - 6.0)
    assert structural_loss(workers, {0, 2, 3}) == 0.0, "one role is left"
    waits = steps_of([[6.9], [4.0]], [10.0], [0, 1])
    assert structural_loss(waits, set()) == 0.0, "the slowest role waits for long itself"
    works = steps_of([[7.0], [4.0]], [10.0], [0, 1])
    assert structural_loss(works, set()) == pytest.approx(1.5)
    unknown = steps_of([[8.0], [NOT_KNOWN]], [10.0], [0, 1])
    assert structural_loss(unknown, set()) == 0.0


def test_own_time_from_durations_is_the_rest_of_the_step() -> None:
    """Who waits longest, for 6 of 10 s, has the typical own time; others have more."""
    inside = np.array([[6.0, 6.0], [4.0, 5.0]])
    found = _own_by_waiting(inside, np.full(2, 10.0), np.ones((2, 2), bool))
    assert found.tolist() == [[4.0, 4.0], [6.0, 5.0]]
    short = _own_by_waiting(inside, np.full(2, 6.0), np.ones((2, 2), bool))
    assert short[0] == pytest.approx([0.6, 0.6]), "a tenth of the step at least"
    none = _own_by_waiting(inside, np.full(2, 10.0), np.zeros((2, 2), bool))
    assert np.isnan(none).all()


def test_sums_and_typical_values_of_columns() -> None:
    found = _sums(np.array([1.0, 2.0, 4.0, NOT_KNOWN]), np.array([0, 0, -1, 2]), 4)
    assert found[:2].tolist() == [3.0, 0.0]
    assert np.isnan(found[2])
    assert found[3] == 0.0
    assert _typical(np.array([1.0] * 98 + [99.0] * 2)) == pytest.approx(1.0, abs=0.05)
    assert _typical(np.array([NOT_KNOWN])) == 0.0


def stalls_of(*counts: int, steps: int = 40, height: float = 1.0) -> list[bool]:
    """Return who stalls too much, where each worker stalls so often, at different steps."""
    stalls = np.zeros((len(counts), steps), bool)
    at = 0
    for worker, count in enumerate(counts):
        stalls[worker, at : at + count] = True
        at += count
    return _stalling(stalls, np.where(stalls, height, 0.0), np.zeros(len(counts), bool)).tolist()


@pytest.mark.parametrize(
    ("counts", "height", "found"),
    [
        ((3, 0, 0, 0), 0.1, True), ((2, 0, 0, 0), 9.0, False),
        ((6, 1, 1, 1), 0.1, True), ((5, 1, 1, 1), 0.01, False),  # three times as many and three
        ((9, 2, 2, 2), 0.01, True), ((8, 2, 2, 2), 0.01, False),
    ],
)  # fmt: skip
def test_a_worker_stalls_when_it_does_so_far_more_often(
    counts: tuple[int, ...], height: float, found: bool
) -> None:
    assert stalls_of(*counts, height=height) == [found, False, False, False]


def test_long_stalls_count_where_short_ones_are_as_frequent() -> None:
    """Four stalls each; the first must lose six times as much as the others, and 0.24 more."""
    stalls = np.zeros((3, 40), bool)
    stalls[0, :4] = stalls[1, 4:8] = stalls[2, 8:12] = True
    height = np.where(stalls, 1.0, 0.0)
    nobody = np.zeros(3, bool)
    assert not _stalling(stalls, height, nobody).any()
    for longer, found in ((6.1, True), (6.0, False)):
        height[0] = np.where(stalls[0], longer, 0.0)
        assert _stalling(stalls, height, nobody).tolist() == [found, False, False]
    height[0] = np.where(stalls[0], 1.0, 0.0)
    height[0, 0] = 1e6
    assert not _stalling(stalls, height, nobody).any(), "one long pause is no habit"


def test_steps_in_which_four_of_ten_stall_are_nobodys() -> None:
    stalls = np.zeros((10, 20), bool)
    stalls[:4, :5] = True
    found = _stalling(stalls, stalls * 1.0, np.zeros(10, bool))
    assert not found.any()
    stalls[3] = False
    found = _stalling(stalls, stalls * 1.0, np.zeros(10, bool))
    assert found.tolist() == [True] * 3 + [False] * 7


def test_steps_in_which_two_of_four_stall_are_nobodys() -> None:
    stalls = np.zeros((4, 20), bool)
    stalls[:2, :5] = True
    nobody = np.zeros(4, bool)
    assert not _stalling(stalls, stalls * 1.0, nobody).any()
    stalls[1] = False
    assert _stalling(stalls, stalls * 1.0, nobody).tolist() == [True, False, False, False]
    stalls[1, :5] = True
    for share, is_alone in ((0.34, False), (0.32, True)):  # a third: a peer that waits for it
        height = stalls * np.array([[1.0], [share], [0.0], [0.0]])
        assert _stalling(stalls, height, nobody).tolist() == [is_alone, False, False, False]


def test_a_stall_is_far_above_the_level_of_its_worker_and_slower_than_peers() -> None:
    residual = np.zeros((2, 10))
    residual[0, 3], residual[0, 4] = 0.0801, 0.0799
    residual[1] = -0.2
    residual[1, 5], residual[1, 6] = 0.014, 0.016
    found = _stalls(residual, np.array([0.0, -0.2]), residual)
    assert [np.flatnonzero(row).tolist() for row in found] == [[3], [6]]
    usual = np.zeros((2, 10))
    assert not _stalls(residual, np.array([0.0, -0.2]), usual).any(), "only peers seem faster"


@pytest.mark.parametrize(
    ("height", "pieces", "is_wander"),
    [
        pytest.param(0.117, 6, True, id="less than four sigmas of the pieces"),
        pytest.param(0.119, 6, False, id="more"),
        pytest.param(0.0, 5, True, id="enough pieces to tell"),
        pytest.param(0.0, 4, False, id="too few pieces to tell"),
    ],
)
def test_a_stretch_is_wander_where_other_pieces_differ_as_much(
    height: float, pieces: int, is_wander: bool
) -> None:
    """Pieces at ±0.02: four times 1.4826 · 0.02 is 0.1186."""
    outside = np.repeat(np.resize([0.02, -0.02], pieces), 20)
    excess = np.concatenate((outside[:40], np.full(20, height), outside[40:]))
    excess[::7] = NOT_KNOWN
    assert _is_wander(excess, 40, 60) == is_wander


def test_stalls_half_as_long_as_the_usual_ones_are_hiccups() -> None:
    residual = np.log1p([1.0, 1.0, 1.0, 0.5, 0.49, 0.0])
    stalls = np.array([True] * 5 + [False])
    assert _alike(residual, stalls).tolist() == [0, 1, 2, 3]
    few = np.log1p([1.0, 1.0, 0.1, 0.1])
    assert _alike(few, np.ones(4, bool)).tolist() == [0, 1, 2, 3], "two are too few to tell"


def test_limits_and_spreads_of_few_workers() -> None:
    assert (_limit(0.01, 6), _limit(0.01, 5)) == (0.04, 0.05)
    assert _limit(0.001, 8) == 0.015
    assert _spread(np.array([0.0, 9.0])) == 0.003
    assert _spread(np.array([0.0, 0.1, 0.2])) == pytest.approx(1.4826 * 0.1)
    # A slow group: the faster half shows the spread.
    assert _spread(np.array([0.0, 0.0, 0.0, 1.0, 1.0])) == pytest.approx(0.003)
    assert _spread(np.array([0.0, 0.01, 0.02, 1.0, 1.0, 1.0])) == pytest.approx(1.4826 * 0.01)
    # It is slow from three times that spread on: here 3.5 times, and 2.75 times.
    assert _spread(np.array([0, 1, 2, 7, 8, 9]) / 100) == pytest.approx(1.4826 * 0.01)
    assert _spread(np.array([0, 1, 2, 5.5, 6.5, 7.5]) / 100) == pytest.approx(1.4826 * 0.0275)
    assert _spread(np.array([NOT_KNOWN, 0.0, 0.1, 0.2])) == pytest.approx(1.4826 * 0.1)


def test_the_median_of_the_others_leaves_one_out() -> None:
    assert _median_of_others(np.array([5, 1, 2, 9])).tolist() == [2.0, 5.0, 5.0, 2.0]
    assert _median_of_others(np.array([5])).tolist() == [0.0]


@pytest.mark.parametrize(
    ("slow", "of", "split"), [(2, 4, (0, 1)), (2, 5, ()), (1, 3, ()), (2, 3, (0, 1)), (2, 2, ())]
)
def test_more_than_four_tenths_of_a_role_are_a_group(
    slow: int, of: int, split: tuple[int, ...]
) -> None:
    over = np.arange(of) < slow
    assert _split_cohorts(over, np.where(over, 0.3, 0.0), np.zeros(of, np.intp)) == split


def test_only_a_similar_excess_makes_a_group() -> None:
    over, cohort = np.array([True, True, False]), np.zeros(3, np.intp)
    assert _split_cohorts(over, np.array([0.3, 0.11, 0.0]), cohort) == (0, 1)
    assert _split_cohorts(over, np.array([0.3, 0.09, 0.0]), cohort) == ()


def test_references_are_lower_or_middle_medians_of_usable_members() -> None:
    logs = np.array([[1.0, NOT_KNOWN], [2.0, 5.0], [3.0, 6.0], [4.0, 9.0]])
    cohort, everyone = np.zeros(4, np.intp), np.ones(4, bool)
    low = _cohort_reference(logs, cohort, everyone, low=True)
    middle = _cohort_reference(logs, cohort, everyone, low=False)
    assert (low[0].tolist(), middle[0].tolist()) == ([2.0, 6.0], [2.5, 6.0])
    some = _cohort_reference(logs, cohort, np.array([False, True, True, False]), low=False)
    assert some[3].tolist() == [2.5, 5.5]
    nobody = _cohort_reference(logs, cohort, np.zeros(4, bool), low=False)
    assert nobody[0].tolist() == [2.5, 6.0]
    roles = _cohort_reference(logs, np.array([0, 0, 1, 1]), everyone, low=False)
    assert roles[:, 0].tolist() == [1.5, 1.5, 3.5, 3.5]


def test_the_period_of_stalls_whose_steps_are_sampled() -> None:
    assert _period([0, 10, 20, 30], range(40)) == 10
    assert _period([0, 7, 11, 30, 37], range(40)) is None
