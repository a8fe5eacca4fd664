"""The agent sends signals of its ranks and answers each ask of Fleet once."""

import asyncio
import os
import time
from collections.abc import Callable

import pytest
from tests.support.apart import Apart
from tests.support.waiting import until_async

from ingero.agent.causes import watch as module
from ingero.agent.causes.gpu_signals import GpuSignals
from ingero.agent.causes.look import RankProcess
from ingero.agent.causes.watch import MAX_WAITING, CauseWatch
from ingero.agent.push.cause_metrics import cause_families
from ingero.contract.causes import Ask, CauseKind, RankSignals, Signal, decode_signals
from ingero.contract.exposition import render
from ingero.contract.otlp.values import MetricsRequest
from ingero.contract.types import Identity
from ingero.core.health.modes import PushOutcome
from ingero.transport.otlp.client import PushReply

WHO = Identity(node="n1", cluster="c")
Start = Callable[..., int]


class Fleet:
    """Answers every push with the same asks, and keeps what was pushed."""

    def __init__(self, *asks: Ask) -> None:
        self.asks = asks
        self.pushed: list[RankSignals] = []

    async def push(self, request: MetricsRequest) -> PushReply:
        self.pushed += decode_signals(request)
        return PushReply(outcome=PushOutcome.OK, asks=self.asks)


def make(fleet: Fleet, *ranks: RankProcess, look_s: float = 1.0) -> CauseWatch:
    watch = CauseWatch(fleet, WHO, GpuSignals(lambda: None), look_s)
    for rank in ranks:
        watch.note(rank.pid, rank, time.monotonic())
    return watch


def test_signals_are_those_between_two_readings(apart: Apart) -> None:
    watch = make(Fleet(), RankProcess(os.getpid(), "j", 3))
    now_s = time.monotonic()
    assert watch.read_signals(now_s) == []
    (resource,) = watch.read_signals(now_s + 5.0)
    (found,) = decode_signals(MetricsRequest((resource,)))
    assert 0.0 <= found.signals[Signal.CPU_SHARE] <= 1.0
    assert {Signal.RUNQUEUE_SHARE, Signal.QUOTA_SHARE, Signal.MAJOR_FAULTS} <= set(found.signals)
    assert found.resource["ingero.rank"] == 3
    assert found.resource["ingero.job.id"] == "j"


def test_ranks_that_ended_or_stopped_are_forgotten(apart: Apart) -> None:
    watch = make(Fleet(), RankProcess(os.getpid(), "j", 3), RankProcess(2**22 - 1, "j", 4))
    now_s = time.monotonic()
    watch.read_signals(now_s)
    assert [rank.rank for rank in [kept.rank for kept in watch._ranks.values()]] == [3]
    watch.read_signals(now_s + 10_000.0)
    assert not watch._ranks


async def test_an_ask_leads_to_one_look_and_one_answer(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAUSE_S", 0.0)
    ranks = [RankProcess(start(mode), "j", rank) for rank, mode in enumerate(["lock", "healthy"])]
    ask = Ask(episode="e", job="j", rank=0, cause_class="host", late=0.5)
    fleet = Fleet(ask)
    watch, stop = make(fleet, *ranks, look_s=4.0), asyncio.Event()
    running = asyncio.create_task(watch.run(stop))
    watch.receive([ask, ask])
    await until_async(lambda: any(each.findings for each in fleet.pushed))
    stop.set()
    await running
    findings = [finding for each in fleet.pushed for finding in each.findings]
    assert [(each.episode, each.number) for each in findings] == [("e", 1)]
    assert findings[0].kind is CauseKind.LOCK
    assert "waits for a lock" in findings[0].text
    assert watch.counters.asks == watch.counters.looks == watch.counters.found == 1
    page = render(cause_families(watch)).decode()
    assert 'ingero_agent_cause_asks_total{outcome="found"} 1' in page
    assert cause_families(None) == []


def test_asks_about_unknown_ranks_and_too_many_asks_are_refused() -> None:
    watch = make(Fleet())
    assert watch.answer(Ask(episode="e", job="j", rank=7)) is None
    watch.receive([Ask(episode=str(number)) for number in range(MAX_WAITING + 3)])
    assert watch.counters.asks == MAX_WAITING
    assert watch.counters.refused_asks == 2


def test_an_ask_without_a_rank_is_about_the_only_rank_of_the_node() -> None:
    one, two = RankProcess(1, "j", None), RankProcess(2, "j", 1)
    assert make(Fleet(), one)._find(Ask(episode="e", job="j")) == one
    assert make(Fleet(), two)._find(Ask(episode="e")) == two
    assert make(Fleet(), one, two)._find(Ask(episode="e", job="j", rank=1)) == two
    assert make(Fleet(), two, RankProcess(3, "j", 2))._find(Ask(episode="e", job="j")) is None
