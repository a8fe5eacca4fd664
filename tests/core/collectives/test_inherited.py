"""Waits in one communicator that explain why ranks come late to another one."""

import numpy as np
import pytest

from ingero.core.collectives.columns import from_columns
from ingero.core.collectives.inherited import KEPT_S, StepWaits
from ingero.core.collectives.live_arrivals import measure_arrivals, member_of, step_keys
from ingero.core.collectives.matching import match_collectives

MS = 1_000_000
SHARDS = ((0, 1, 2), (3, 4, 5))
PAIRS = ((0, 3), (1, 4), (2, 5))
Meeting = tuple[int, tuple[int, ...], tuple[float, ...]]  # place, members, arrivals in ms


def columns_of(meetings: list[Meeting]):
    """Return the collectives at which ranks meet, in the order of their places."""
    rows = [
        (100 + min(members) + 10 * len(members), rank, len(members), place, arrived)
        for place, members, arrivals in meetings
        for rank, arrived in zip(members, arrivals, strict=True)
    ]
    comm, who, nranks, place, arrived = (np.array(each) for each in zip(*rows, strict=True))
    end = 10**18 + place.astype(np.int64) * 100 * MS
    lasted = ((90 - arrived) * MS).astype(np.int64)
    return from_columns(
        {
            "who": who, "comm": comm.astype(np.uint64), "seq": place, "rank": who % nranks,
            "op": np.zeros(len(rows)), "nranks": nranks, "step": np.zeros(len(rows)),
            "place": place, "start_ns": end - lasted, "end_ns": end, "gpu_duration_ns": lasted,
            "size_bytes": np.full(len(rows), MS),
        },
        ("AllReduce",),
        tuple(("j", "n", rank) for rank in range(6)),
    )  # fmt: skip


def advances(meetings: list[Meeting], waits: StepWaits | None = None, now_s: float = 0.0):
    """Return the largest advance of each of six members, in milliseconds."""
    rows = columns_of(meetings)
    found = measure_arrivals(
        rows, match_collectives(rows), rows.who.astype(np.int64), waits or StepWaits(), now_s
    )
    most = np.zeros(6)
    np.maximum.at(most, member_of(found.key), found.advance_s * 1e3)
    return np.round(most, 3).tolist()


LATE_SHARD: list[Meeting] = [(1, SHARDS[0], (0, 8, 0)), (1, SHARDS[1], (0, 0, 0.5))]
LATE_PAIRS: list[Meeting] = [
    (2, PAIRS[0], (7, 0)),
    (2, PAIRS[1], (7, 0)),
    (2, PAIRS[2], (7.5, 0)),
]


def test_the_group_of_a_late_rank_inherits_its_delay() -> None:
    """Ranks 0 and 2 waited 8 ms for rank 1, and come 7 ms late to their pairs."""
    assert advances([*LATE_SHARD, *LATE_PAIRS]) == [0, 8, 0, 0, 0, 0]


def test_what_is_more_than_the_wait_is_their_own() -> None:
    later: list[Meeting] = [(2, PAIRS[0], (11, 0)), *LATE_PAIRS[1:]]
    assert advances([*LATE_SHARD, *later]) == [3, 8, 0, 0, 0, 0]


def test_a_step_may_be_cut_anywhere() -> None:
    turned = [(3 - place, *rest) for place, *rest in (*LATE_SHARD, *LATE_PAIRS)]
    assert advances(turned) == advances([*LATE_SHARD, *LATE_PAIRS])


def test_ranks_that_left_a_collective_together_inherit_nothing_from_it() -> None:
    """All six waited for rank 5; what 0 and 1 add after that in their pairs is their own."""
    together: Meeting = (1, tuple(range(6)), (0, 0, 0, 0, 0, 9))
    assert advances([together, *LATE_PAIRS[:2]]) == [7, 7, 0, 0, 0, 9]


@pytest.mark.parametrize(("later_s", "expected"), [(1.0, 0), (KEPT_S + 1, 7)])
def test_groups_of_one_node_may_be_complete_first(later_s: float, expected: float) -> None:
    waits = StepWaits()
    advances([*LATE_SHARD, *LATE_PAIRS], waits, 0.0)
    assert advances(LATE_SHARD, waits, 10.0)[1] == 8
    assert advances(LATE_PAIRS, waits, 10.0 + later_s)[0] == expected


def test_steps_are_apart() -> None:
    """Rank 1 waited in step 5 for rank 0; what it inherits in step 6 is nothing."""
    waits, member = StepWaits(), np.array([0, 1, 1, 2])
    comm = np.array([1, 1, 2, 2], np.uint64)
    wait_s = np.array([0.0, 0.5, 0.0, 0.0])
    for step, expected in (([5, 5, 5, 5], 0.5), ([6, 6, 7, 7], 0.0)):
        keys = step_keys(member, np.array(step))
        assert waits.take(keys, member, comm, wait_s, 0.0).tolist() == [0, 0, expected, 0]
