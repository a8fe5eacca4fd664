"""Rules of recorded jobs by hand: spells, charges, lateness, shares of a loss and own time."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.support.blame_tables import NOT_KNOWN, blamed, lateness, spell, steps_of

from ingero.contract.verdict import CauseClass
from ingero.core.blame.recorded.blamed import (
    _shared,
    _usual_charge,
    _without_side_effects,
    total_loss,
)
from ingero.core.blame.recorded.charges import (
    _at_places,
    _carries,
    _harmless,
    _without_overlap,
    charge_of,
    classify_lateness,
)
from ingero.core.blame.recorded.lateness import (
    _found_again,
    _products,
    as_own_time,
    least_of_groups,
    without_overlap,
)
from ingero.core.blame.recorded.loss import Loss
from ingero.core.blame.recorded.replays import cluster_spells


@pytest.mark.parametrize(
    ("one", "other", "share"),
    [
        ((0, 10), (0, 10), 1.0), ((0, 10), (5, 25), 0.5), ((0, 10), (8, 12), 0.5),
        ((0, 10), (10, 20), 0.0), ((0, 10), (30, 40), 0.0), ((5, 5), (0, 10), 0.0),
    ],
)  # fmt: skip
def test_spells_have_a_part_of_the_shorter_one_in_common(
    one: tuple[int, int], other: tuple[int, int], share: float
) -> None:
    assert spell(*one).overlap(spell(*other)) == share
    assert spell(*other).overlap(spell(*one)) == share


def test_ranks_that_are_slow_in_the_same_steps_share_what_was_measured() -> None:
    mine, beside, apart = blamed(0, 10, 0.3), blamed(0, 9, 0.1, 1), blamed(10, 20, 9.0, 2)
    measured = Loss(1.0, 0.8, 0.2, 0.02, is_joint=True)
    found = [mine, beside, apart]
    assert _shared(mine, found, measured).lost_s == pytest.approx(0.15)
    assert _shared(beside, found, measured).lost_s == pytest.approx(0.05)
    assert _shared(apart, found, measured).lost_s == pytest.approx(0.2)
    alone = replace(measured, is_joint=False)
    assert _shared(mine, found, alone) is alone, "calm steps have the other one, too"
    bound = replace(measured, calm_s=None)
    assert _shared(mine, found, bound) is bound, "a bound is nobody's part"
    half = blamed(5, 15, 0.1, 3)
    assert _shared(mine, [mine, half], measured).lost_s == pytest.approx(0.2), "half is not most"


def test_losses_of_spells_are_spread_over_the_recording() -> None:
    found = [blamed(0, 10, 0.3), blamed(10, 40, 0.3, 1)]
    assert total_loss(found, 100) == pytest.approx((0.1 * 10 + 0.1 * 30) / 100)
    assert total_loss([], 0) == 0.0
    assert total_loss([blamed(3, 3, 0.3)], 0) == pytest.approx(0.1)


@pytest.mark.parametrize(("charge_s", "is_kept"), [(0.19, False), (0.2, True)])
def test_a_fifth_of_what_another_costs_in_the_same_steps_is_its_consequence(
    charge_s: float, is_kept: bool
) -> None:
    large = blamed(0, 100, 1.0)
    found = _without_side_effects([large, blamed(0, 100, charge_s, 1)])
    assert [each.worker for each in found] == [0, 1][: 1 + is_kept]
    elsewhere = _without_side_effects([large, blamed(50, 150, charge_s, 1)])
    assert [each.worker for each in elsewhere] == [0, 1], "half of the steps are not most"


def test_the_excess_of_stalls_is_spread_over_their_spell() -> None:
    assert spell(0, 10).mean_excess_s == pytest.approx(0.2)
    assert spell(0, 10, stalls=(1, 4, 7)).mean_excess_s == pytest.approx(0.06)


def test_where_nobody_else_left_a_record_a_late_rank_adds_nothing() -> None:
    late = np.array([[[0.5], [0.5]], [[0.1], [NOT_KNOWN]], [[0.2], [NOT_KNOWN]]])
    found = charge_of(lateness(late), spell(0, 2), {0}, CauseClass.HOST)
    assert found.tolist() == pytest.approx([0.3, 0.0])


def test_spells_of_one_time_are_replayed_together() -> None:
    one, two, three = spell(0, 10, 1, excess=0.1), spell(9, 20, 2, excess=0.3), spell(20, 30, 3)
    assert cluster_spells([three, one, two]) == [[two, one], [three]]
    assert cluster_spells([]) == []


# The first of three ranks is late by 3 and 4 at the two places of a step, the others by 1 and 2.
LATE = [[[3.0, 4.0]], [[1.0, 2.0]], [[0.5, 1.0]]]


@pytest.mark.parametrize(
    ("named", "cause", "carried", "charge"),
    [
        (set(), CauseClass.COMPUTE, 0.0, 2.0 + 2.0),  # places add up
        (set(), CauseClass.HOST, 0.0, 2.0),  # a late host stays late
        (set(), CauseClass.COMPUTE, 0.15, 2.0),  # so does a delay that is carried
        (set(), CauseClass.COMPUTE, 0.149, 4.0),
        ({1}, CauseClass.COMPUTE, 0.0, 2.5 + 3.0),  # beyond the last one that is not named
        ({1, 2}, CauseClass.COMPUTE, 0.0, 3.0 + 4.0),
    ],
)
def test_a_rank_is_charged_beyond_the_last_that_is_not_named(
    named: set[int], cause: CauseClass, carried: float, charge: float
) -> None:
    found = charge_of(lateness(LATE, carried=carried), spell(0, 1), named, cause)
    assert found.tolist() == [pytest.approx(charge)]


def test_steps_outside_of_a_spell_and_unknown_arrivals_are_not_charged() -> None:
    table = [[[9.0], [3.0], [NOT_KNOWN], [2.0]], [[0.0], [1.0], [1.0], [NOT_KNOWN]]]
    found = charge_of(lateness(table), spell(1, 4), set(), CauseClass.COMPUTE)
    assert found.tolist() == [2.0, 0.0, 0.0]
    early = charge_of(lateness([[[-1.0]], [[0.0]]]), spell(0, 1), set(), CauseClass.COMPUTE)
    assert early.tolist() == [0.0]


def test_in_groups_the_least_advance_of_all_groups_is_charged() -> None:
    group = np.array([[0, 0, 1], [0, 0, 2], [3, 3, 1]])
    table = [[[3.0, 5.0, 2.0]], [[0.0, 0.0, 0.0]], [[0.0, 0.0, 0.0]]]
    found = charge_of(lateness(table, group=group), spell(0, 1), set(), CauseClass.COMPUTE)
    assert found.tolist() == [2.0]


def test_a_rank_that_nobody_suspects_shows_what_is_usual() -> None:
    """Without those that are named, the others add 0.5 and 0 at each of two places."""
    usual = _usual_charge(lateness(LATE), spell(0, 1), CauseClass.COMPUTE, {0})
    assert usual == pytest.approx(np.median([0.5 + 1.0, 0.0]))
    assert _usual_charge(lateness(LATE), spell(0, 1), CauseClass.COMPUTE, {0, 1, 2}) == 0.0


def classified(gpu: Sequence[float], host: Sequence[float], peers: float = 0.0) -> Any:
    """Return class and place of a rank with these latenesses at the places of every step."""
    start, enqueue = np.zeros((3, 20, len(gpu))), np.full((3, 20, len(gpu)), peers)
    start[0], enqueue[0] = gpu, host
    return classify_lateness(lateness(start, enqueue_s=enqueue), spell(0, 20), [1, 2])


@pytest.mark.parametrize(
    ("gpu", "host", "peers", "found"),
    [
        ([4.0, 2.0], [4.0, 2.0], 0.0, (CauseClass.HOST, 0, 4.0, 4.0)),
        ([4.0, 2.0], [3.01, 2.0], 0.0, (CauseClass.HOST, 0, 3.01, 4.0)),
        ([4.0, 2.0], [3.0, 2.0], 0.0, (CauseClass.COMPUTE, 0, 3.0, 4.0)),  # a quarter is left
        ([4.0, 2.0], [4.0, 1.0], 0.0, (CauseClass.COMPUTE, 1, 1.0, 2.0)),  # elsewhere
        ([4.0, 2.0], [4.0, 2.0], 4.0, (CauseClass.COMPUTE, 0, 4.0, 4.0)),  # as late, and no harm
        ([4.0, 2.0], [4.0, 2.0], 3.9, (CauseClass.COMPUTE, 1, 2.0, 2.0)),
    ],
)
def test_a_gpu_that_is_later_than_its_host_explains_is_slow(
    gpu: list[float], host: list[float], peers: float, found: Any
) -> None:
    assert classified(gpu, host, peers) == found


@pytest.mark.parametrize(
    ("idle", "gpu", "explained", "found"),
    [
        ([1.0, 1.0], [4.0, 2.0], [4.0, 1.0], [4.0, 4.0]),  # who waited comes late to the next
        ([1.0, 1.0], [3.0, 9.0], [4.0, 5.0], [4.0, 5.0]),  # but not by more than was late
        ([0.0, 1.0], [4.0, 2.0], [4.0, 1.0], [0.0, 1.0]),  # the GPU still had work to do
        ([1.0, 0.0], [4.0, 2.0], [4.0, 1.0], [4.0, 4.0]),
        ([1.0, 1.0], [NOT_KNOWN, 2.0], [4.0, 1.0], [4.0, 4.0]),
    ],
)
def test_what_a_late_host_explains_without_overlap(
    idle: list[float], gpu: list[float], explained: list[float], found: list[float]
) -> None:
    idle_s = np.array([idle, idle, idle])
    carries = np.tri(2, k=-1, dtype=bool)
    assert _without_overlap(idle_s, np.array(gpu), np.array(explained), carries).tolist() == found


@pytest.mark.parametrize(
    ("comm", "pairs", "earlier"),
    [
        ([7, 7, 9], [0, 0, 0], [[], [], [0, 1]]),  # of one group, they left together
        ([7, 9, 7], [0, 0, 0], [[], [0], [1]]),
        ([7, 7, -1], [0, 0, 0], [[], [0], [0, 1]]),  # one group: it may run beside compute
        ([7, 7, 9], [0, 1, 0], [[], [0], [0, 1]]),  # a pair has another partner
    ],
)
def test_where_lateness_is_brought_along(
    comm: list[int], pairs: list[int], earlier: list[list[int]]
) -> None:
    tables = lateness(np.zeros((1, 1, 3)), comm=np.array([comm]), is_pair=np.array([pairs]) > 0)
    assert [np.flatnonzero(row).tolist() for row in _carries(tables, 0, False)] == earlier


def test_steps_in_which_a_rank_stalls_tell_why() -> None:
    start, enqueue = np.zeros((3, 20, 1)), np.zeros((3, 20, 1))
    start[0, 3:], enqueue[0, [8, 13]] = 2.0, 2.0
    places = lateness(start, enqueue_s=enqueue)
    stalls = spell(5, 20, stalls=(8, 13))
    assert classify_lateness(places, stalls, [1, 2]) == (CauseClass.HOST, 0, 2.0, 2.0)
    always = classify_lateness(places, spell(5, 20), [1, 2])
    assert always == (CauseClass.COMPUTE, 0, 0.0, 2.0)
    nothing = np.full((3, 20, 1), NOT_KNOWN)
    unknown = lateness(nothing, enqueue_s=nothing)
    assert classify_lateness(unknown, spell(5, 20), [1, 2]) is None


def test_only_steps_with_half_of_the_largest_lateness_are_looked_at() -> None:
    start, enqueue = np.zeros((2, 20, 1)), np.zeros((2, 20, 1))
    start[0, :10], start[0, 10:] = 2.0, 0.9
    enqueue[0, 10:] = 2.0
    places = lateness(start, enqueue_s=enqueue)
    assert classify_lateness(places, spell(0, 20), [1]) == (CauseClass.COMPUTE, 0, 0.0, 2.0)


def test_the_usual_wait_of_a_pair_is_that_of_its_role() -> None:
    table = np.array([[[5.0, 5.0]], [[2.0, 2.0]], [[4.0, 4.0]]])
    is_pair = np.array([[True, False]] * 3)
    places = lateness(table, is_pair=is_pair)
    assert _at_places(places, table, 0, [1, 2]).tolist() == [2.0, 5.0]
    assert _at_places(places, table, 0, []).tolist() == [5.0, 5.0]
    unknown = table.copy()
    unknown[1:] = NOT_KNOWN
    assert _at_places(places, unknown, 0, [1, 2]).tolist() == [5.0, 5.0]


def test_what_hosts_of_peers_are_late_by_without_harm() -> None:
    enqueue = np.linspace(0.0, 1.0, 11).reshape(1, 11, 1)
    assert _harmless(np.zeros((1, 11, 1)), enqueue).tolist() == [pytest.approx(0.9)]
    assert _harmless(np.full((1, 11, 1), 0.5), enqueue).tolist() == [pytest.approx(0.4)]
    assert _harmless(np.full((1, 11, 1), -5.0), enqueue).tolist() == [pytest.approx(0.9)]
    assert _harmless(np.zeros((0, 11, 2)), np.zeros((0, 11, 2))).tolist() == [0.0, 0.0]


def test_lateness_of_groups_is_the_least_of_their_largest() -> None:
    late = np.array([[[1.0, 5.0, 3.0, 9.0], [-1.0, -2.0, 4.0, 9.0], [NOT_KNOWN] * 4]])
    group = np.array([[0, 0, 1, -1]])
    assert least_of_groups(late, group).tolist() == [[3.0, 0.0, 0.0]]
    assert least_of_groups(late, np.array([[-1, -1, -1, -1]])).tolist() == [[0.0, 0.0, 0.0]]


def test_products_of_places_so_far_apart() -> None:
    table = np.array([[1.0, 2.0, 3.0], [1.0, NOT_KNOWN, 2.0]])
    assert _products(table, range(1)) == (pytest.approx((1 + 4 + 9 + 1 + 4) / 5), 5)
    assert _products(table, range(1, 2)) == (pytest.approx((2 + 6) / 2), 2)
    assert _products(table, range(1, 3)) == (pytest.approx((2 + 6 + 3 + 2) / 4), 4)
    assert _products(table, range(3, 3)) == (0.0, 0)


@pytest.mark.parametrize(
    ("rows", "share"),
    [
        ([[1.0, 1.0], [-1.0, -1.0]], 1.0),  # all is found again
        ([[1.0, -1.0], [-1.0, 1.0]], 0.0),
        ([[1.0, 1.0], [1.0, -1.0]], 0.0),
        ([[1.0, 1.0], [-1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]], 0.5),
    ],
)
def test_the_share_of_scatter_that_is_found_again(rows: list[list[float]], share: float) -> None:
    assert _found_again([np.array(rows * 64)]) == pytest.approx(share)
    assert _found_again([np.array(rows * 64)[:63]]) == 0.0, "63 pairs are too few"


def test_what_places_far_apart_have_in_common_is_taken_off() -> None:
    """A rank that is slower in a whole step is late at all of its places alike."""
    rng = np.random.default_rng(1)
    whole = rng.normal(size=(400, 1)) + 0.5 * rng.normal(size=(400, 8))
    assert _found_again([whole]) < 0.2
    assert _found_again([whole[:, :4]]) > 0.7, "four places are not far apart"
    assert _found_again([]) == 0.0
    assert _found_again([np.full((80, 2), NOT_KNOWN)]) == 0.0
    assert _found_again([np.zeros((80, 2))]) == 0.0


def test_the_rest_is_compared_with_the_rest() -> None:
    """A third of the scatter is common to a step; half of the rest is found at the next place."""
    rng = np.random.default_rng(2)
    each = rng.normal(size=(4000, 10))
    moving = each[:, 1:] + each[:, :-1]
    assert _found_again([moving]) == pytest.approx(0.5, abs=0.05)
    assert _found_again([moving + rng.normal(size=(4000, 1))]) == pytest.approx(0.5, abs=0.05)


def test_hiccups_weigh_no_more_than_three_times_the_usual() -> None:
    table = np.resize([[1.0, 1.0], [-1.0, -1.0], [1.0, -1.0], [-1.0, 1.0]], (400, 2)).copy()
    assert _found_again([table]) == pytest.approx(0.0)
    table[:4] = [[100.0, 100.0]]
    assert 0.0 < _found_again([table]) < 0.1


@pytest.mark.parametrize(
    ("carried", "has_groups", "is_open"),
    [(0.15, False, True), (0.149, False, False), (0.399, False, True), (0.4, False, False),
     (0.2, True, False)],
)  # fmt: skip
def test_a_little_overlap_may_be_none(carried: float, has_groups: bool, is_open: bool) -> None:
    group = np.zeros((3, 2), np.intp) if has_groups else None
    found = without_overlap(lateness(LATE, carried=carried, group=group))
    assert (found is not None) == is_open
    if found is not None:
        assert found.new_s.tolist() == [[7.0], [3.0], [1.5]]
        assert found.carried == 0.0


@pytest.mark.parametrize("carried", [0.2, 0.399, 0.4])
def test_groups_with_a_little_overlap_may_have_none(carried: float) -> None:
    """Both places are of one group: their delays add up, if little is carried there."""
    group, at = np.zeros((3, 2), np.intp), np.full((3, 2), carried)
    late = replace(lateness(LATE, carried=carried, group=group), carried_at=at, adds=at < 0.15)
    found = without_overlap(late)
    assert (found is not None) == (carried < 0.4)
    if found is not None:
        assert found.new_s.tolist() == [[7.0], [3.0], [1.5]]
        assert (found.carried, found.overlaps_in_groups) == (0.0, False)
    assert late.overlaps_in_groups


def test_own_time_of_late_ranks_is_the_usual_step_and_at_least_a_tenth() -> None:
    late = replace(lateness(LATE), new_s=np.array([[3.0, -9.0], [0.0, 1.0]]))
    workers = steps_of([[1.0, 1.0], [1.0, NOT_KNOWN]], [2.0, 2.0])
    found = as_own_time(late, workers).own_s
    assert found[0].tolist() == [5.0, pytest.approx(0.2)]
    assert found[1, 0] == 2.0
    assert np.isnan(found[1, 1])
