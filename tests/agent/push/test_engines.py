"""Engines beside the push loop: the readiness listener and the metrics."""

import asyncio
import contextlib
import logging
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from tests.support.waiting import until_async

from ingero.agent.engines.watch import EngineWatch
from ingero.agent.push.collective_feed import RankBatch
from ingero.agent.push.engines import EngineFeed, engine_families, watch_engines
from ingero.contract.exposition import render
from ingero.contract.types import Identity
from ingero.core.collectives.columns import from_records
from ingero.sim.inference.engine import Load
from ingero.sim.inference.replicas import EngineProcess


def ask(address: str, query: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}/ready/engine{query}", timeout=5) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


async def test_the_listener_says_only_ready_or_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """F166."""
    caplog.set_level(logging.INFO)
    stop = asyncio.Event()
    with EngineProcess(tmp_path, "llama") as engine:
        engine.set_load(Load(running=2, step_s=0.01))
        watch = EngineWatch(None, Identity(node="n"), patience_s=20.0)
        async with contextlib.AsyncExitStack() as opened:
            await watch_engines(watch, "127.0.0.1:0", opened, stop)
            opened.callback(stop.set)
            address = next(r.listen for r in caplog.records if r.msg == "readiness_served")  # type: ignore[attr-defined]  # a field of ours
            await until_async(lambda: (engine.pid, engine.port) in watch.engines)
            asked = asyncio.to_thread(ask, address, f"?port={engine.port}")
            assert await asked == (200, "ready\n")
            assert await asyncio.to_thread(ask, address, "?port=1") == (503, "not ready\n")
            assert (await asyncio.to_thread(ask, address, "?port=x"))[0] == 400
            assert (await asyncio.to_thread(ask, address, ""))[0] == 400
            page = render(engine_families(watch)).decode()
    labels = f'{{engine="vllm",model="llama",port="{engine.port}"}}'
    assert f"ingero_engine_up{labels} 1\n" in page
    assert f"ingero_engine_requests_running{labels} 2\n" in page
    assert 'ingero_agent_engine_pages_total{outcome="answered"}' in page


class Feed:
    """A feed with one batch per process; the second one names its job."""

    lost, problem = 3, "some are missing"

    def poll(self) -> list[RankBatch]:
        rows = from_records([])
        return [
            RankBatch(key=pid, pid=pid, job=job, rank=0, collectives=rows, pick=lambda _: [])
            for pid, job in ((7, None), (8, "train"), (0, None))
        ]

    def close(self) -> None:
        self.problem = "closed"


def test_ranks_without_a_job_get_that_of_their_engine() -> None:
    inner = Feed()
    feed = EngineFeed(inner, {7: "llama:8000"}.get)
    assert [batch.job for batch in feed.poll()] == ["llama:8000", "train", None]
    assert (feed.lost, feed.problem) == (3, "some are missing")
    feed.close()
    assert inner.problem == "closed"


def test_without_a_watch_there_are_no_metrics() -> None:
    assert engine_families(None) == []
