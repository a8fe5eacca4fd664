"""Exchanges of all with all, which are made of sends and receives in one kernel."""

import numpy as np
import pytest

from ingero.core.collectives.columns import Collectives, Recorder, from_columns
from ingero.core.collectives.inherited import StepWaits
from ingero.core.collectives.live_arrivals import StepAdvances, measure_arrivals
from ingero.core.collectives.live_steps import LiveSteps
from ingero.core.collectives.matching import match_collectives
from ingero.core.collectives.pairs.hidden_delays import HiddenDelays
from ingero.core.collectives.pairs.live_exchanges import EXCHANGE, ExchangeJoiner, after_anchors

MS, US = 1_000_000, 1_000
START = 10**18
RANKS = 4
OPS = ("AllReduce", "Recv", "Send")
WORLD, EXPERTS = 1, 5
Row = tuple[int, int, int, int, int, int, int]  # comm, seq, op, peer, bytes, enqueued, started
STEP_MS = 40.0


def job(steps: int, late_ms: dict[int, float], rank: int = 0, *, hidden: bool = True) -> list[Row]:
    """Two exchanges and an all-reduce a step; `late_ms` are ranks that begin a step late.

    All leave an exchange when the last one has come, and NCCL notes the ends of their own sends.
    """
    rows: list[Row] = []
    worst = max(late_ms.values(), default=0.0)
    for step in range(steps):
        begin = START + int(step * (STEP_MS + worst) * MS)
        mine = late_ms.get(rank, 0.0)
        for started in (10.0 + mine, 20.0 + (worst if hidden else mine)):
            at = begin + int(started * MS)
            for number, (op, distance) in enumerate(
                (op, distance) for distance in range(RANKS) for op in (2, 1)
            ):
                # Times of a call to itself, or to and from the same rank, are missing or old.
                stale = distance in (0, RANKS // 2)
                way = distance if op == 2 else -distance
                seen = at if not stale else (0 if distance == 0 else at - 90 * MS)
                rows.append(
                    (EXPERTS, -1, op, (rank + way) % RANKS, MS, at - MS + number * US, seen)
                )
        end = begin + int((STEP_MS + worst) * MS)
        rows.append((WORLD, step, 0, -1, 64 * MS, end - 15 * MS, end - 5 * MS))
    return rows


def columns(rows: list[Row], rank: int = 0) -> Collectives:
    comm, seq, op, peer, size, enqueued, started = (
        np.array(each) for each in zip(*rows, strict=True)
    )
    is_timed = started >= enqueued
    end = np.where(op == 0, started + 5 * MS, np.where(is_timed, started + MS // 10, enqueued))
    return from_columns(
        {
            "who": np.zeros(len(comm)), "comm": comm.astype(np.uint64), "seq": seq, "op": op,
            "rank": np.full(len(comm), rank), "nranks": np.full(len(comm), RANKS), "peer": peer,
            "size_bytes": size, "start_ns": enqueued, "end_ns": end,
            "gpu_duration_ns": np.where(is_timed, end - started, -1),
        },
        OPS,
        (Recorder("j", "n", rank),),
    )  # fmt: skip


def test_calls_of_one_kernel_are_one_exchange() -> None:
    """What the rank sends to itself and calls without a time are left out."""
    rows = columns(job(3, {}))
    joined, row = ExchangeJoiner().take(rows)
    assert [joined.ops[code] for code in joined.op] == [EXCHANGE, EXCHANGE, "AllReduce"] * 3
    exchange = joined.has_op({EXCHANGE})
    assert (joined.size_bytes[exchange] == MS * (RANKS - 1)).all()
    assert (joined.gpu_duration_ns[exchange] == MS // 10).all()
    assert (joined.peer == -1).all() and (joined.seq[exchange] == -1).all()
    assert rows.entry_ns[row].tolist() == joined.entry_ns.tolist()


@pytest.mark.parametrize("cut", [5, 19, 24, 31])
def test_batches_may_end_anywhere(cut: int) -> None:
    """An exchange of which a batch has half at most is left out, never counted twice."""
    rows, joiner = columns(job(9, {})), ExchangeJoiner()
    joiner.take(columns(job(2, {})))
    parts = [rows.take(np.arange(cut)), rows.take(np.arange(cut, len(rows)))]
    found = sum(int(joiner.take(part)[0].has_op({EXCHANGE}).sum()) for part in parts)
    assert 17 <= found <= 18


def test_stages_of_a_pipeline_are_no_exchange() -> None:
    """They send to and receive from their neighbours only."""
    rows = columns(job(3, {}))
    neighbours = rows.take(np.isin(rows.peer, (-1, 1, 3)))
    joined, _ = ExchangeJoiner().take(neighbours)
    assert joined is neighbours or not joined.has_op({EXCHANGE}).any()
    assert len(joined) == len(neighbours)


def test_own_time_has_nothing_of_what_others_wait_for_in_an_exchange() -> None:
    stream = LiveSteps()
    found = []
    for late in ({}, {2: 6.0}):
        joined, _ = ExchangeJoiner().take(columns(job(80, late, 0)))
        half = len(joined) // 2
        stream = LiveSteps()
        stream.take(joined.take(np.arange(half)))
        found.append(stream.take(joined.take(np.arange(half, len(joined)))).times.own_s)
    calm, beside_a_late_one = (np.median(each) for each in found)
    assert calm == pytest.approx(0.010) and beside_a_late_one == pytest.approx(0.010)


def arrivals(late_ms: dict[int, float], *, hidden: bool = True) -> StepAdvances:
    """What Fleet finds of one step of all ranks, each with a clock of its own."""
    parts, members = [], []
    for rank in range(RANKS):
        joined, _ = ExchangeJoiner().take(columns(job(2, late_ms, rank, hidden=hidden), rank))
        step = np.array([0, 0, 1, 1, 1, 2])  # of the anchors that are before them
        place = np.array([1, 2, 0, 1, 2, 0])
        after = after_anchors(joined, step, place)
        clock = rank * 10**12
        number = np.where(joined.seq < 0, step * 8 + place, joined.seq)
        parts.append((joined, step, place, after, clock, number))
        members += [rank] * len(joined)
    table = from_columns(
        {
            "who": members,
            **{
                name: np.concatenate([getattr(part[0], name) for part in parts])
                for name in ("comm", "op", "rank", "nranks", "gpu_duration_ns")
            },
            "seq": np.concatenate([part[5] for part in parts]),
            "start_ns": np.concatenate([part[0].start_ns + part[4] for part in parts]),
            "end_ns": np.concatenate([part[0].end_ns + part[4] for part in parts]),
            "step": np.concatenate([part[1] for part in parts]),
            "place": np.concatenate([part[2] for part in parts]),
            "after_ns": np.concatenate([part[3] for part in parts]),
        },
        parts[0][0].ops,
        [Recorder("j", "n", rank) for rank in range(RANKS)],
    )
    found = StepAdvances()
    member = table.who.astype(np.int64)
    found.add(
        measure_arrivals(table, match_collectives(table), member, StepWaits(), 0.0),
        np.empty(0, np.int64),
        0.0,
    )
    return found


def test_the_last_to_an_exchange_is_charged() -> None:
    """Its peers leave the exchange as late as it does, and are not charged at the next one."""
    member, one = np.arange(RANKS), np.ones(RANKS, np.int64)
    known = arrivals({2: 6.0}).means(member, one, one)
    assert known.advance_s.tolist() == pytest.approx([0, 0, 0.006, 0])
    assert known.start_late_s[2] == pytest.approx(0.006)
    assert known.enqueue_late_s[2] == pytest.approx(0.006)
    assert known.hidden_s.tolist() == pytest.approx([0, 0, 0, 0])


def test_delays_at_several_exchanges_add_up() -> None:
    """What is added after an exchange is not in the own time that the rank sends."""
    member, one = np.arange(RANKS), np.ones(RANKS, np.int64)
    known = arrivals({2: 6.0}, hidden=False).means(member, one, one)
    assert known.advance_s.tolist() == pytest.approx([0, 0, 0.012, 0])
    assert known.hidden_s.tolist() == pytest.approx([0, 0, 0.006, 0])


def test_a_delay_is_used_for_the_steps_in_between() -> None:
    delays, member = HiddenDelays(), np.array([0, 1, 1])
    unknown = np.full(3, np.nan)
    assert delays.follow(member, unknown, 0.0).tolist() == [0, 0, 0]
    known = np.array([np.nan, 0.004, np.nan])
    assert delays.follow(member, known, 1.0).tolist() == [0, 0.004, 0.004]
    assert delays.follow(member, unknown, 2.0).tolist() == [0, 0.004, 0.004]
    assert delays.follow(member, unknown, 60.0).tolist() == [0, 0, 0]
    delays.follow(member, known, 61.0)
    delays.forget(1)
    assert delays.follow(member, unknown, 61.0).tolist() == [0, 0, 0]
