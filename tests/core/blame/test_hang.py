"""Hangs: the wait graph ends at the ranks that stopped, and doubt is part of the answer."""

from collections.abc import Collection

import pytest

from ingero.contract.verdict import CauseClass
from ingero.core.blame.answer import Answer
from ingero.core.blame.hang import blame_hang
from ingero.core.blame.wait_graph import Pending, ProcessGroup, RankProgress

TP, DP = 2, 4
WORLD = TP * DP


def _groups() -> dict[str, ProcessGroup]:
    groups = {
        f"tp{i}": ProcessGroup(f"tp{i}", f"tp{i}", tuple(range(i * TP, i * TP + TP)))
        for i in range(DP)
    }
    groups |= {
        f"dp{i}": ProcessGroup(f"dp{i}", f"dp{i}", tuple(range(i, WORLD, TP))) for i in range(TP)
    }
    return groups


def _stopped(
    hosts: Collection[int] = (), gpus: Collection[int] = (), *, before: str = "tp"
) -> list[RankProgress]:
    """Return a job of TP 2 × DP 4 that stopped in step 11, after 10 complete steps.

    Each group runs one collective per step. Ranks in `hosts` never enqueue their `before`
    operation; GPUs in `gpus` completed nothing of step 10, although it ran.
    """
    ranks = []
    for rank in range(WORLD):
        tp, dp = f"tp{rank // TP}", f"dp{rank % TP}"
        mates = set(range(rank // TP * TP, rank // TP * TP + TP))
        tp_done = before == "dp" or not (mates & set(hosts))
        pending: list[Pending] = []
        enqueued, completed = {tp: 10, dp: 10}, {tp: 10, dp: 10}
        if rank in gpus:
            completed = {tp: 9, dp: 9}
            pending += [
                Pending(tp, 10, "AllReduce", "", None, 90),
                Pending(dp, 10, "AllReduce", "", None, 91),
            ]
        if rank not in hosts or before == "dp":
            enqueued[tp] = 11
            if tp_done and not (mates & set(gpus)):
                completed[tp] = 11
            else:
                pending.append(Pending(tp, 11, "AllReduce", "", None, 100))
        if rank not in hosts:
            enqueued[dp] = 11
            pending.append(Pending(dp, 11, "AllReduce", "", None, 101))
        ranks.append(RankProgress(rank, enqueued, completed, tuple(pending), 101, None))
    return ranks


def _ask(
    ranks: list[RankProgress], *, without: Collection[int] = (), timed: bool = False
) -> Answer | None:
    return blame_hang([r for r in ranks if r.rank not in without], _groups(), WORLD, timed)


@pytest.mark.parametrize("hosts", [(0,), (3,), (7,), (2, 5), (0, 3, 6)])
@pytest.mark.parametrize("before", ["tp", "dp"])
def test_hosts_that_stopped_enqueueing_are_named(hosts: tuple[int, ...], before: str) -> None:
    answer = _ask(_stopped(hosts, before=before))
    assert answer is not None
    assert tuple(c.rank for c in answer.culprits) == hosts
    assert {c.cause for c in answer.culprits} == {CauseClass.HANG}
    assert all(c.detail.startswith("host_lock: host stopped") for c in answer.culprits)


@pytest.mark.parametrize("gpus", [(1,), (6,), (0, 5), (1, 2, 7)])
def test_gpus_that_complete_nothing_are_named(gpus: tuple[int, ...]) -> None:
    answer = _ask(_stopped(gpus=gpus))
    assert answer is not None
    assert tuple(c.rank for c in answer.culprits) == gpus
    assert all(c.detail.startswith("gpu_error: GPU error") for c in answer.culprits)


def test_a_rank_without_dump_is_named_when_everyone_waits_for_it() -> None:
    answer = _ask(_stopped((3,)), without=(3,))
    assert answer is not None
    assert [(c.rank, c.detail.split(":")[0]) for c in answer.culprits] == [(3, "no_dump")]
    assert answer.notes == ("partial set: dumps of 7 of 8 ranks; missing 3",)


def test_two_ranks_without_dump_are_both_named_with_what_is_missing() -> None:
    answer = _ask(_stopped((3, 6)), without=(3, 6))
    assert answer is not None
    assert [c.rank for c in answer.culprits] == [3, 6]
    assert (
        answer.not_sure
        == "ranks 3, 6 left no dump: their dumps would show which of them stopped first"
    )


def test_everyone_arrived_and_nothing_moves_is_the_network() -> None:
    answer = _ask(_stopped())
    assert answer is not None
    assert (answer.culprits, answer.cause) == ((), CauseClass.NETWORK)
    assert answer.not_sure is not None


def test_a_mismatched_call_names_the_odd_rank() -> None:
    ranks = _stopped()
    odd = ranks[4]
    calls = tuple(
        Pending(p.group, p.seq, "AllGather" if p.group == "dp0" else p.op, "", None, p.created_ns)
        for p in odd.pending
    )
    ranks[4] = RankProgress(4, odd.enqueued, odd.completed, calls, odd.last_ns, None)
    answer = _ask(ranks)
    assert answer is not None
    assert [(c.rank, c.detail.split(":")[0]) for c in answer.culprits] == [(4, "mismatch")]


def test_a_finished_or_merely_busy_job_is_no_hang() -> None:
    done = [RankProgress(r, {"tp0": 10}, {"tp0": 10}, (), 100, 5) for r in range(2)]
    assert _ask(done) is None
    busy = [
        RankProgress(r.rank, r.enqueued, r.completed, r.pending, r.last_ns, 1_000)
        for r in _stopped((3,))
    ]
    # pending no longer than completed ones took: a dump in mid-step
    assert _ask(busy, timed=True) is None


def test_a_gpu_that_never_started_what_others_wait_in_is_named() -> None:
    ranks = []
    for rank in _stopped():
        late = rank.rank == 5
        ops = tuple(
            Pending(p.group, p.seq, p.op, p.shape, None, p.created_ns, not late)
            for p in rank.pending
        )
        ranks.append(
            RankProgress(rank.rank, rank.enqueued, rank.completed, ops, rank.last_ns, None)
        )
    answer = _ask(ranks)
    assert answer is not None
    assert [(c.rank, c.detail.split(":")[0]) for c in answer.culprits] == [(5, "gpu_stuck")]
    assert answer.cause is CauseClass.HANG


def test_a_second_host_that_stopped_a_little_later_is_named_too() -> None:
    ranks = _stopped((0,), before="dp")  # all other ranks of dp0 wait for rank 0
    for rank in (2, 4, 6):
        ahead = ranks[rank]
        more = {**ahead.enqueued, f"tp{rank // TP}": 12, "dp0": 12 if rank != 4 else 11}
        ranks[rank] = RankProgress(rank, more, ahead.completed, ahead.pending, ahead.last_ns, None)
    answer = _ask(ranks)
    assert answer is not None
    assert [(c.rank, c.detail.split(":")[0]) for c in answer.culprits] == [
        (0, "host_lock"),
        (4, "host_lock"),
    ]


def test_a_dead_gpu_and_a_stopped_host_are_both_named() -> None:
    ranks = _stopped(gpus=(1,))
    stopped = ranks[6]
    ranks[6] = RankProgress(
        6, {"tp3": 10, "dp0": 10}, {"tp3": 10, "dp0": 10}, (), stopped.last_ns, None
    )
    answer = _ask(ranks)
    assert answer is not None
    assert [(c.rank, c.detail.split(":")[0]) for c in answer.culprits] == [
        (1, "gpu_error"),
        (6, "host_lock"),
    ]
