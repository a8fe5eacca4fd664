"""Rings: ranks that always send to one rank and receive from one in the same launch."""

import numpy as np
import pytest

from ingero.core.collectives.columns import Collectives, Recorder, from_columns
from ingero.core.collectives.pairs.live_exchanges import RING, ExchangeJoiner

MS, US = 1_000_000, 1_000
ALL_REDUCE, SEND, RECV = range(3)
WORLD, RING_COMM = 1, 7
Launch = tuple[tuple[int, int], ...]  # operations with their peers


def columns(steps: list[list[Launch]], ranks: int = 4) -> Collectives:
    """The launches of rank 0, one per millisecond, and an all-reduce at the end of each step."""
    rows = []
    at = 10**18
    for number, launches in enumerate(steps):
        for launch in launches:
            at += MS
            rows += [
                (RING_COMM, -1, op, peer, MS, at + nth * US, at + MS // 2)
                for nth, (op, peer) in enumerate(launch)
            ]
        at += 2 * MS
        rows.append((WORLD, number, ALL_REDUCE, -1, 64 * MS, at, at + MS // 2))
    comm, seq, op, peer, size, enqueued, started = (
        np.array(each) for each in zip(*rows, strict=True)
    )
    return from_columns(
        {
            "who": np.zeros(len(rows)), "comm": comm.astype(np.uint64), "seq": seq, "op": op,
            "rank": np.zeros(len(rows)), "nranks": np.full(len(rows), ranks), "peer": peer,
            "size_bytes": size, "start_ns": enqueued, "end_ns": started + MS // 10,
            "gpu_duration_ns": np.full(len(rows), MS // 10),
        },
        ("AllReduce", "Send", "Recv"),
        (Recorder("j", "n", 0),),
    )  # fmt: skip


def passed(to: int, source: int, tensors: int = 1) -> Launch:
    return ((SEND, to),) * tensors + ((RECV, source),) * tensors


there, back = passed(1, 3), passed(3, 1)


@pytest.mark.parametrize(
    ("step", "ranks", "size"),
    [
        ([there] * 3 + [back] * 3, 4, MS),
        ([there, there] * 3, 3, MS),
        ([passed(1, 3, tensors=2)] * 6, 4, 2 * MS),  # keys and values apart
        ([passed(1, 1)] * 6, 2, MS),
    ],
)
def test_calls_of_a_ring_are_one_pass(step: list[Launch], ranks: int, size: int) -> None:
    joiner = ExchangeJoiner()
    joined, _ = joiner.take(columns([step] * 5, ranks))
    assert [joined.ops[code] for code in joined.op] == ([RING] * 6 + ["AllReduce"]) * 5
    assert (joined.size_bytes[joined.has_op({RING})] == size).all()
    assert (joined.peer == -1).all() and joiner.turns == 1
    joiner.take(columns([step] * 5, ranks))
    assert joiner.turns == 1


def stage(batches: int) -> list[Launch]:
    """A stage that swaps with a neighbour in one launch, but not while the pipeline fills."""
    return [((RECV, 3),), *[passed(1, 3)] * batches, ((SEND, 1),)]


@pytest.mark.parametrize(
    "steps",
    [
        [[there] * 3] * 3,  # too few
        [[there] * 60],  # one step: it might drain yet
        [stage(20)] * 4,
        [[((SEND, 1), (SEND, 3), (RECV, 1), (RECV, 3))] * 6] * 5,
        [[((SEND, 1),), ((RECV, 3),)] * 6] * 5,
    ],
    ids=["few", "one-step", "pipeline", "both-sides", "one-by-one"],
)
def test_other_sends_and_receives_are_left_alone(steps: list[list[Launch]]) -> None:
    rows, joiner = columns(steps), ExchangeJoiner()
    joined, row = joiner.take(rows)
    assert len(row) == len(rows) and not joined.has_op({RING}).any() and joiner.turns == 0


def test_a_ring_is_found_in_batches_that_end_anywhere() -> None:
    rows, joiner, found = columns([[there] * 3 + [back] * 3] * 40), ExchangeJoiner(), 0
    for part in np.array_split(np.arange(len(rows)), 24):
        found += int(joiner.take(rows.take(part))[0].has_op({RING}).sum())
    assert joiner.turns == 1 and found > 180


def test_a_communicator_that_stops_being_a_ring_is_given_up() -> None:
    joiner = ExchangeJoiner()
    joiner.take(columns([[there] * 6] * 4))
    joined, _ = joiner.take(columns([stage(3)] * 4))
    assert joiner.turns == 2 and not joined.has_op({RING}).any()
