"""What a late rank is charged with, and whether its host or its GPU is the reason."""

from dataclasses import replace

import numpy as np
import pytest
from tests.support.lateness_tables import Floats, groups, lateness, no_pairs, spell

from ingero.contract.verdict import CauseClass
from ingero.core.blame.recorded.charges import charge_of, classify_lateness
from ingero.core.blame.recorded.lateness import PlaceTables
from ingero.core.blame.recorded.spells import Spell

MS = 1e-3


def test_a_rank_is_charged_with_what_it_adds_beyond_the_last_of_the_others() -> None:
    """5 and 3 ms late at two places; another one is 1 ms late at the first."""
    start = np.zeros((4, 10, 2))
    start[1] = [5 * MS, 3 * MS]
    start[2, :, 0] = 1 * MS
    late = lateness(start)
    assert charge_of(late, spell(), {1}, CauseClass.COMPUTE) == pytest.approx(np.full(10, 7 * MS))
    assert charge_of(late, spell(), {1, 2}, CauseClass.COMPUTE) == pytest.approx(
        np.full(10, 8 * MS)
    )
    assert charge_of(late, spell(2, 5), {1}, CauseClass.COMPUTE).shape == (3,)
    assert charge_of(late, spell(), {1}, CauseClass.HOST) == pytest.approx(np.full(10, 4 * MS))
    for carried, expected in ((0.149, 7 * MS), (0.15, 4 * MS)):
        part = replace(late, carried=carried)
        assert charge_of(part, spell(), {1}, CauseClass.COMPUTE) == pytest.approx(
            np.full(10, expected)
        )


def test_who_is_not_the_last_is_charged_with_nothing() -> None:
    start = np.zeros((4, 10, 1))
    start[1], start[2] = 5 * MS, 6 * MS
    assert charge_of(lateness(start), spell(), {1}, CauseClass.COMPUTE).tolist() == [0.0] * 10


def test_unknown_arrivals_are_charged_with_nothing() -> None:
    start = np.zeros((4, 10, 1))
    start[1] = 5 * MS
    start[1, 3] = np.nan
    start[[0, 2, 3], 6] = np.nan  # nobody else is known
    charge = charge_of(lateness(start), spell(), {1}, CauseClass.COMPUTE)
    assert charge[3] == 0.0
    assert charge[[0, 1, 2]] == pytest.approx(5 * MS)
    everyone = charge_of(lateness(start), spell(), {0, 1, 2, 3}, CauseClass.COMPUTE)
    assert everyone[0] == pytest.approx(5 * MS)


def why(
    start: Floats, enqueue: Floats, when: Spell | None = None
) -> tuple[CauseClass, int, float, float]:
    others = [rank for rank in range(len(start)) if rank != 1]
    found = classify_lateness(lateness(start, enqueue), when or spell(), others)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("host_ms", "cause"),
    [
        (6, CauseClass.HOST),
        (4.6, CauseClass.HOST),
        (4.4, CauseClass.COMPUTE),  # a quarter of 6 ms is left unexplained
        (0, CauseClass.COMPUTE),
    ],
)
def test_a_gpu_that_is_later_than_its_host_made_it_is_slow(
    host_ms: float, cause: CauseClass
) -> None:
    start, enqueue = np.zeros((4, 10, 2)), np.zeros((4, 10, 2))
    start[1], enqueue[1] = [1 * MS, 6 * MS], [1 * MS, host_ms * MS]
    found = why(start, enqueue)
    assert found == (cause, 1, pytest.approx(host_ms * MS), pytest.approx(6 * MS))


def test_a_host_that_waits_for_its_slow_gpu_is_late_only_later_in_the_step() -> None:
    """At the end both are equally late; in the middle the GPU was ahead in being late."""
    start, enqueue = np.zeros((4, 10, 4)), np.zeros((4, 10, 4))
    start[1], enqueue[1] = [2 * MS, 4 * MS, 6 * MS, 6 * MS], [0, 2 * MS, 4 * MS, 6 * MS]
    assert why(start, enqueue)[0] is CauseClass.COMPUTE
    enqueue[1] = [2 * MS, 4 * MS, 6 * MS, 6 * MS]
    assert why(start, enqueue)[0] is CauseClass.HOST


def test_lateness_of_hosts_that_harms_nobody_proves_nothing() -> None:
    """Hosts of the others are as late without consequence, because their GPUs have work queued."""
    start, enqueue = np.zeros((5, 10, 1)), np.zeros((5, 10, 1))
    start[1], enqueue[1] = 6 * MS, 6 * MS
    enqueue[[0, 2, 3, 4]] = 7 * MS
    assert why(start, enqueue)[0] is CauseClass.COMPUTE
    start[[0, 2, 3, 4]] = 7 * MS  # their GPUs are late as well: it has consequences
    assert why(start, enqueue)[0] is CauseClass.HOST


def test_where_stages_follow_each_other_the_usual_waiting_of_a_role_is_taken_off() -> None:
    """Ranks 0 and 1 have one role: their receivers always wait for 5 ms."""
    start, enqueue = np.zeros((4, 10, 1)), np.zeros((4, 10, 1))
    start[:2], enqueue[:2] = 5 * MS, 5 * MS
    start[1] += 2 * MS  # beyond its role, and not because of its host
    tables = replace(lateness(start, enqueue), is_pair=np.ones((4, 1), bool))
    found = classify_lateness(tables, spell(), [0])
    assert found is not None and found[0] is CauseClass.COMPUTE
    assert found[3] == pytest.approx(2 * MS)
    alone = classify_lateness(replace(tables, is_pair=np.zeros((4, 1), bool)), spell(), [0])
    assert alone is not None and alone[3] == pytest.approx(7 * MS)


def test_without_arrivals_nothing_is_said() -> None:
    unknown = np.full((4, 10, 1), np.nan)
    assert classify_lateness(lateness(unknown, unknown), spell(), [0, 2, 3]) is None


def test_only_steps_in_which_the_rank_is_late_tell_why() -> None:
    """It stalls in a quarter of the steps; its host is late in those."""
    start, enqueue = np.zeros((4, 20, 1)), np.zeros((4, 20, 1))
    start[1, ::4], enqueue[1, ::4] = 8 * MS, 7 * MS
    found = why(start, enqueue, spell(0, 20))
    assert found == (CauseClass.HOST, 0, pytest.approx(7 * MS), pytest.approx(8 * MS))
    outside = why(start, enqueue, spell(1, 4))
    assert outside[2:] == (0.0, 0.0)


def test_without_overlap_a_late_host_explains_only_what_the_gpu_waited_for() -> None:
    """Two places: the host is late by 3 ms at both, the GPU by 2.5 ms at the second alone."""
    start, enqueue = np.zeros((4, 20, 2)), np.zeros((4, 20, 2))
    start[1, :, 1], enqueue[1] = 2.5 * MS, 3 * MS
    for idle, cause in ((4 * MS, CauseClass.HOST), (0.0, CauseClass.COMPUTE)):
        places = PlaceTables(
            start, enqueue, start, np.full_like(start, idle), no_pairs(start), groups(start)
        )
        assert classify_lateness(places, spell(0, 20), [0, 2, 3])[0] is cause  # type: ignore[index]


def test_without_overlap_lateness_is_brought_along_to_the_next_group() -> None:
    """The host makes the GPU late at the first place; at the second, the GPU had work to do."""
    start, enqueue = np.zeros((4, 20, 2)), np.zeros((4, 20, 2))
    start[1], enqueue[1, :, 0] = 2.5 * MS, 3 * MS
    idle = np.zeros_like(start)
    idle[:, :, 0] = 4 * MS
    places = PlaceTables(start, enqueue, start, idle, no_pairs(start), groups(start))
    found = classify_lateness(places, spell(0, 20), [0, 2, 3])
    assert found is not None and found[0] is CauseClass.HOST
    start[1, :, 1] = 5 * MS  # twice as late as its host made it
    found = classify_lateness(places, spell(0, 20), [0, 2, 3])
    assert found is not None and found[0] is CauseClass.COMPUTE


@pytest.mark.parametrize(
    ("overlaps", "cause"), [(True, CauseClass.HOST), (None, CauseClass.COMPUTE)]
)
def test_a_late_host_is_late_again_where_buckets_overlap_compute(
    overlaps: bool | None, cause: CauseClass
) -> None:
    """Two buckets, of which the GPU waits for the first alone, and a barrier in another group.

    Else all members leave the first bucket together.
    """
    late, idle = np.zeros((4, 10, 3)), np.zeros((4, 10, 3))
    late[1, :, :2], idle[:, :, 0] = 5 * MS, 10 * MS
    comm = np.tile([0, 0, 1], (4, 1))
    places = PlaceTables(late, late, late, idle, no_pairs(late), comm)
    found = classify_lateness(places, spell(), [0, 2, 3], overlaps=overlaps)
    assert found is not None and found[0] is cause


@pytest.mark.parametrize(
    ("overlaps", "cause"),
    [(False, CauseClass.COMPUTE), (True, CauseClass.HOST), (None, CauseClass.HOST)],
)
def test_a_gpu_that_is_a_little_late_at_many_places_is_slow(
    overlaps: bool | None, cause: CauseClass
) -> None:
    """Its host, which waits for it after each step, is later at the first of forty places.

    The last one is in another group.
    """
    late, host, idle = (np.zeros((4, 10, 40)) for _ in range(3))
    late[1], late[1, :, 0], host[1, :, 0], idle[:, :, 0] = 1 * MS, 5 * MS, 5 * MS, 9 * MS
    comm = np.tile(np.repeat([0, 1], [39, 1]), (4, 1))
    places = PlaceTables(late, host, late, idle, no_pairs(late), comm)
    found = classify_lateness(places, spell(), [0, 2, 3], overlaps=overlaps)
    assert found is not None and found[0] is cause
