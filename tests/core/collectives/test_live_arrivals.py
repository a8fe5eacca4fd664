"""How long a job waited for one rank: advances by member and step."""

from dataclasses import replace

import numpy as np
import pytest

from ingero.core.collectives.columns import Collectives, Recorder, from_columns
from ingero.core.collectives.inherited import StepWaits
from ingero.core.collectives.live_arrivals import (
    LATE_S,
    ClosedCollectives,
    StepAdvances,
    measure_arrivals,
    step_keys,
)
from ingero.core.collectives.matching import match_collectives
from ingero.core.collectives.own_time_queue import HOLD_S, OwnTimeQueue

MS = 1_000_000
RANKS = 4
NONE = np.empty(0, np.int64)


def calls(late_ms: dict[tuple[int, int], dict[int, float]], steps: int = 1) -> Collectives:
    """Two all-reduces a step; `late_ms` is by step and place, and then by rank.

    The clock of each rank is far from those of the others. Its host enqueues 5 ms ahead.
    """
    rows = []
    for step in range(steps):
        for place in range(2):
            late = late_ms.get((step, place), {})
            end = (step * 2 + place + 1) * 100 * MS
            for rank in range(RANKS):
                clock = rank * 10**12
                started = end - int((10 - late.get(rank, 0.0)) * MS)
                enqueued = started - 5 * MS
                rows.append(
                    (
                        rank,
                        step * 2 + place,
                        enqueued + clock,
                        end + clock,
                        end - started,
                        step,
                        place,
                    )
                )
    who, seq, start, stop, duration, number, place_of = (
        np.array(each) for each in zip(*rows, strict=True)
    )
    columns = {
        "who": who, "rank": who, "nranks": np.full(len(who), RANKS), "seq": seq, "start_ns": start,
        "comm": np.full(len(who), 7, np.uint64), "op": np.zeros(len(who)), "end_ns": stop,
        "gpu_duration_ns": duration, "step": number, "place": place_of,
    }  # fmt: skip
    return from_columns(
        columns, ("AllReduce",), [Recorder("j", "n", rank) for rank in range(RANKS)]
    )


def advances(rows: Collectives, *, without: tuple[int, ...] = ()) -> StepAdvances:
    rows = rows.take(~np.isin(rows.who, without))
    found = StepAdvances()
    found.add(
        measure_arrivals(
            rows, match_collectives(rows), rows.who.astype(np.int64), StepWaits(), 0.0
        ),
        NONE,
        0.0,
    )
    return found


def of_step(found: StepAdvances, step: int = 0, count: int = 1) -> list[list[float]]:
    members = np.arange(RANKS)
    columns = found.means(members, np.full(RANKS, step), np.full(RANKS, count))
    return [np.round(column * 1e3, 6).tolist() for column in columns]


def test_the_last_is_charged_what_the_second_last_waited() -> None:
    advance, start, enqueue, *_ = of_step(advances(calls({(0, 0): {2: 3.0, 1: 1.0}})))
    assert advance == [0, 0, 2.0, 0]
    assert start == enqueue == [-1.0, 1.0, 3.0, -1.0]  # each over the median of the others


def test_a_delay_that_shows_at_two_places_counts_once() -> None:
    advance, start, *_ = of_step(advances(calls({(0, 0): {2: 3.0}, (0, 1): {2: 2.0}})))
    assert advance == [0, 0, 3.0, 0]
    assert start == [0, 0, 3.0, 0]


def test_two_ranks_may_be_waited_for_at_two_places() -> None:
    advance, start, *_ = of_step(advances(calls({(0, 0): {2: 3.0}, (0, 1): {1: 2.0}})))
    assert advance == [0, 2.0, 3.0, 0]
    assert start == [0, 0, 3.0, 0]  # where the job waited most


def test_a_point_of_several_steps_has_their_mean() -> None:
    found = advances(calls({(0, 0): {2: 3.0}, (1, 0): {2: 1.0}}, steps=4))
    assert of_step(found, 0, 2)[0] == [0, 0, 2.0, 0]
    assert of_step(found, 2, 2)[0] == [0, 0, 0, 0]
    assert np.isnan(of_step(found, 4, 2)[0]).all()


def test_a_rank_of_which_nothing_is_known_does_not_hide_the_others() -> None:
    advance, start, *_ = of_step(advances(calls({(0, 0): {2: 3.0, 1: 1.0}}), without=(3,)))
    assert advance[:3] == [0, 0, 2.0]
    assert start[2] == pytest.approx(2.5)  # over the median of two
    assert np.isnan(advance[3])


def test_collectives_that_no_gpu_timed_say_nothing() -> None:
    rows = calls({(0, 0): {2: 3.0}})
    untimed = from_columns(
        {
            name: getattr(rows, name)
            for name in ("who", "rank", "nranks", "seq", "comm", "op", "start_ns", "end_ns", "step")
        },
        rows.ops,
        rows.recorders,
    )
    assert np.isnan(of_step(advances(untimed))[0]).all()


def with_ops(rows: Collectives, *ops: str) -> Collectives:
    """Return the same rows with another operation at each place of a step."""
    return replace(rows, op=rows.place.astype(rows.op.dtype), ops=ops)


def test_what_a_gpu_waits_for_its_host_at_an_exchange_is_known() -> None:
    """The second of two exchanges is enqueued 5 ms ahead, and 3 ms after the others began."""
    rows = with_ops(calls({(0, 1): {2: 8.0}}), "AllToAll", "AllToAll")
    rows = replace(rows, after_ns=rows.gpu_duration_ns.max() - rows.gpu_duration_ns)
    known = advances(rows).means(np.arange(RANKS), np.zeros(RANKS, int), np.ones(RANKS, int))
    assert known.hidden_s * 1e3 == pytest.approx([0, 0, 8.0, 0])
    assert known.hidden_idle_s * 1e3 == pytest.approx([0, 0, 3.0, 0])


def near_and_far(rows: Collectives) -> list[tuple[float, float]]:
    known = advances(rows).means(np.arange(RANKS), np.zeros(RANKS, int), np.ones(RANKS, int))
    return list(zip((known.near_s * 1e3).tolist(), (known.far_s * 1e3).tolist(), strict=True))


def test_a_host_counts_where_its_gpu_is_late() -> None:
    """At place 0, before the delay arises, the host is least ahead, and nobody is late."""
    rows = calls({(0, 1): {2: 4.0}})
    early = (rows.place == 0).astype(np.int64) * 2 * MS
    rows = replace(rows, start_ns=rows.start_ns + early)  # 3 ms ahead at place 0, 5 ms at place 1
    assert near_and_far(rows)[2] == pytest.approx((4.0, 4.0))
    assert near_and_far(calls({(0, 0): {2: 1.2}, (0, 1): {2: 4.0}}))[2] == pytest.approx((2.6, 2.6))


def test_who_waits_for_data_of_its_own_group_does_not_come_late_by_itself() -> None:
    """Ranks 0 and 1 get data from rank 0, which is late, and meet ranks 2 and 3 afterwards."""
    late = {(0, 0): {0: 6.0}, (0, 1): {0: 6.0, 1: 6.0}}
    rows = with_ops(calls(late), "Broadcast", "AllReduce")
    pairs = np.where(rows.place == 0, 20 + rows.rank // 2, 30 + rows.rank % 2).astype(np.uint64)
    rows = replace(rows, comm=pairs, nranks=np.full_like(rows.nranks, 2))
    advance, *_ = of_step(advances(rows))
    assert advance == pytest.approx([6.0, 0.0, 0.0, 0.0])


def test_own_times_wait_for_their_collectives_but_not_for_ever() -> None:
    queue, found = OwnTimeQueue(), StepAdvances()
    member, step, one = np.array([0, 0, 1]), np.array([4, 5, 5]), np.ones(3, np.int64)
    queue.add(member, step, one, np.ones((3, 3)), 10.0)
    arrivals = measure_arrivals(
        calls({}).take(np.arange(0)), np.empty(0, np.intp), NONE, StepWaits(), 0.0
    )
    found.add(arrivals, step_keys(np.array([0]), np.array([4])), 10.0)
    ready = queue.take_ready(found, 10.0)
    assert ready is not None
    assert ready[0].tolist() == [1]  # member 0 stays in order: its step 5 waits behind step 4
    assert queue.take_ready(found, 10.0 + HOLD_S / 2) is None
    late = queue.take_ready(found, 10.0 + HOLD_S)
    assert late is not None
    assert (late[0].tolist(), late[1].tolist()) == ([0, 0], [4, 5])


def test_points_of_a_member_that_is_gone_are_dropped() -> None:
    queue, found = OwnTimeQueue(), StepAdvances()
    queue.add(np.array([0, 1]), np.array([1, 1]), np.ones(2, np.int64), np.ones((3, 2)), 0.0)
    queue.forget(0)
    ready = queue.take_ready(found, 0.0)
    assert ready is not None
    assert ready[0].tolist() == [1]


def closed_without(rows: Collectives, late: int) -> ClosedCollectives:
    on_time = rows.take(rows.who != late)
    closed = ClosedCollectives()
    closed.keep(on_time, match_collectives(on_time), 100.0)
    return closed


def test_a_rank_whose_report_comes_late_is_compared_with_those_before_it() -> None:
    rows = calls({(0, 0): {2: 3.0, 1: 1.0}, (1, 1): {2: 2.0}}, steps=3)
    closed, late = closed_without(rows, 2), rows.take(rows.who == 2)
    arrivals, is_late = closed.measure(late, late.who.astype(np.int64))
    found = StepAdvances()
    found.add(arrivals, NONE, 130.0)
    assert is_late.all()
    assert [of_step(found, step)[0][2] for step in range(3)] == [2.0, 2.0, 0.0]
    assert of_step(found, 0)[1][2] == 3.0
    assert of_step(found, 0)[2][2] == 3.0


def test_collectives_that_were_complete_or_are_unknown_are_matched_as_usual() -> None:
    rows = calls({}, steps=2)
    everybody = ClosedCollectives()
    everybody.keep(rows, match_collectives(rows), 100.0)
    assert not everybody.measure(rows, rows.who.astype(np.int64))[1].any()
    closed = closed_without(calls({}, steps=1), 2)
    late = rows.take(rows.who == 2)
    assert closed.measure(late, late.who.astype(np.int64))[1].tolist() == [True, True, False, False]


def test_arrivals_are_kept_for_late_reports_only_for_a_while() -> None:
    rows = calls({})
    closed, late = closed_without(rows, 2), rows.take(rows.who == 2)
    nothing = rows.take(np.arange(0))
    closed.keep(nothing, np.empty(0, np.intp), 100.0 + LATE_S)
    assert closed.measure(late, late.who.astype(np.int64))[1].all()
    closed.keep(nothing, np.empty(0, np.intp), 100.1 + LATE_S)
    assert not closed.measure(late, late.who.astype(np.int64))[1].any()
