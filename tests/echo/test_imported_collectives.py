"""Imported collectives in Echo: the same query in SQL finds the same rank."""

from pathlib import Path

import pytest
from tests.support.recorded_jobs import Job, record
from tests.support.stores import store_settings

from ingero.contract.measurements.collectives import encode_batches
from ingero.contract.otlp.codec import encode_protobuf
from ingero.contract.otlp.rows import Signal

pytest.importorskip("duckdb", reason="Echo's store needs the echo extra")

# own time is the step without the time inside collectives: the others wait for the rank that spends
# least time in them
WAITED_FOR = """SELECT global_rank, count(*), sum(gpu_duration_ns) FROM nccl_ops
    WHERE source = 'nccl-plugin'
GROUP BY global_rank ORDER BY sum(gpu_duration_ns) LIMIT 1"""


async def test_the_rank_others_wait_for_is_found_in_echo(tmp_path: Path) -> None:
    from ingero.echo.engine import Engine, EngineSettings
    from ingero.echo.store.api import QueryLimits

    job = Job(tp=1, dp=4, slow_gpu={2: 0.2}, steps=20)
    engine = Engine(EngineSettings(**store_settings(tmp_path / "echo.db"), segment_bytes=1 << 20))
    await engine.start()
    try:
        for request, _ in encode_batches(record(job), "prod", "imported"):
            await engine.submit(Signal.METRICS, encode_protobuf(request), wait_s=20)
        ((rank, collectives, _),) = (await engine.store.query(WAITED_FOR, [], QueryLimits())).rows
    finally:
        await engine.stop()
    assert (rank, collectives) == (2, 20)
