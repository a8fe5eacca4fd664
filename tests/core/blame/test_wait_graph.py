"""The wait graph of a stopped job: who waits for whom, and which signature a rank shows."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from ingero.core.blame.wait_graph import (
    NEVER_ENQUEUED,
    NOT_STARTED,
    Pending,
    ProcessGroup,
    RankProgress,
    StoppedJob,
    Wait,
    find_absent,
    find_hosts_behind,
    find_lagging_gpus,
    find_mismatched,
    find_older_dumps,
    find_waits,
    first_pending,
    is_clearly_stuck,
)


def op(
    group: str = "g", seq: int = 5, name: str = "AllReduce", *, at: int = 100,
    peer: int | None = None, shape: str = "", is_started: bool | None = None,
) -> Pending:  # fmt: skip
    return Pending(group, seq, name, shape, peer, at, is_started)


def rank(
    number: int, *pending: Pending, enqueued: Mapping[str, int] | None = None,
    completed: Mapping[str, int] | None = None,
) -> RankProgress:  # fmt: skip
    """Return a rank that enqueued what is pending and completed what came before."""
    last = {p.group: p.seq for p in pending if p.peer is None}
    done = {p.group: p.seq - 1 for p in reversed(pending) if p.peer is None}
    return RankProgress(
        number,
        last if enqueued is None else enqueued,
        done if completed is None else completed,
        pending, 200, None,
    )  # fmt: skip


def job(*ranks: RankProgress, **groups: Sequence[int]) -> StoppedJob:
    members = groups or {"g": [r.rank for r in ranks]}
    return StoppedJob(
        {r.rank: r for r in ranks},
        {name: ProcessGroup(name, "", tuple(those)) for name, those in members.items()},
    )


def idle(number: int, last: int, group: str = "g") -> RankProgress:
    """Return a rank that completed everything up to `last` and has nothing pending."""
    return rank(number, enqueued={group: last}, completed={group: last})


def test_ranks_wait_for_the_member_that_did_not_enqueue_their_operation() -> None:
    stuck = op(seq=5)
    found = find_waits(job(rank(0, stuck), rank(1, stuck), idle(2, 4)))
    assert found == [Wait(0, 2, stuck, NEVER_ENQUEUED), Wait(1, 2, stuck, NEVER_ENQUEUED)]


def test_ranks_that_all_reached_the_operation_wait_for_nobody() -> None:
    assert find_waits(job(rank(0, op()), rank(1, op()))) == []
    assert find_waits(job(rank(0, op(seq=5)), idle(1, 5))) == []


def test_a_member_that_knows_nothing_of_the_group_never_enqueued_its_first_operation() -> None:
    first = op(seq=0)
    assert find_waits(job(rank(0, first), rank(1))) == [Wait(0, 1, first, NEVER_ENQUEUED)]


def test_a_member_without_dump_is_waited_for() -> None:
    stuck = op()
    assert find_waits(job(rank(0, stuck), g=[0, 1])) == [Wait(0, 1, stuck, "left no dump")]


@pytest.mark.parametrize(
    ("theirs", "is_waited_for"),
    [
        pytest.param((), True, id="it has nothing to do with the group"),
        pytest.param((op("g", name="Recv", peer=0),), False, id="it answers"),
        pytest.param((op("h", name="Recv", peer=0),), True, id="it answers elsewhere"),
        pytest.param(
            (op("h"), op("g", name="Recv", peer=0)), True, id="it is stuck in a collective"
        ),
    ],
)
def test_a_send_waits_for_its_receiver_alone(
    theirs: tuple[Pending, ...], is_waited_for: bool
) -> None:
    send = op(name="Send", peer=1)
    groups = {"g": [0, 1, 2], "h": [1]}
    found = find_waits(job(rank(0, send), rank(1, *theirs), rank(2), **groups))
    assert [wait for wait in found if wait.waiter == 0] == (
        [Wait(0, 1, send, "has not answered")] if is_waited_for else []
    )


@pytest.mark.parametrize(
    ("elsewhere_at", "done", "is_waited_for"),
    [(99, 4, True), (100, 4, False), (101, 4, False), (99, 5, False), (99, 6, False)],
)
def test_a_member_stuck_in_an_earlier_operation_is_waited_for(
    elsewhere_at: int, done: int, is_waited_for: bool
) -> None:
    """It is no matter of the others when it has completed what they are stuck in."""
    stuck = op("g", 5)
    other = rank(
        1, op("h", 3, at=elsewhere_at), op("g", 5, at=100),
        enqueued={"g": 6, "h": 3}, completed={"g": done, "h": 2},
    )  # fmt: skip
    found = find_waits(job(rank(0, stuck), other, g=[0, 1], h=[1]))
    assert found == ([Wait(0, 1, stuck, "is stuck before it")] if is_waited_for else [])


def test_a_member_whose_dump_lost_the_operation_is_not_waited_for() -> None:
    other = rank(1, op("h", 3, at=99), enqueued={"g": 6, "h": 3}, completed={"g": 4, "h": 2})
    assert find_waits(job(rank(0, op("g", 5)), other, g=[0, 1], h=[1])) == []


@pytest.mark.parametrize(
    ("mine", "theirs", "is_waited_for"),
    [
        (True, False, True),
        (True, True, False),
        (True, None, False),
        (False, False, False),
        (None, False, False),
    ],
)
def test_a_gpu_that_did_not_start_what_runs_elsewhere_is_waited_for(
    mine: bool | None, theirs: bool | None, is_waited_for: bool
) -> None:
    stuck = op(is_started=mine)
    found = find_waits(job(rank(0, stuck), rank(1, op(is_started=theirs))))
    assert [wait for wait in found if wait.waiter == 0] == (
        [Wait(0, 1, stuck, NOT_STARTED)] if is_waited_for else []
    )


def test_only_the_first_operation_of_a_group_or_of_a_pair_counts() -> None:
    ops = (
        op("g", 5), op("g", 6), op("h", 2), op("g", 7, "Send", peer=1), op("g", 8, "Send", peer=1),
        op("g", 7, "Recv", peer=1), op("g", 7, "Send", peer=2),
    )  # fmt: skip
    assert first_pending(rank(0, *ops)) == [ops[0], ops[2], ops[3], ops[5], ops[6]]


@pytest.mark.parametrize(("done", "is_lagging"), [(4, False), (5, True), (6, True), (7, False)])
def test_a_gpu_lags_when_a_peer_completed_what_it_enqueued_itself(
    done: int, is_lagging: bool
) -> None:
    """A peer that completed more than this rank enqueued shows that the dump is older."""
    ops = op(seq=5), op(seq=6)
    found = find_lagging_gpus(job(rank(0, *ops), idle(1, done), idle(2, 4)))
    assert found == ({0: ops[0]} if is_lagging else {})


def test_operations_with_low_numbers_are_compared_like_all_others() -> None:
    """A peer without any completed operation has not completed the very first one."""
    first = op(seq=0)
    assert find_lagging_gpus(job(rank(0, first), rank(1, first, completed={}))) == {}
    unknown = rank(0, first, enqueued={}, completed={})
    assert find_lagging_gpus(job(unknown, idle(1, 0))) == {}
    assert find_older_dumps(job(rank(0, first), rank(1, first, completed={}))) == []
    elsewhere = rank(
        1, op("h", 0, at=99), op("g", 0, at=100), enqueued={"g": 0, "h": 0}, completed={}
    )
    (wait,) = find_waits(job(rank(0, op("g", 0)), elsewhere, g=[0, 1], h=[1]))
    assert wait.why == "is stuck before it"


@pytest.mark.parametrize(
    "stuck",
    [op(name=name) for name in ("Broadcast", "Reduce", "Scatter", "Gather")]
    + [op(name="Send", peer=1)],
    ids=lambda stuck: stuck.op,
)
def test_an_operation_that_does_not_synchronise_all_proves_no_lagging_gpu(stuck: Pending) -> None:
    later = op("h", 3)
    enqueued, done = {"g": 9, "h": 3}, {"g": 4, "h": 2}
    first = rank(0, stuck, later, enqueued=enqueued, completed=done)
    second = rank(1, enqueued={"g": 9, "h": 3}, completed={"g": 9, "h": 3})
    assert find_lagging_gpus(job(first, second, g=[0, 1], h=[0, 1])) == {0: later}


@pytest.mark.parametrize(
    ("calls", "odd"),
    [
        (["AllReduce", "AllReduce", "AllGather"], [2]),
        (["AllReduce", "AllGather"], []),
        (["AllReduce", "AllReduce", "AllGather", "AllGather"], []),
        (["AllReduce", "AllGather", "AllReduce", "Broadcast", "AllReduce"], [1, 3]),
        (["AllReduce", "AllReduce", "AllReduce"], []),
        (["AllToAll a", "AllToAll a", "AllToAll b"], []),
        (["AllReduce a", "AllReduce b", "AllReduce a"], [1]),
    ],
)
def test_the_minority_at_one_sequence_number_is_mismatched(
    calls: list[str], odd: list[int]
) -> None:
    """Shapes of all-to-all differ between ranks by design."""
    ranks = []
    for number, call in enumerate(calls):
        name, _, shape = call.partition(" ")
        ranks.append(rank(number, op(name=name, shape=shape)))
    found = find_mismatched(job(*ranks))
    assert list(found) == odd
    common = max(calls, key=calls.count)
    where = f"group g [{', '.join(map(str, range(len(calls))))}], seq 5"
    assert all(
        text == f"called {calls[number]} where the others called {common} ({where})"
        for number, text in found.items()
    )


def test_one_call_that_agrees_hides_no_mismatch_at_another_number() -> None:
    ranks = [rank(n, op(seq=4), op(seq=5, name="AllGather" if n == 1 else "X")) for n in range(3)]
    assert list(find_mismatched(job(*ranks))) == [1]


def test_sends_of_one_number_are_no_mismatch() -> None:
    ranks = [rank(0, op()), rank(1, op()), rank(2, op(name="Send", peer=0))]
    assert find_mismatched(job(*ranks)) == {}


@pytest.mark.parametrize(("done", "older"), [(5, []), (6, [0])])
def test_a_dump_is_older_when_peers_completed_what_it_does_not_contain(
    done: int, older: list[int]
) -> None:
    assert find_older_dumps(job(rank(0, op(seq=5)), idle(1, done))) == older


def test_the_age_of_a_dump_is_not_read_from_sends_and_unknown_groups() -> None:
    behind = rank(0, op("h", 3), enqueued={"x": 1, "g": 5, "h": 3}, completed={})
    ahead = rank(1, op("g", 9, "Send", peer=0), completed={"x": 9, "g": 9, "h": 3})
    assert find_older_dumps(job(behind, ahead, g=[0, 1], h=[0, 1])) == []
    later = replace(ahead, completed={"h": 4})
    assert find_older_dumps(job(behind, later, g=[0, 1], h=[0, 1])) == [0]


@pytest.mark.parametrize(
    ("peers", "is_behind"),
    [
        pytest.param([6, 6], True, id="two peers went on"),
        pytest.param([6], False, id="one peer proves nothing"),
        pytest.param([6, 5], False, id="one of the peers did not go on"),
        pytest.param([5, 5], False, id="nobody went on"),
    ],
)
def test_a_host_is_behind_when_peers_in_the_same_operation_enqueued_more(
    peers: list[int], is_behind: bool
) -> None:
    stuck = op(seq=5)
    others = [rank(n + 1, stuck, enqueued={"g": last}) for n, last in enumerate(peers)]
    found = find_hosts_behind(job(rank(0, stuck, enqueued={"g": 5}), *others))
    assert found.get(0) == (stuck if is_behind else None)


def test_a_host_that_enqueued_more_elsewhere_is_not_behind() -> None:
    stuck = op(seq=5)
    others = [rank(n, stuck, enqueued={"g": 6, "h": 2, "own": 9}) for n in (1, 2)]
    even, more = (rank(0, stuck, enqueued={"g": 5, "h": last, "mine": 9}) for last in (2, 3))
    assert find_hosts_behind(job(even, *others)) == {0: stuck}
    assert find_hosts_behind(job(more, *others)) == {}


def test_a_host_is_compared_only_with_peers_in_its_own_first_operation() -> None:
    others = [rank(n, op(seq=6), enqueued={"g": 8}) for n in (1, 2)]
    assert find_hosts_behind(job(rank(0, op(seq=5)), *others, idle(3, 9), rank(4))) == {}
    sends = [rank(n, op(name="Send", peer=3), enqueued={"g": 5 + n}) for n in range(3)]
    assert find_hosts_behind(job(*sends)) == {}


def test_absent_ranks_are_those_the_oldest_operations_wait_for() -> None:
    oldest, later = op("g", 5), op("h", 3)
    stopped = job(rank(0, oldest, later), g=[0, 1], h=[0, 2])
    assert find_absent(stopped, find_waits(stopped)) == [1]
    answered = job(rank(0, oldest, later), idle(1, 4), g=[0, 1], h=[0, 2])
    assert find_absent(answered, find_waits(answered)) == []


@pytest.mark.parametrize(
    ("age_ns", "longest_ns", "is_stuck"),
    [(150, 100, False), (151, 100, True), (1, None, True)],
)
def test_an_operation_is_stuck_when_it_is_pending_for_far_longer_than_any_that_completed(
    age_ns: int, longest_ns: int | None, is_stuck: bool
) -> None:
    progress = replace(rank(0, op(at=200 - age_ns)), longest_completed_ns=longest_ns)
    assert is_clearly_stuck([rank(1), progress]) == is_stuck


def test_a_label_shows_eight_ranks_and_says_when_there_are_more() -> None:
    assert ProcessGroup("7", "dp", tuple(range(8))).label == "dp [0, 1, 2, 3, 4, 5, 6, 7]"
    assert ProcessGroup("7", "", tuple(range(9))).label == "group 7 [0, 1, 2, 3, 4, 5, 6, 7, …]"
    assert job(rank(0)).describe(op()) == "AllReduce seq 5 of group g [0]"
