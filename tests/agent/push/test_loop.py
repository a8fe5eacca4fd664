"""The push loop against real HTTP: cadence, replies, backoff, socket lines, shutdown."""

import asyncio
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.scripted_fleet import Answer, ScriptedFleet, black_hole, scripted_fleet
from tests.support.waiting import PATIENCE_S, until_async

from ingero.agent.push.loop import MIN_POLL_WAIT_S, LoopSettings, PushLoop, jittered
from ingero.agent.push.signals import SignalSource, StubSource
from ingero.contract import names
from ingero.contract.otlp.codec import decode_json
from ingero.contract.otlp.values import MetricsRequest
from ingero.contract.push.decode import decode_push
from ingero.contract.straggler import Straggle, decode_line
from ingero.contract.types import DetectionMode, Identity
from ingero.contract.verdict import CauseClass, Verdict, VerdictState, encode_verdicts
from ingero.core.health.baseline import BaselinePolicy
from ingero.core.health.classifier import ClassifierPolicy
from ingero.core.health.modes import ModePolicy
from ingero.core.health.monitor import MonitorPolicy, NodeMonitor
from ingero.core.health.observation import Observation
from ingero.core.health.score import Signals
from ingero.storage.baseline_file import LoadOutcome, load_baseline
from ingero.transport.endpoint import parse_endpoint, threshold_url
from ingero.transport.otlp.client import ClientOptions, HttpPush
from ingero.transport.threshold_poll import ThresholdPoll
from ingero.transport.uds import LineServer

INTERVAL_S = 0.03
LINE = {names.THRESHOLD_HEADER: "0.80", names.QUORUM_HEADER: "true"}
BASELINE = BaselinePolicy(warmup_samples=2)
LOST = Straggle(
    pid=42,
    throughput_drop_pct=87.8,
    sched_switch_count=20,
    preempting_pids=[7],
    timestamp_ns=1,
    sustained=False,
)


class Recorded:
    """A source that plays rates, then ends."""

    def __init__(self, *rates: float | None) -> None:
        self.rates = list(rates)

    def read(self, now_ns: int) -> Observation | None:
        if not self.rates:
            return None
        rate = self.rates.pop(0)
        signals = Signals() if rate is None else Signals(rate, 0.95, 0.95, 0.95)
        return Observation(
            at_s=now_ns / 1e9, launches=None if rate is None else int(rate), signals=signals
        )

    def close(self) -> None:
        pass


def make_loop(
    url: str,
    source: SignalSource,
    *,
    timeout_s: float = PATIENCE_S,
    poll_url: str = "",
    **options: Any,
) -> PushLoop:
    chance = random.Random(1)
    policy = MonitorPolicy(
        baseline=BASELINE,
        modes=ModePolicy(push_interval_s=options.pop("fresh_s", PATIENCE_S)),
        classifier=ClassifierPolicy(confirmations=1),
    )
    client_options = ClientOptions(timeout_s=timeout_s)
    poll = (
        ThresholdPoll(threshold_url(poll_url, "c"), client_options, INTERVAL_S)
        if poll_url
        else None
    )
    return PushLoop(
        NodeMonitor(Identity(node="n1", cluster="c"), policy),
        source,
        HttpPush(parse_endpoint(url), "c", "n1", client_options, chance),
        LoopSettings(
            push_interval_s=options.pop("interval_s", INTERVAL_S),
            poll_interval_s=INTERVAL_S,
            persist_path=options.pop("persist_path", None),
        ),
        chance=chance,
        poll=poll,
        **options,
    )


async def play(loop: PushLoop) -> None:
    """Run tick by tick, each with its push, as on a machine that is fast enough."""
    while await loop.tick():
        if loop._push_task is not None:
            await loop._push_task
    await loop._shut_down()


async def run_until(loop: PushLoop, condition: Callable[[], object]) -> None:
    stop = asyncio.Event()
    running = asyncio.create_task(loop.run(stop))
    try:
        await until_async(condition)
    finally:
        stop.set()
        await asyncio.wait_for(running, PATIENCE_S)


def metrics_sent(fleet: ScriptedFleet) -> list[str]:
    posts = [
        decode_json(MetricsRequest, body)
        for request, body in fleet.requests
        if request.method == "POST"
    ]
    return [post.resource_metrics[0].scope_metrics[0].metrics[0].name for post in posts]


async def test_a_calibrating_node_counts_down_in_its_pushes() -> None:
    async with scripted_fleet() as fleet:
        await play(make_loop(fleet.url, Recorded(*[100] * 8), interval_s=10.0))
        told = [
            decode_push(decode_json(MetricsRequest, body)).reports[0].ready_s
            for _, body in fleet.requests
        ]
    assert told[:2] == [10, None], "two samples of ten seconds warm it up; then it is active"


async def test_a_slow_node_names_itself_on_both_channels_f009_f010(tmp_path: Path) -> None:
    async with scripted_fleet() as fleet:
        fleet.answer = lambda _: Answer(headers=LINE)
        socket = LineServer(tmp_path / "run" / "s.sock")
        await socket.start()
        reader, writer = await asyncio.open_unix_connection(socket.path)
        await until_async(lambda: socket.consumers == 1)
        await play(
            make_loop(fleet.url, Recorded(*[100] * 8, 20, 20, 20, *[100] * 4), socket=socket)
        )
        await socket.close()
        lines = [json.loads(line) for line in (await reader.read()).splitlines()]
        writer.close()
    kinds = [line["type"] for line in lines]
    assert kinds == ["straggler_state"] * 3 + ["straggler_resolved"]
    assert len({line["event_id"] for line in lines}) == 1
    assert lines[0]["detection_mode"] == "fleet"
    assert names.STRAGGLER_EVENT in metrics_sent(fleet)
    events = [
        body
        for (_, body), name in zip(fleet.requests, metrics_sent(fleet), strict=True)
        if name == names.STRAGGLER_EVENT
    ]
    values = [
        json.loads(body)["resourceMetrics"][0]["scopeMetrics"][0]["metrics"][0]["gauge"]
        for body in events
    ]
    assert values[0]["dataPoints"][0]["asInt"] == 1
    assert values[-1]["dataPoints"][0]["asInt"] == 0


async def test_ticks_stay_on_time_with_a_black_holed_fleet_f018() -> None:
    async with black_hole() as url:
        loop = make_loop(url, Recorded(*[100] * 40), timeout_s=0.5)
        await asyncio.wait_for(loop._tick_until(asyncio.Event()), PATIENCE_S)
        assert loop.counters.ticks == 40
        assert loop.counters.skipped_pushes["busy"] >= 10  # pushes waited, ticks did not
        await loop._shut_down()


async def test_retry_after_replaces_the_next_pushes_and_ticks_go_on() -> None:
    async with scripted_fleet() as fleet:
        fleet.answer = lambda _: Answer(429, LINE | {"Retry-After": "60"})
        loop = make_loop(fleet.url, Recorded(*[100] * 12), fresh_s=INTERVAL_S)
        await play(loop)
        assert len(fleet.requests) == 1
        assert loop.counters.skipped_pushes["backoff"] == 11
        assert loop.monitor.last is not None
        # the value is as fresh as Fleet wants it
        assert loop.monitor.last.decision.mode is DetectionMode.FLEET
        assert loop.monitor.is_reachable


async def test_an_unreachable_fleet_leaves_the_agent_on_its_own_baseline_f016() -> None:
    loop = make_loop("http://127.0.0.1:1", Recorded(*[100] * 5))
    loop._client._chance.uniform = lambda a, b: 0.0  # type: ignore[attr-defined,method-assign]
    await play(loop)
    assert loop.monitor.last is not None
    assert loop.monitor.last.decision.mode is DetectionMode.LOCAL_BASELINE
    assert not loop.monitor.is_reachable


async def test_bug_polling_goes_on_while_pushes_fail() -> None:
    async with scripted_fleet() as fleet:
        fleet.answer = lambda _: Answer(body=b'{"threshold":0.88,"quorum_met":true}')
        loop = make_loop("http://127.0.0.1:1", StubSource(), poll_url=fleet.url)
        await run_until(
            loop, lambda: len(fleet.requests) >= 3 and loop.counters.pushes["transport"] >= 3
        )
        assert loop.monitor.delivery.threshold is not None
        assert loop.monitor.delivery.threshold.value == 0.88


async def test_polling_is_suspended_while_replies_carry_thresholds() -> None:
    async with scripted_fleet() as fleet:
        fleet.answer = lambda _: Answer(headers=LINE, body=b'{"threshold":0.5,"quorum_met":true}')
        loop = make_loop(fleet.url, StubSource(), poll_url=fleet.url)
        await run_until(loop, lambda: loop.counters.polls["suspended"] >= 5)
        assert loop.monitor.delivery.threshold is not None
        assert loop.monitor.delivery.threshold.value == 0.80


async def test_verdicts_are_sent_once_per_change_and_to_new_readers(tmp_path: Path) -> None:
    def verdict(state: VerdictState) -> dict[str, str]:
        return {
            names.VERDICT_HEADER: encode_verdicts(
                [Verdict(episode="e", state=state, node="n1", since=1.0)]
            )
        }

    async with scripted_fleet() as fleet:
        fleet.answer = lambda count: Answer(
            headers=verdict(VerdictState.SUSPECT if count < 5 else VerdictState.STRAGGLER)
        )
        socket = LineServer(tmp_path / "s.sock")
        loop = make_loop(fleet.url, Recorded(*[100] * 12), socket=socket)
        sent: list[bytes] = []
        socket.send = sent.append  # type: ignore[method-assign] # what the socket is given
        await play(loop)
        states = [json.loads(line)["state"] for line in sent if b'"verdict"' in line]
        assert states == ["suspect", "straggler"]
        assert [json.loads(line)["type"] for line in loop.reporter.snapshot()] == ["verdict"]
        assert len(loop.reporter.verdicts) == 1
        assert loop.counters.verdicts == {"suspect": 1, "straggler": 1}


async def test_the_end_of_an_episode_is_sent_once_and_only_changes_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Fleet repeats a resolved verdict for a minute.

    Small changes of its figures are sent to the socket only.
    """
    slow = Verdict(
        episode="e", state=VerdictState.STRAGGLER, node="n1", rank=5, since=1.0, excess=0.05,
        error=0.01,
        cause_class=CauseClass.HOST, next_step="look at the host",
    )  # fmt: skip
    over = msgspec.structs.replace(slow, state=VerdictState.RESOLVED)
    socket = LineServer(tmp_path / "s.sock")
    sent: list[bytes] = []
    socket.send = sent.append  # type: ignore[method-assign] # what the socket is given
    loop = make_loop("http://127.0.0.1:1", Recorded(), socket=socket)
    with caplog.at_level("INFO"):
        for verdict in (slow, slow, msgspec.structs.replace(slow, excess=0.051), over, over, over):
            loop.reporter.receive([verdict])
    assert [(json.loads(line)["state"], json.loads(line)["excess"]) for line in sent] == [
        ("straggler", 0.05), ("straggler", 0.051), ("resolved", 0.05)
    ]  # fmt: skip
    first, last = caplog.records
    assert (first.levelname, last.levelname) == ("WARNING", "INFO")
    logged = {
        key: getattr(first, key) for key in ("node", "rank", "class", "excess", "since", "next")
    }
    assert logged == {
        "node": "n1", "rank": 5, "class": "host", "excess": 0.05,
        "since": "1970-01-01T00:00:01.000000000Z",
        "next": "look at the host",
    }  # fmt: skip
    assert loop.reporter.verdicts == {}


async def test_a_failed_read_pushes_nothing() -> None:
    async with scripted_fleet() as fleet:
        loop = make_loop(fleet.url, Recorded(100, 100, None, 100))
        await loop.run(asyncio.Event())
        assert loop.counters.failed_reads == 1
        assert len(fleet.requests) <= 3


async def test_baseline_is_saved_at_the_end_and_not_before_it_is_warm(tmp_path: Path) -> None:
    async with scripted_fleet() as fleet:
        path = tmp_path / "baseline.json"
        await make_loop(fleet.url, Recorded(100), persist_path=path).run(asyncio.Event())
        assert not path.exists()
        await make_loop(fleet.url, Recorded(*[100] * 5), persist_path=path).run(asyncio.Event())
        loaded = load_baseline(path, BASELINE, 2**62, 1e12)
        assert loaded.outcome is LoadOutcome.FRESH


async def test_a_baseline_that_cannot_be_saved_is_no_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with scripted_fleet() as fleet:
        await make_loop(
            fleet.url, Recorded(*[100] * 5), persist_path=Path("/proc/none/b.json")
        ).run(asyncio.Event())
    assert "baseline_not_saved" in [record.msg for record in caplog.records]


async def test_stop_ends_the_loop_while_it_sleeps() -> None:
    async with scripted_fleet() as fleet:
        loop = make_loop(fleet.url, StubSource(), interval_s=3600.0)
        await run_until(loop, lambda: loop.counters.ticks)


async def test_a_hanging_source_is_a_failed_read_and_not_a_hanging_agent() -> None:
    import threading

    release = threading.Event()

    class Hanging(StubSource):
        def read(self, now_ns: int) -> Observation:
            release.wait(PATIENCE_S)
            return super().read(now_ns)

    async with scripted_fleet() as fleet:
        loop = make_loop(fleet.url, Hanging())
        assert await asyncio.wait_for(loop.tick(), PATIENCE_S / 2)
        assert loop.counters.failed_reads == 1
        release.set()
        await loop._shut_down()


async def test_a_source_or_client_that_fails_costs_one_read_or_push_only(
    caplog: Any,
) -> None:
    class Moody(Recorded):
        def read(self, now_ns: int) -> Observation | None:
            if len(self.rates) == 3:
                self.rates.pop()
                raise RuntimeError("out of order")
            return super().read(now_ns)

    async with scripted_fleet() as fleet:
        loop = make_loop(fleet.url, Moody(*[100] * 6))

        async def broken(*_: object, **__: object) -> object:
            raise RuntimeError("no client")

        loop._client.push = broken  # type: ignore[assignment] # on purpose
        await loop.run(asyncio.Event())
    assert (loop.counters.ticks, loop.counters.failed_reads) == (6, 1)
    assert set(loop.counters.pushes) == {"transport"}
    assert not loop.monitor.is_reachable
    assert {record.problem for record in caplog.records if record.message == "look_failed"} == {
        "RuntimeError: out of order"
    }


async def test_a_process_that_lost_its_cpu_is_reported_on_the_socket(tmp_path: Path) -> None:
    class Preempted(Recorded):
        def read(self, now_ns: int) -> Observation | None:
            look = super().read(now_ns)
            return look and replace(look, straggles=(LOST,))

    socket = LineServer(tmp_path / "run" / "s.sock")
    await socket.start()
    reader, writer = await asyncio.open_unix_connection(socket.path)
    await until_async(lambda: socket.consumers == 1)
    loop = make_loop("http://127.0.0.1:1", Preempted(100), socket=socket)
    loop.monitor.identity = Identity(node="n1", cluster="c", rank=0, world_size=2)
    await loop.run(asyncio.Event())
    await socket.close()
    lines = (await reader.read()).splitlines()
    writer.close()
    assert [decode_line(line) for line in lines] == [
        msgspec.structs.replace(LOST, rank=0, world_size=2)
    ]
    assert loop.counters.straggles == 1


def test_jitter_vector_88() -> None:
    chance = random.Random(88)
    draws = [jittered(0.1, 0.2, chance) for _ in range(1000)]
    assert 0.08 <= min(draws) < 0.085
    assert 0.115 < max(draws) <= 0.12


async def test_a_poll_waits_at_least_a_second_whatever_retry_after_states() -> None:
    """`Retry-After: 0` with 429 must not become a loop without a pause."""
    async with scripted_fleet() as fleet:
        fleet.answer = lambda _: Answer(429, {"Retry-After": "0"})
        loop = make_loop("http://127.0.0.1:1", StubSource(), poll_url=fleet.url)
        began_s = asyncio.get_running_loop().time()
        await run_until(
            loop, lambda: loop.counters.polls["rate_limited"] and loop.counters.ticks >= 20
        )
        seconds = asyncio.get_running_loop().time() - began_s
        assert loop.counters.polls["rate_limited"] <= 1 + seconds / MIN_POLL_WAIT_S
