"""Ranks on this node: read, measured, and sent within bounds."""

import asyncio
from dataclasses import replace
from itertools import pairwise

import pytest
from tests.support.live_collectives import FleetStub, record
from tests.support.waiting import PATIENCE_S

from ingero.agent.push.collective_feed import RankBatch
from ingero.agent.push.collectives import (
    PLACE_AGAIN_S,
    LiveCollectives,
    LivePolicy,
    choose_rows,
)
from ingero.agent.push.metrics import _collective_families
from ingero.agent.push.rank_report import RankPlace
from ingero.contract import names
from ingero.contract.collective import CollectiveRecord
from ingero.contract.otlp.values import MetricsRequest
from ingero.contract.types import Identity
from ingero.contract.verdict import Verdict, VerdictState
from ingero.core.collectives.columns import Collectives, from_records
from ingero.core.health.modes import PushOutcome
from ingero.transport.otlp.client import PushReply

VERDICT = Verdict(episode="e", state=VerdictState.STRAGGLER, node="n", rank=2, since=1.0)


class Feed:
    """Hands out what the test puts in."""

    def __init__(self) -> None:
        self.lost, self.problem, self.pid = 0, "", 0
        self.waiting: list[list[CollectiveRecord]] = []
        self.closed = False

    def poll(self) -> list[RankBatch]:
        batches, self.waiting = self.waiting, []
        return [
            RankBatch(
                key=records[0].global_rank, pid=self.pid, job="j",
                rank=records[0].global_rank, world_size=8,
                collectives=from_records(records), pick=lambda rows,
                r=records: [r[row] for row in rows.tolist()],
            )
            for records in batches
        ]  # fmt: skip

    def close(self) -> None:
        self.closed = True


class HandClock:
    """A clock that stands still until the test moves it."""

    now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


class Node:
    """One live source with a feed and a Fleet in the test's hand."""

    def __init__(self, **limits: float) -> None:
        self.feed, self.fleet, self.received = Feed(), FleetStub(), []
        identity = Identity(node="n", cluster="c", provider="p")
        self.live = LiveCollectives(
            [self.feed], self.fleet, identity, self.received.extend, policy=LivePolicy(**limits)
        )

    def second(self, *batches: list[CollectiveRecord], now_s: float = 0.0) -> None:
        self.feed.waiting += batches
        self.live.queue(self.live.measure(now_s))
        asyncio.run(self.live.send())


def test_each_rank_is_a_resource_with_its_own_time_and_its_collectives() -> None:
    """F067, F108: own time and idle time per step, entry and exit of each collective."""
    node = Node()
    node.second([record(seq) for seq in range(60)])
    node.second(
        [record(seq) for seq in range(60, 68)], [record(seq, rank=3) for seq in range(60, 68)]
    )
    measured = {each.resource[names.RANK]: each for each in node.fleet.measured()[-2:]}
    assert measured[2].resource == {
        names.NODE_ID: "n", names.CLUSTER_ID: "c", names.JOB_ID: "j", names.RANK: 2,
        names.NODE_RANK: 2,
        names.WORLD_SIZE: 8, names.PROVIDER: "p",
    }  # fmt: skip
    assert [
        (each.step, each.own_ms, each.idle_ms, each.span_ms)
        for each in measured[2].own_times[1:]
        # how long the step under way lasted when the pattern was seen is not known
    ] == [(step, 240.0, 238.0, 250.0) for step in (31, 32, 33)]
    assert measured[2].collectives == tuple(
        # They also stand for the sixty from which the pattern was learned. The second one of a
        # step is its anchor, from which all ranks count alike; the last waits for the next step.
        replace(record(seq), step=(seq - 1) // 2, place=(seq - 1) % 2, weight=11.333)
        for seq in range(61, 67)
    )
    assert measured[3].own_times == ()
    assert node.live.counters.records == {"nccl-plugin": 76}


def test_fast_jobs_send_means_and_a_sample_all_ranks_choose_alike() -> None:
    node = Node()
    many = [record(seq, step_ms=10) for seq in range(400)]
    node.second(many[:60])
    node.second(many[60:])
    last = node.fleet.measured()[-1]
    assert len(last.own_times) <= 25
    assert {each.step % 8 for each in last.own_times} == {0}
    sent = {(each.step, each.place) for each in last.collectives}
    assert sent == {(step, place) for step, _ in sent for place in (0, 1)}  # whole steps
    assert 24 <= len(sent) <= 68  # of 340 in 1.7 s
    stood_for = sum(each.weight for push in node.fleet.measured() for each in push.collectives)
    assert stood_for == pytest.approx(400, abs=0.01)
    assert node.live.counters.thinned == 400 - node.live.counters.collectives
    assert (
        node.live.counters.incomplete
        == sum(rank.groups.incomplete for rank in node.live.ranks.values())
        > 0
    )


def test_counters_by_operation_count_on_while_points_are_dropped_must_43() -> None:
    """No push succeeds and the queue is tiny: counts and bytes still include all that was read."""
    node = Node(max_queued_points=10)
    node.fleet.answers = [PushReply(outcome=PushOutcome.TRANSPORT)] * 5
    odd = [replace(record(seq), op="SomethingNew") for seq in range(3)]
    for begin in range(0, 400, 100):
        node.second([record(seq, step_ms=10) for seq in range(begin, begin + 100)])
    node.second(odd)
    counters = node.live.counters
    assert counters.dropped > 0 and counters.collectives == 0
    assert counters.operations == {"AllReduce": 400, "other": 3}
    assert counters.bytes["AllReduce"] == 200 * (1 << 20) + 200 * (2 << 20)
    page = {family.name: family for family in _collective_families(node.live)}
    assert page["gpu_nccl_collective_count"].samples[0] == ("", (("op_type", "AllReduce"),), 400)


def test_all_ranks_send_the_same_steps_whatever_they_saw_before() -> None:
    """An agent that starts later, and one that reads other portions, choose the same steps."""
    many = [record(seq, step_ms=10) for seq in range(2000)]
    sent = []
    for begin, portion in ((0, 100), (431, 100), (0, 37)):
        node = Node()
        for at in range(begin, 2000, portion):
            node.second(many[at : at + portion])
        found = [each for report in node.fleet.measured() for each in report.collectives]
        sent.append({each.step for each in found if each.step is not None and each.step > 500})
    assert len(sent[0]) > 20
    assert sent[0] == sent[1] == sent[2]


def test_samples_of_different_density_meet() -> None:
    rows = from_records([record(seq) for seq in range(1000)])
    dense, sparse = set(choose_rows(rows, 200).tolist()), set(choose_rows(rows, 40).tolist())
    assert sparse < dense
    assert len(sparse) <= 40


def test_a_rank_whose_steps_are_gone_sends_single_collectives_after_minutes() -> None:
    """Else it would seem to have ended, and not to be one that cannot be judged."""
    node, sent = Node(), []
    node.second([record(seq) for seq in range(60)])
    for begin in range(60, 60 + 8 * 200, 8):  # 200 seconds of calls that repeat nothing
        seqs = range(begin, begin + 8)
        node.second([replace(record(seq), size_bytes=seq**3 << 20) for seq in seqs])
        sent.append(len(node.fleet.requests))
    assert set(sent[:178]) == {sent[0]}
    assert [later - sooner for sooner, later in pairwise(sent[182:])] == [1] * 17


def test_lost_records_do_not_become_a_long_step() -> None:
    node = Node()
    node.second([record(seq) for seq in range(60)])
    node.second([record(seq) for seq in range(60, 80)])
    node.feed.lost = 40
    node.second([record(seq) for seq in range(121, 140)])
    own = [each.own_ms for each in node.fleet.measured()[-1].own_times]
    assert own == pytest.approx([240.0] * 9)


def test_what_fleet_does_not_take_waits_and_the_oldest_goes_first() -> None:
    node = Node(max_queued_points=30)
    node.fleet.answers = [PushReply(outcome=PushOutcome.TRANSPORT)] * 3
    for second in range(3):
        node.second([record(seq) for seq in range(12 * second, 12 * second + 12)])
    assert (node.live.queued_points, node.live.counters.dropped) == (24, 12)
    node.second()
    assert [each.seq for each in node.fleet.measured()[-1].collectives] == list(range(24, 36))
    assert node.live.counters.pushes == {"transport": 3, "ok": 1}
    assert node.live.queued_points == 0


def test_a_pause_that_fleet_asks_for_is_kept_and_a_refusal_is_final() -> None:
    node = Node()
    node.fleet.answers = [PushReply(outcome=PushOutcome.SHED, retry_after_s=900.0)]
    node.second([record(seq) for seq in range(4)])
    assert node.live._not_before_s > 0
    assert node.live.queued_points == 4
    node.fleet.answers = [PushReply(outcome=PushOutcome.REFUSED)]
    node.second()
    assert (node.live.queued_points, node.live.counters.dropped) == (0, 4)


async def test_a_fleet_that_does_not_answer_is_left_alone_for_longer_and_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Repeated requests would keep a busy Fleet busy; after an answer all is as before."""
    clock = HandClock()
    monkeypatch.setattr("ingero.agent.push.collectives.time", clock)
    node = Node(max_queued_points=1000)
    node.live.queue(node.live.measure(0.0))
    pauses = []
    for _ in range(6):
        node.fleet.answers = [PushReply(outcome=PushOutcome.TRANSPORT, timed_out=True)]
        node.feed.waiting = [[record(seq) for seq in range(4)]]
        node.live.queue(node.live.measure(clock.now_s))
        await node.live.send()
        pauses.append(node.live._not_before_s - clock.now_s)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    await node.live.send()
    assert node.live.queued_points == 0
    node.fleet.answers = [PushReply(outcome=PushOutcome.TRANSPORT)]
    node.feed.waiting = [[record(seq) for seq in range(4, 8)]]
    node.live.queue(node.live.measure(clock.now_s))
    await node.live.send()
    assert node.live._not_before_s - clock.now_s == 1.0


def test_verdicts_of_the_reply_are_received() -> None:
    node = Node()
    node.fleet.answers = [PushReply(outcome=PushOutcome.OK, verdicts=(VERDICT,), rejected_points=1)]
    node.second([record(0)])
    assert node.received == [VERDICT]
    assert node.live.counters.rejected == 1


def test_ranks_are_bounded_and_forgotten() -> None:
    node = Node(max_ranks=1)
    node.second([record(0, rank=1)], [record(0, rank=2)])
    assert (len(node.live.ranks), node.live.counters.refused_ranks) == (1, 1)
    node.second(now_s=1000.0)
    assert node.live.ranks == {}


def test_a_rank_without_a_number_has_the_rank_of_its_widest_communicator() -> None:
    node = Node()
    wide = replace(record(1), global_rank=None, rank=5)
    narrow = replace(record(0), global_rank=None, rank=1, nranks=2, comm=8)
    node.second([narrow, wide])
    assert node.fleet.measured()[0].resource[names.RANK] == 5


def test_it_ends_when_stopped_and_closes_its_feeds() -> None:
    node = Node()

    async def scene() -> None:
        stop = asyncio.Event()
        task = asyncio.create_task(node.live.run(stop))
        await asyncio.sleep(0.01)
        stop.set()
        await asyncio.wait_for(task, PATIENCE_S)

    asyncio.run(scene())
    assert node.feed.closed


def test_an_unexpected_reply_costs_one_round_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = Node(interval_s=0.01, collectives_per_s=1e6)
    node.feed.waiting = [[record(seq) for seq in range(8)]]
    pushed = asyncio.Event()

    async def push(request: MetricsRequest) -> PushReply:
        node.fleet.requests.append(request)
        if len(node.fleet.requests) == 1:
            raise RuntimeError("odd")
        pushed.set()
        return PushReply(outcome=PushOutcome.OK)

    monkeypatch.setattr(node.fleet, "push", push)

    async def scene() -> None:
        stop = asyncio.Event()
        task = asyncio.create_task(node.live.run(stop))
        async with asyncio.timeout(PATIENCE_S):
            while not node.live.counters.failed_rounds:
                await asyncio.sleep(0.001)
        node.feed.waiting = [[record(seq) for seq in range(8, 16)]]
        await asyncio.wait_for(pushed.wait(), PATIENCE_S)
        stop.set()
        await task

    asyncio.run(scene())
    assert (node.live.counters.failed_rounds, node.feed.closed) == (1, True)


def test_a_rank_that_cannot_be_measured_starts_over_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = Node(collectives_per_s=1e6)

    def round_of(seqs: range) -> set[int | None]:
        node.feed.waiting = [
            [replace(record(seq), global_rank=rank) for seq in seqs] for rank in (0, 1)
        ]
        return {report.identity.rank for report in node.live.measure(1.0)}

    assert round_of(range(8)) == {0, 1}

    def fail(_: Collectives) -> None:
        raise ValueError("odd")

    monkeypatch.setattr(node.live.ranks[0].stream, "take", fail)
    assert round_of(range(8, 16)) == {1}
    assert node.live.counters.failed_rounds == 1
    assert round_of(range(16, 24)) == {0, 1}


def test_why_collectives_are_missing_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    feed = Feed()
    live = LiveCollectives([feed], FleetStub(), Identity(node="n", cluster="c"), lambda _: None)
    for problem in ("", "set RANK", "", "set RANK", "cut short"):
        feed.problem = problem
        live.measure(0.0)
    assert [vars(record)["problem"] for record in caplog.records] == ["set RANK", "cut short"]


@pytest.mark.parametrize(("pids", "is_said"), [((7, 8), True), ((7, 7), False)])
def test_two_jobs_on_a_node_without_ids_are_said_once(
    pids: tuple[int, int], is_said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Their ranks have the same numbers, and Fleet cannot tell their steps apart."""
    feeds = Feed(), Feed()
    live = LiveCollectives(feeds, FleetStub(), Identity(node="n"), lambda _: None)
    for second in range(20):
        for feed, pid in zip(feeds, pids, strict=True):
            feed.pid = pid
            feed.waiting = [[record(second)]]
        live.measure(float(second))
    said = [vars(entry)["problem"] for entry in caplog.records]
    assert (
        said
        == [
            "two processes on this node are rank 2 of job j, and Fleet mixes their steps: set "
            "INGERO_JOB_ID to another value for each job"
        ]
        * is_said
    )


def test_processes_that_take_the_place_of_each_other_are_no_second_job(
    caplog: pytest.LogCaptureFixture,
) -> None:
    feed = Feed()
    live = LiveCollectives([feed], FleetStub(), Identity(node="n"), lambda _: None)
    for second in range(40):
        feed.pid, feed.waiting = second // 2, [[record(second)]]
        live.measure(float(second))
    assert caplog.records == []


def test_a_rank_says_where_it_runs_once_that_is_known() -> None:
    """A process is seen before it uses its GPU; what is known is not asked again."""
    asked: list[tuple[int, int | None]] = []

    def place_of(pid: int, local_rank: int | None) -> RankPlace:
        asked.append((pid, local_rank))
        return RankPlace("GPU-7" if len(asked) > 1 else "", "worker-0")

    node = Node()
    node.live._place_of = place_of
    node.second([record(seq) for seq in range(60)])
    assert asked == [], "without a process there is nobody to ask about"
    node.feed.pid = 42
    for second in range(4):
        first = 60 + 8 * second
        now_s = PLACE_AGAIN_S * (second // 2) + second
        node.second([record(seq) for seq in range(first, first + 8)], now_s=now_s)
    found = [each.resource for each in node.fleet.measured()]
    assert [(r.get(names.GPU_UUID), r.get(names.POD)) for r in found] == [
        (None, "worker-0"), (None, "worker-0"), ("GPU-7", "worker-0"),
        ("GPU-7", "worker-0"),
    ]  # fmt: skip
    assert asked == [(42, None)] * 2
