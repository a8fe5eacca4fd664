"""Three replicas of Fleet on a real Valkey or Redis (F058): kills, fail-over, an engine away.

`make e2e-replicas` runs it, two tests at a time; it takes three minutes. RATE sets the pushes per
second.
"""

import asyncio
import contextlib
import itertools
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis
from aiohttp import web
from tests.support.pushes import loopback_config, protobuf
from tests.support.replica_processes import Replica, Senders
from tests.support.valkey import engine, watched_pair

from ingero.contract.otlp.body import Encoding
from ingero.contract.replicas.entries import Tick, decode_entry
from ingero.fleet.app import FleetService

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(240),
    pytest.mark.skipif(
        "INGERO_TEST_REPLICAS" not in os.environ, reason="takes minutes: `make e2e-replicas`"
    ),
]
RATE = float(os.environ.get("RATE", "2000"))
INGERO: dict[str, Any] = {"push_interval": "2s", "verdict": {"warmup_samples": 20}}
QUICK: dict[str, Any] = {"processors": {"ingero": INGERO}}


@contextlib.contextmanager
def replicas(url: str, folder: Path, *names: str, **config: Any) -> Iterator[list[Replica]]:
    started: list[Replica] = []
    try:
        for name in names:
            started.append(Replica(name, url, folder, **(config or QUICK)))
        yield started
    finally:
        for replica in started:
            replica.kill()


async def until(condition: Callable[[], Any], within_s: float, what: str) -> float:
    """Wait in a thread, and return how long it took."""
    began_s = time.monotonic()
    while not await asyncio.to_thread(condition):
        assert time.monotonic() - began_s < within_s, what
        await asyncio.sleep(0.1)
    return time.monotonic() - began_s


async def longest_wait() -> float:
    """Return, when cancelled, how long this process had to wait for a core at most."""
    longest_s = 0.0
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            began_s = time.monotonic()
            await asyncio.sleep(0.05)
            longest_s = max(longest_s, time.monotonic() - began_s - 0.05)
    return longest_s


def ticks(port: int) -> list[float]:
    """Return the times of the ticks in the log."""
    client = redis.Redis(port=port)
    found = client.xrange("ingero:{fleet}:log")
    client.close()
    return [
        int(position.split(b"-")[0]) / 1e3
        for position, fields in found
        if isinstance(decode_entry(fields[b"e"]), Tick)
    ]


def agreed(found: list[Replica]) -> set[bytes]:
    """Return what replicas answer about the cluster: one answer, unless they differ.

    Call it when nobody pushes any more: ages of nodes are as of the last tick.
    """
    keys = ("threshold", "quorum_met", "nodes", "verdicts")
    return {msgspec.json.encode({k: each.status().get(k) for k in keys}) for each in found}


@pytest.mark.xdist_group("first")
async def test_replicas_are_killed_in_turn_while_a_rank_becomes_slow(tmp_path: Path) -> None:
    with engine(tmp_path / "engine") as server:
        url = f"valkey://127.0.0.1:{server.port}"
        with replicas(url, tmp_path, "a", "b", "c") as found:
            await until(lambda: all(each.is_ready for each in found), 30, "not ready")
            async with Senders(found, nodes=400, rate=RATE, slow_after_s=45) as senders:
                await asyncio.sleep(28)
                senders.cold = 0
                starved = asyncio.create_task(longest_wait())
                episodes = set()
                for victim in found:
                    victim.kill()
                    await asyncio.sleep(4)
                    victim.start_again()
                    joined_s = await until(lambda each=victim: each.is_ready, 30, "no return")  # type: ignore[misc]
                    print(f"{victim.name} took pushes again after {joined_s:.1f} s")
                    await asyncio.sleep(6)
                    for each in found:
                        episodes |= {(v["rank"], v["episode"]) for v in each.status()["verdicts"]}
                await until(lambda: len(found[0].status()["verdicts"]) > 0, 60, "not named")
                for each in found:
                    episodes |= {(v["rank"], v["episode"]) for v in each.status()["verdicts"]}
                took_s = time.time() - senders.began_s
                starved.cancel()
                starved_s = await starved
            await until(lambda: len(agreed(found)) == 1, 9, "replicas answer differently")
            print(
                f"{senders.accepted / took_s:.0f} pushes/s accepted, {senders.failed} connections "
                f"lost, {senders.refused} refused, cold starts {senders.cold}"
            )
            seconds = [int(at_s) for at_s in ticks(server.port)]
            gaps = [b - a for a, b in itertools.pairwise(seconds) if b - a != 1]
            print(f"{len(seconds)} ticks in the log, longer than a second apart: {gaps}")
            print(f"this process itself had to wait for up to {starved_s:.1f} s")
            assert gaps == [] or starved_s > 0.5
            assert senders.cold == 0
            assert {rank for rank, _ in episodes} == {5}
            assert len(episodes) == 1
            assert (
                sum(each.metric("ingero_fleet_log_digest_mismatches_total") for each in found) == 0
            )
            assert found[0].status()["nodes_by_state"]["active"] == 400


@pytest.mark.xdist_group("second")
async def test_sentinel_fails_over(tmp_path: Path) -> None:
    with watched_pair(tmp_path) as (primary, copy, ports):
        url = "valkey+sentinel://" + ",".join(f"127.0.0.1:{port}" for port in ports) + "/fleet"
        with replicas(url, tmp_path, "a", "b", "c") as found:
            await until(lambda: all(each.is_ready for each in found), 60, "not ready")
            async with Senders(found, nodes=100, rate=min(RATE, 300)) as senders:
                await asyncio.sleep(8)
                before = senders.no_quorum
                primary.kill()
                await asyncio.sleep(14)
                assert senders.no_quorum == before
            await until(lambda: len(agreed(found)) == 1, 9, "replicas answer differently")
            at_s = ticks(copy.port)
            pause_s = max(b - a for a, b in itertools.pairwise(at_s))
            print(f"longest pause of ticks {pause_s:.2f} s")
            assert pause_s <= 5.5
            assert all(each.status()["verdicts"] == [] for each in found)
            assert all(each.status()["nodes_by_state"]["active"] == 100 for each in found)


@pytest.mark.xdist_group("second")
async def test_the_engine_is_away_and_comes_back_empty(tmp_path: Path) -> None:
    """With a push interval of 2 s, half a minute is what ten minutes are with one of 10 s."""
    with engine(tmp_path / "engine") as server:
        url = f"valkey://127.0.0.1:{server.port}"
        with replicas(url, tmp_path, "a", "b", "c") as found:
            await until(lambda: all(each.is_ready for each in found), 30, "not ready")
            async with Senders(found, nodes=100, rate=min(RATE, 300)) as senders:
                await until(lambda: found[0].status().get("quorum_met"), 30, "no quorum")
                await asyncio.sleep(3)
                senders.no_quorum = 0
                server.kill()
                away_s = time.monotonic()
                await asyncio.sleep(5)
                assert senders.no_quorum == 0  # the last threshold holds
                await until(lambda: senders.no_quorum > 0, 15, "agents do not fall back")
                print(f"without quorum after {time.monotonic() - away_s:.1f} s")
                await asyncio.sleep(20)
                server.start_again()
                back = await until(lambda: _has_quorum(senders), 15, "no quorum after the return")
                print(f"quorum again {back:.1f} s after the return")
            assert all(each.status()["verdicts"] == [] for each in found)
            assert all(each.status()["nodes_by_state"]["active"] == 100 for each in found)
            await until(lambda: len(agreed(found)) == 1, 9, "replicas answer differently")


def _has_quorum(senders: Senders) -> bool:
    accepted, without = senders.accepted, senders.no_quorum
    time.sleep(0.3)
    return senders.accepted > accepted + 10 and senders.no_quorum == without


@pytest.mark.xdist_group("second")
async def test_a_late_replica_never_answers_a_cold_start(tmp_path: Path) -> None:
    with engine(tmp_path / "engine") as server:
        url = f"valkey://127.0.0.1:{server.port}"
        with replicas(url, tmp_path, "a", "b") as found:
            await until(lambda: all(each.is_ready for each in found), 30, "not ready")
            async with Senders(found, nodes=100, rate=min(RATE, 300)):
                await until(lambda: found[0].status().get("quorum_met"), 30, "no quorum")
                late = Replica("late", url, tmp_path, **QUICK)
                try:
                    assert not late.is_ready
                    status, text = late.get("threshold", "/api/v1/threshold?cluster_id=train")
                    assert (status, "catching up" in text) == (503, True)
                    async with Senders([late], nodes=100, rate=100) as asking:
                        await until(lambda: asking.accepted > 50, 30, "it takes no pushes")
                    assert asking.refused > 0
                    assert (asking.cold, asking.no_quorum) == (0, 0)
                    other = Replica(
                        "other", url, tmp_path, processors={"ingero": {"push_interval": "3s"}}
                    )
                    try:
                        await asyncio.sleep(6)
                        status, text = other.get("health", "/readyz")
                        assert status == 503
                        assert "runs with another version or other settings" in text
                    finally:
                        other.kill()
                finally:
                    late.kill()


@contextlib.asynccontextmanager
async def two_backends(received: list[bytes]) -> AsyncIterator[str]:
    """Serve a backend that answers at `/good`, and at `/held` one that never does."""

    async def take(request: web.Request) -> web.Response:
        received.append(await request.read())
        return web.Response(body=b"", content_type="application/x-protobuf")

    async def hold(request: web.Request) -> web.Response:
        await asyncio.sleep(3600)
        return web.Response()

    app = web.Application()
    app.router.add_post("/good/v1/logs", take)
    app.router.add_post("/held/v1/logs", hold)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def sending_logs_to(url: str) -> dict[str, Any]:
    exporter = {"endpoint": url, "tls": {"insecure": True}, "compression": "none"}
    pipelines = {
        "metrics": {"processors": ["ingero"]},
        "logs": {"exporters": ["otlphttp/logs"]},
    }
    exporters = {"otlphttp/logs": exporter}
    return {**QUICK, "exporters": exporters, "service": {"pipelines": pipelines}}


@pytest.mark.xdist_group("second")
async def test_what_a_killed_sender_did_not_send_is_sent_by_the_next_one_once(
    tmp_path: Path,
) -> None:
    received: list[bytes] = []
    async with two_backends(received) as base:
        with engine(tmp_path / "engine") as server, contextlib.ExitStack() as stack:
            url = f"valkey://127.0.0.1:{server.port}"
            found = [
                stack.enter_context(
                    replicas(url, tmp_path, name, **sending_logs_to(f"{base}/{where}"))
                )[0]
                for name, where in (("a", "held"), ("b", "good"), ("c", "good"))
            ]
            await until(lambda: all(each.is_ready for each in found), 30, "not ready")
            async with Senders(found, nodes=50, rate=50, slow_after_s=30):
                await until(lambda: found[1].status().get("verdicts"), 120, "nobody is named")
                assert received == []  # the first by name sends, and its backend does not answer
                found[0].kill()
                took_s = await until(lambda: received, 20, "the verdict is lost")
                print(f"the verdict arrived {took_s:.1f} s after its sender was killed")
                await asyncio.sleep(8)
                episode = found[1].status()["verdicts"][0]["episode"].encode()
                state = b"suspect"
                first = [body for body in received if episode in body and state in body]
                assert len(first) <= 1
                assert any(episode in body for body in received)
                assert len(received) == len(set(received))


@pytest.mark.xdist_group("first")
async def test_a_state_that_differs_is_healed_on_a_real_engine(tmp_path: Path) -> None:
    with engine(tmp_path / "engine") as server:
        url = f"valkey://127.0.0.1:{server.port}"
        services = [
            FleetService(loopback_config(cluster_log={"url": url, "replica": name}, **QUICK))
            for name in "abc"
        ]
        try:
            for service in services:
                await service.start()
            found = [service.replica for service in services if service.replica is not None]
            await until(lambda: all(each.is_ready for each in found), 30, "not ready")
            pushing = asyncio.create_task(_push(services))
            await until(lambda: services[2].processor.served("train").quorum_met, 30, "no quorum")
            await until(lambda: any(each.counters.snapshots for each in found), 30, "no snapshot")
            cluster = services[1].processor.clusters["train"]
            cluster.threshold = replace(cluster.threshold, ema=0.2)
            healed_s = await until(lambda: found[1].counters.reloads, 60, "not healed")
            print(f"a state that differs was replaced after {healed_s:.1f} s")
            await asyncio.sleep(5)
            pushing.cancel()
            await until(lambda: len({each.shared.digest() for each in found}) == 1, 9, "differs")
            assert [each.shared.agreement.mismatches for each in found] == [0, 1, 0]
        finally:
            for service in services:
                await service.stop()


async def _push(services: list[FleetService]) -> None:
    """Ten nodes push in turns to all replicas."""
    turn = 0
    while True:
        for node in range(10):
            body = protobuf(f"n{node}", 0.9 + node / 1000, sent_ns=time.time_ns())
            intake = services[(node + turn) % len(services)].intake
            intake.push(body, Encoding.PROTOBUF, "train", time.monotonic(), time.time_ns())
        turn += 1
        await asyncio.sleep(0.5)
