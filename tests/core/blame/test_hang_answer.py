"""What the answer about a stopped job says: mechanism, confidence, evidence and doubt."""

from collections.abc import Sequence

import pytest

from ingero.contract.verdict import CauseClass
from ingero.core.blame.answer import NEXT_STEPS, Answer
from ingero.core.blame.hang import NEXT_STEP, blame_hang
from ingero.core.blame.wait_graph import Pending, ProcessGroup, RankProgress


def op(
    group: str = "g", seq: int = 5, name: str = "AllReduce", *, at: int = 100,
    peer: int | None = None, is_started: bool | None = None,
) -> Pending:  # fmt: skip
    return Pending(group, seq, name, "", peer, at, is_started)


def rank(number: int, *pending: Pending, last: int = 5, done: int = 4) -> RankProgress:
    return RankProgress(number, {"g": last}, {"g": done}, pending, 200, None)


def ask(ranks: Sequence[RankProgress], world: int = 0, **groups: Sequence[int]) -> Answer:
    members = groups or {"g": range(world or len(ranks))}
    named = {name: ProcessGroup(name, name, tuple(those)) for name, those in members.items()}
    answer = blame_hang(ranks, named, world or len(ranks), False)
    assert answer is not None
    return answer


def mechanisms(answer: Answer) -> list[tuple[int | None, str, float]]:
    return [(c.rank, c.detail.partition(":")[0], c.confidence) for c in answer.culprits]


STUCK = [rank(n, op()) for n in range(3)]
SILENT = rank(3, last=4)


def test_a_host_that_stopped_is_named_with_all_that_is_known() -> None:
    answer = ask([*STUCK, SILENT])
    (culprit,) = answer.culprits
    what = "AllReduce seq 5 of g [0, 1, 2, 3]"
    text = f"host stopped: all it enqueued is done, it never enqueued {what}"
    assert (culprit.worker, culprit.rank, culprit.cause) == ("rank 3", 3, CauseClass.HANG)
    assert (culprit.detail, culprit.confidence) == (f"host_lock: {text}", 0.95)
    assert (culprit.collective, culprit.next_step) == (what, NEXT_STEP["host_lock"])
    assert answer.evidence == (
        f"rank 3: {text}",
        f"ranks 0, 1, 2 wait in {what} for rank 3, which never enqueued it",
    )
    assert (answer.source, answer.gpus) == ("flight recorder (stopped job)", 4)
    assert (answer.cause, answer.not_sure, answer.notes) == (CauseClass.HANG, None, ())


def test_a_gpu_that_completes_nothing_and_a_mismatch_are_named_beside_each_other() -> None:
    ahead = [rank(n, op(seq=6), last=6, done=5) for n in (0, 1)]
    odd = rank(2, op(seq=6, name="AllGather"), last=6, done=5)
    late = rank(3, op(), op(seq=6), last=6)
    answer = ask([*ahead, odd, late])
    assert mechanisms(answer) == [(2, "mismatch", 0.9), (3, "gpu_error", 0.95)]
    assert answer.culprits[0].collective is None
    assert answer.culprits[1].collective == "AllReduce seq 5 of g [0, 1, 2, 3]"
    assert "enqueue 2 operations" in answer.culprits[1].detail
    assert [c.next_step for c in answer.culprits] == [
        NEXT_STEP["mismatch"], NEXT_STEP["gpu_error"],
    ]  # fmt: skip
    assert answer.not_sure is None


def test_a_transfer_is_not_called_stuck_where_a_call_differs() -> None:
    answer = ask([rank(0, op()), rank(1, op()), rank(2, op(name="AllGather"))])
    assert mechanisms(answer) == [(2, "mismatch", 0.9)]
    assert not any("the transfer is stuck" in line for line in answer.evidence)
    (line,) = ask(STUCK).evidence
    assert line.endswith("none completes it: the transfer is stuck")


def test_a_rank_that_waits_twice_for_a_culprit_is_listed_once() -> None:
    """Rank 0 is stuck in two groups, and rank 1 stopped before both."""
    first = RankProgress(
        0, {"g": 5, "h": 3}, {"g": 4, "h": 2}, (op(), op("h", 3, at=101)), 200, None
    )
    stopped = RankProgress(1, {"g": 4, "h": 2}, {"g": 4, "h": 2}, (), 200, None)
    answer = ask([first, stopped], g=[0, 1], h=[0, 1])
    assert answer.evidence[1:] == (
        "rank 0 waits in AllReduce seq 5 of g [0, 1] for rank 1, which never enqueued it",
    )


def test_ranks_that_wait_for_each_other_are_a_hang_without_culprit() -> None:
    """Each of two ranks is stuck in the group that the other did not enter; a third one waits."""
    first = RankProgress(0, {"g": 5, "h": 2}, {"g": 4, "h": 2}, (op(),), 200, None)
    second = RankProgress(1, {"g": 4, "h": 3}, {"g": 4, "h": 2}, (op("h", 3),), 200, None)
    third = RankProgress(2, {"g": 5, "h": 2}, {"g": 4, "h": 2}, (op(),), 200, None)
    answer = ask([first, second, third], g=[0, 1, 2], h=[0, 1])
    assert (answer.culprits, answer.cause) == ((), CauseClass.HANG)
    assert answer.not_sure is not None and answer.not_sure.startswith("ranks 0, 1 wait for each")
    one, other = "AllReduce seq 5 of g [0, 1, 2]", "AllReduce seq 3 of h [0, 1]"
    assert answer.evidence == (
        f"rank 0 waits in {one} for rank 1, which never enqueued it",
        f"rank 1 waits in {other} for rank 0, which never enqueued it",
        f"rank 2 waits in {one} for rank 1, which never enqueued it",
    )


def test_a_lagging_gpu_with_another_call_is_named_once() -> None:
    ahead = [rank(n, op(seq=6), last=6, done=5) for n in (0, 1)]
    both = rank(2, op(), op(seq=6, name="AllGather"), last=6)
    assert mechanisms(ask([*ahead, both])) == [(2, "gpu_error", 0.95)]


def test_a_host_behind_its_peers_is_less_certain() -> None:
    ahead = [rank(n, op(), last=7) for n in (0, 1)]
    answer = ask([*ahead, rank(2, op(), last=6)])
    assert mechanisms(answer) == [(2, "host_lock", 0.75)]
    assert answer.culprits[0].collective == "AllReduce seq 5 of g [0, 1, 2]"


def test_a_gpu_that_never_started_ends_the_chain_of_waits() -> None:
    running = [rank(n, op(is_started=True)) for n in (0, 1)]
    answer = ask([*running, rank(2, op(is_started=False))])
    assert mechanisms(answer) == [(2, "gpu_stuck", 0.9)]
    assert answer.culprits[0].next_step == NEXT_STEP["gpu_stuck"]
    assert answer.not_sure is None


def test_the_end_of_a_chain_without_signature_is_named_with_doubt() -> None:
    """Rank 0 waits for rank 1, which waits for the answer of rank 2."""
    send = op("h", 3, "Send", peer=2, at=90)
    second = RankProgress(1, {"g": 4}, {"g": 4}, (send,), 200, None)
    third = RankProgress(2, {}, {}, (), 200, None)
    answer = ask([rank(0, op()), second, third], g=[0, 1], h=[1, 2])
    assert mechanisms(answer) == [(2, "unknown", 0.7)]
    (culprit,) = answer.culprits
    assert culprit.detail == "unknown: others wait for it in Send seq 3 of h [1, 2]"
    assert culprit.next_step == NEXT_STEPS[CauseClass.HANG]
    assert answer.not_sure is not None and "second dump" in answer.not_sure
    assert answer.evidence == (
        "rank 2: others wait for it in Send seq 3 of h [1, 2]",
        "rank 1 waits in Send seq 3 of h [1, 2] for rank 2, which has not answered",
        "rank 0 waits behind those",
    )


@pytest.mark.parametrize(("absent", "confidence"), [(1, 0.8), (2, 0.4), (3, 0.27)])
def test_ranks_without_dump_share_the_confidence(absent: int, confidence: float) -> None:
    answer = ask(STUCK, world=3 + absent)
    assert mechanisms(answer) == [(3 + n, "no_dump", confidence) for n in range(absent)]
    assert all(c.next_step == NEXT_STEP["no_dump"] for c in answer.culprits)
    everybody = ", ".join(map(str, range(3 + absent)))
    text = f"left no dump, and AllReduce seq 5 of g [{everybody}] waits for it"
    assert [c.detail for c in answer.culprits] == [f"no_dump: {text}"] * absent
    missing = ", ".join(str(3 + n) for n in range(absent))
    assert answer.notes == (f"partial set: dumps of 3 of {3 + absent} ranks; missing {missing}",)
    assert (answer.not_sure is None) == (absent == 1)


def test_an_absent_rank_beside_a_culprit_leaves_a_doubt() -> None:
    answer = ask([*STUCK, SILENT], world=5)
    assert mechanisms(answer) == [(3, "host_lock", 0.95)]
    assert answer.not_sure is not None and answer.not_sure.startswith("ranks 4 left no dump and")


def test_a_stuck_transfer_names_what_everybody_has_reached() -> None:
    answer = ask(STUCK)
    assert (answer.culprits, answer.cause) == ((), CauseClass.NETWORK)
    assert answer.evidence == (
        "every rank reached AllReduce and none completes it: the transfer is stuck",
    )


def test_a_list_of_ranks_ends_after_sixteen() -> None:
    for waiting, shown in ((16, ""), (17, " and 1 more")):
        ranks = [rank(n, op()) for n in range(waiting)]
        answer = ask([*ranks, rank(waiting, last=4)])
        listed = ", ".join(map(str, range(16)))
        assert answer.evidence[1].startswith(f"ranks {listed}{shown} wait in AllReduce")


def test_the_four_largest_groups_of_waiting_ranks_are_evidence() -> None:
    """Five groups share rank 0, which stopped; the one with most members comes first."""
    sizes, ranks, groups, at = [1, 3, 2, 1, 1], [], {}, 1
    for number, size in enumerate(sizes):
        name = f"g{number}"
        groups[name] = [0, *range(at, at + size)]
        for _ in range(size):
            ranks.append(RankProgress(at, {name: 5}, {name: 4}, (op(name),), 200, None))
            at += 1
    stopped = RankProgress(0, dict.fromkeys(groups, 4), dict.fromkeys(groups, 4), (), 200, None)
    answer = ask([stopped, *ranks], **groups)
    beginnings = [line.partition(" in ")[0] for line in answer.evidence[1:]]
    assert beginnings == [
        "ranks 2, 3, 4 wait", "ranks 5, 6 wait", "rank 1 waits", "rank 7 waits",
    ]  # fmt: skip


def test_dumps_that_are_older_than_others_are_pointed_out() -> None:
    ranks = [rank(0, op(seq=7), last=7, done=6), rank(1, op(seq=7), last=7, done=6), SILENT]
    answer = ask(ranks, g=[0, 1, 3])
    assert answer.evidence[-1].startswith("the dumps of ranks 3 are older than their peers'")


def test_timed_dumps_are_a_hang_only_if_an_operation_is_clearly_stuck() -> None:
    groups = {"g": ProcessGroup("g", "g", (0, 1))}
    for longest_ns, is_hang in ((66, True), (67, False)):  # pending for 100 ns
        ranks = [
            RankProgress(0, {"g": 5}, {"g": 4}, (op(),), 200, longest_ns),
            RankProgress(1, {"g": 4}, {"g": 4}, (), 200, longest_ns),
        ]
        assert (blame_hang(ranks, groups, 2, True) is not None) == is_hang
        assert blame_hang(ranks, groups, 2, False) is not None
