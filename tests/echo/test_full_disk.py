"""A full disk under a running Echo: new data is refused, old data is found, and it recovers."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.echo_samples import metrics_body
from tests.support.small_disk import mounted, remount
from tests.support.waiting import PATIENCE_S

from ingero.contract.otlp.rows import Signal
from ingero.echo.engine import Engine, EngineSettings
from ingero.echo.store.api import QueryLimits
from ingero.errors import Overloaded, StoreFull


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path, "8m") as folder:
        yield folder


async def test_a_full_disk_refuses_then_recovers_and_nothing_is_lost(small_disk: Path) -> None:
    engine = Engine(EngineSettings(database=small_disk / "echo.db", segment_bytes=1 << 20))
    await engine.start()
    sent = 0
    try:
        (small_disk / "ballast").write_bytes(bytes(3 << 20))
        with pytest.raises(
            (StoreFull, Overloaded), match="new data is refused until this is fixed"
        ):
            for number in range(2000):
                body = metrics_body(points=50, first=number * 50, note="x" * 200)
                sent += (await engine.submit(Signal.METRICS, body)).events
        assert sent > 0
        assert "No space left on device" in engine.problem
        (small_disk / "ballast").unlink()
        remount(small_disk, "size=64m")
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    sent += (
                        await engine.submit(Signal.METRICS, metrics_body(points=7, first=10**7))
                    ).events
                    break
                except StoreFull:
                    await asyncio.sleep(0.1)
        await engine.store.wait_applied(engine.ingest.durable_seq, PATIENCE_S)
        found = await engine.store.query("SELECT count(*) FROM events", [], QueryLimits())
        assert found.rows == [[sent]]
    finally:
        await engine.stop()
