"""Barrier waits: the published vectors N1 to N3, and which collective a wait belongs to."""

import pytest

from ingero.core.collectives.barrier import STALE_NS, barrier_waits

MS = 1_000_000


def test_a_wait_counts_from_the_enqueue_n1() -> None:
    """A collective at 1 ms; the wait ends at 5 ms and took 3 ms."""
    assert barrier_waits([(1 * MS, 9)], [(2 * MS, 9)]) == [1 * MS]


@pytest.mark.parametrize(
    ("collectives", "waits"),
    [([], [(2 * MS, 9)]), ([(MS, 0)], [(2 * MS, 0)]), ([(MS, None)], [(2 * MS, 0)]),
     ([(MS, 9)], [(2 * MS, 8)]),
     ([(3 * MS, 9)], [(2 * MS, 9)])],
    ids=["no collective", "default stream", "unknown stream", "another stream", "wait came first"],
)  # fmt: skip
def test_nothing_to_wait_for_n2(
    collectives: list[tuple[int, int | None]], waits: list[tuple[int, int]]
) -> None:
    assert barrier_waits(collectives, waits) == [None] * len(collectives)


def test_a_wait_over_a_second_later_is_dropped_with_its_collective_must_44_n3() -> None:
    late = MS + STALE_NS + 1
    assert barrier_waits([(MS, 9)], [(late, 9), (late + 1, 9)]) == [None]
    assert barrier_waits([(MS, 9)], [(MS + STALE_NS, 9)]) == [STALE_NS]


def test_a_wait_belongs_to_the_last_collective_on_its_stream_and_is_used_once() -> None:
    collectives = [(4 * MS, 9), (1 * MS, 9), (2 * MS, 7), (3 * MS, 9)]  # in any order
    assert barrier_waits(collectives, [(6 * MS, 9), (7 * MS, 9), (8 * MS, 7)]) == [
        2 * MS,
        None,
        6 * MS,
        None,
    ]
