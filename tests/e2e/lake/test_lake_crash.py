"""Two Echos write one lake while writers, PostgreSQL and object storage are killed.

What was acknowledged is found exactly once, and both Echos answer alike within ten seconds.
"""

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
from tests.support.echo_samples import metrics_body
from tests.support.lakes import lake_for, object_storage, postgres, url_of
from tests.support.stores import ON_LAKE, secrets_file
from tests.support.waiting import PATIENCE_S, until_async

from ingero.contract.otlp.rows import Signal
from ingero.echo.engine import Engine, EngineSettings
from ingero.echo.store.api import QueryLimits
from ingero.errors import IngeroError

POINTS = 20
REQUESTS = 60  # of each Echo in each phase
COUNTED = "SELECT count(*), count(DISTINCT (seq, idx)), count(DISTINCT ts) FROM events"


@pytest.fixture
def settings(tmp_path: Path) -> list[EngineSettings]:
    address, secrets = lake_for(tmp_path / "lake", in_bucket=True)
    file = secrets_file(tmp_path / "lake", secrets)
    return [
        EngineSettings(
            database=tmp_path / name / "echo.db",
            segment_bytes=1 << 20,
            lake=url_of(address),
            lake_secrets=file,
        )
        for name in ("one", "two")
    ]


async def send(engine: Engine, first: int) -> int:
    """Send requests that differ from all others; return how many events were acknowledged."""
    acknowledged = 0
    for number in range(REQUESTS):
        body = metrics_body(points=POINTS, first=(first + number) * POINTS)
        acknowledged += (await engine.submit(Signal.METRICS, body)).events
        await asyncio.sleep(0.02)
    return acknowledged


async def counted(engine: Engine) -> list[int]:
    try:
        found = await engine.store.query(COUNTED, [], QueryLimits(seconds=10))
    except IngeroError:
        return []
    return [int(value) for value in found.rows[0]]


async def kill_store(engine: Engine) -> None:
    pid = engine.store.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


async def kill_for(server: object, seconds: float) -> None:
    await asyncio.to_thread(server.child.kill)  # type: ignore[attr-defined]
    await asyncio.sleep(seconds)
    await asyncio.to_thread(server.start)  # type: ignore[attr-defined]


@pytest.mark.skipif(not ON_LAKE, reason="kills servers for a minute: `make e2e-lake`")
@pytest.mark.timeout(600)
async def test_acknowledged_is_found_once_whatever_is_killed(
    settings: list[EngineSettings],
) -> None:
    """F058."""
    engines = [Engine(each) for each in settings]
    for engine in engines:
        await engine.start()
    acknowledged = 0
    try:
        faults = (
            lambda: kill_store(engines[0]),
            lambda: kill_for(postgres(), 2.0),
            lambda: kill_for(object_storage(), 2.0),
        )
        for phase, fault in enumerate(faults):
            senders = [
                asyncio.create_task(send(engine, (2 * phase + number) * REQUESTS))
                for number, engine in enumerate(engines)
            ]
            await asyncio.sleep(0.5)
            await fault()
            acknowledged += sum(await asyncio.gather(*senders))
        for engine in engines:
            await until_async(lambda engine=engine: engine.store.pid is not None)
            await engine.store.wait_applied(engine.ingest.durable_seq, 2 * PATIENCE_S)
        since = time.monotonic()
        answers = [await counted(engine) for engine in engines]
        assert answers == [[acknowledged] * 3] * 2
        assert time.monotonic() - since < 10
    finally:
        for engine in engines:
            await engine.stop()
    again = Engine(settings[0])
    await again.start()
    try:
        assert await counted(again) == [acknowledged] * 3
    finally:
        await again.stop()
