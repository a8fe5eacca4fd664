"""Echo without listeners: acknowledged requests survive crashes, and limits protect memory."""

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pytest
from tests.support.echo_samples import metrics_body
from tests.support.stores import only_files, store_settings
from tests.support.waiting import PATIENCE_S, until_async

from ingero.contract.otlp.rows import Signal
from ingero.echo.control import ask_running, control_path
from ingero.echo.engine import Engine, EngineSettings
from ingero.echo.store.api import QueryFailed, QueryLimits, QueryResult, StoreRestarting
from ingero.errors import MalformedPush, Overloaded, StoreDamaged, StoreError, StoreLocked, TooLarge
from ingero.storage.events.migrate import SCHEMA_VERSION, migrate
from ingero.storage.journal.frames import list_segments
from ingero.storage.journal.writer import JournalWriter

SEGMENT = 1 << 20


def settings(tmp_path: Path, **changes: int) -> EngineSettings:
    return EngineSettings(**store_settings(tmp_path / "echo.db"), segment_bytes=SEGMENT, **changes)


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    started = Engine(settings(tmp_path))
    await started.start()
    yield started
    await started.stop()


async def ask(engine: Engine, sql: str, **limits: float) -> QueryResult:
    return await engine.store.query(sql, [], QueryLimits(**limits))  # type: ignore[arg-type] - ints are fine


async def count(engine: Engine) -> int:
    await engine.store.wait_applied(engine.ingest.durable_seq, PATIENCE_S)
    return int((await ask(engine, "SELECT count(*) FROM events")).rows[0][0])


async def until_back(engine: Engine) -> None:
    await until_async(lambda: engine.store.pid is not None)


async def test_a_request_is_found_once_however_often_it_is_sent(tmp_path: Path) -> None:
    """F078, F079: read your writes, idempotent retries, the same count after a restart."""
    engine = Engine(settings(tmp_path))
    await engine.start()
    body = metrics_body(points=3)
    accepted = await engine.submit(Signal.METRICS, body, wait_s=PATIENCE_S)
    assert (accepted.seq, accepted.events) == (1, 3)
    assert (await ask(engine, "SELECT count(*) FROM events")).rows == [[3]]
    mapped = Path(f"/proc/{engine.store.pid}/maps").read_text()
    assert "libarrow" not in mapped, "54 MB, and 1.4 GB of address space"
    await asyncio.gather(*(engine.submit(Signal.METRICS, body) for _ in range(5)))
    await engine.submit(Signal.METRICS, metrics_body(points=2, first=9))
    assert await count(engine) == 5
    await engine.stop()
    again = Engine(settings(tmp_path))
    await again.start()
    assert await count(again) == 5
    await again.submit(Signal.METRICS, body)
    assert await count(again) == 5
    await again.stop()


async def test_bad_requests_are_refused_before_they_reach_the_journal(engine: Engine) -> None:
    with pytest.raises(MalformedPush):
        await engine.submit(Signal.METRICS, b"\xff\xff")
    with pytest.raises(TooLarge):
        await engine.submit(Signal.METRICS, bytes(9 << 20))
    assert (await engine.submit(Signal.METRICS, b"")).events == 0
    assert engine.ingest.durable_seq == 0
    assert engine.ingest.counters.refused_malformed == 1


async def test_a_killed_store_process_comes_back_and_loses_nothing(engine: Engine) -> None:
    await engine.submit(Signal.METRICS, metrics_body(points=10))
    assert engine.store.pid is not None
    os.kill(engine.store.pid, signal.SIGKILL)
    for i in range(20):
        await engine.submit(Signal.METRICS, metrics_body(points=10, first=100 + 10 * i))
    await until_back(engine)
    assert await count(engine) == 210
    assert engine.store.restarts == 1


async def test_questions_during_a_restart_are_told_to_ask_again(engine: Engine) -> None:
    assert engine.store.pid is not None
    slow = asyncio.create_task(
        ask(engine, "SELECT count(*) FROM range(100000000000)", seconds=2 * PATIENCE_S)
    )
    await until_async(lambda: engine.store._waiting)
    os.kill(engine.store.pid, signal.SIGKILL)
    with pytest.raises(StoreRestarting, match="no data is lost, retry in 2 s"):
        await slow
    await until_back(engine)
    assert (await ask(engine, "SELECT 1")).rows == [[1]]


async def test_a_query_that_exhausts_memory_costs_at_most_the_store_process(tmp_path: Path) -> None:
    engine = Engine(settings(tmp_path, address_space_bytes=2 << 30))
    await engine.start()
    try:
        await engine.submit(Signal.METRICS, metrics_body(points=10), wait_s=PATIENCE_S)
        with pytest.raises(QueryFailed) as failed:
            await ask(engine, "SELECT repeat('x', 3000000000)")
        assert failed.value.code == "out_of_memory"
        await until_async(lambda: engine.store.restarts)
        await until_back(engine)
        assert await count(engine) == 10
    finally:
        await engine.stop()


@only_files
async def test_the_smallest_store_loads_and_answers(tmp_path: Path) -> None:
    engine = Engine(settings(tmp_path, address_space_bytes=1 << 30))
    await engine.start()
    try:
        for number in range(10):
            await engine.submit(
                Signal.METRICS, metrics_body(points=5000, node=f"n{number}"), wait_s=PATIENCE_S
            )
        joined = (
            "SELECT a.node_id, count(*) FROM events a JOIN events b USING (seq, idx) GROUP BY ALL"
        )
        answers = await asyncio.gather(*(ask(engine, joined) for _ in range(4)))
        assert [sum(row[1] for row in answer.rows) for answer in answers] == [50_000] * 4
        assert engine.store.restarts == 0
    finally:
        await engine.stop()


async def test_answers_are_bounded_in_time_rows_and_bytes(engine: Engine) -> None:
    with pytest.raises(QueryFailed, match=r"took longer than 0\.3 s"):
        await ask(engine, "SELECT count(*) FROM range(100000000000)", seconds=0.3)
    cut = await ask(engine, "SELECT * FROM range(1001)", rows=1000)
    assert (len(cut.rows), cut.truncated) == (1000, True)
    whole = await ask(engine, "SELECT * FROM range(1000)", rows=1000)
    assert (len(whole.rows), whole.truncated) == (1000, False)
    wide = await ask(engine, "SELECT repeat('x', 10000) FROM range(1000)", size_bytes=100_000)
    assert wide.truncated
    assert 5 <= len(wide.rows) <= 15


async def test_queries_cannot_write_or_reach_out(engine: Engine, tmp_path: Path) -> None:
    for sql in (
        "DELETE FROM events",
        "CREATE TABLE t (a INT)",
        f"COPY events TO '{tmp_path}/out.csv'",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SET memory_limit = '100GB'",
    ):
        with pytest.raises(QueryFailed) as failed:
            await ask(engine, sql)
        assert failed.value.code == "bad_sql", sql
    assert (await ask(engine, "SELECT 1")).rows == [[1]]


async def test_values_are_json_with_all_digits(engine: Engine) -> None:
    result = await ask(
        engine,
        "SELECT make_timestamp_ns(1763168400000000001) t, 'nan'::DOUBLE n, "
        "170141183460469231731687303715884105727 h, '\\xAA'::BLOB b, [1, 2] l, {'a': 1.5} s, DATE "
        "'2025-11-15' d, NULL z, sum(range) FROM range(3)",
    )
    assert result.rows == [
        [
            *("2025-11-15T01:00:00.000000001Z", "nan", "170141183460469231731687303715884105727"),
            *("aa", [1, 2], {"a": 1.5}, "2025-11-15", None, 3),
        ]
    ]
    assert result.columns[:3] == ["t", "n", "h"]


async def test_a_full_backlog_refuses_with_the_time_to_come_back(tmp_path: Path) -> None:
    engine = Engine(settings(tmp_path, max_backlog_bytes=20_000))
    await engine.start()
    try:
        assert engine.store.pid is not None
        os.kill(engine.store.pid, signal.SIGSTOP)
        sent = 0
        with pytest.raises(Overloaded, match="send it again in 2 s"):
            for i in range(1000):
                sent += (
                    await engine.submit(Signal.METRICS, metrics_body(points=5, first=i * 5))
                ).events
        assert engine.problem == "the store is behind; its backlog is full"
        os.kill(engine.store.pid, signal.SIGCONT)
        assert await count(engine) == sent
        assert (
            await engine.submit(Signal.METRICS, metrics_body(points=1, first=10**6))
        ).events == 1
    finally:
        await engine.stop()


async def test_what_waits_from_before_counts_as_backlog(tmp_path: Path) -> None:
    writer_folder = tmp_path / "echo.db.journal"
    writer_folder.mkdir()
    writer = JournalWriter(writer_folder, 0, SEGMENT)
    for i in range(4):
        writer.append(
            [(Signal.METRICS, metrics_body(points=5, first=i * 5))], time.time_ns() // 1000
        )
    writer.close()
    engine = Engine(settings(tmp_path))
    await engine.start()
    waiting = engine.ingest.backlog_bytes
    assert await count(engine) == 20
    assert waiting > 4 * len(metrics_body(points=5))
    assert engine.ingest.backlog_bytes == 0
    await engine.stop()


@only_files
async def test_a_database_that_is_not_ours_stops_the_start_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "echo.db").write_bytes(b"SQLite format 3\0" + bytes(8192))
    with pytest.raises(StoreError, match=r"cannot open .*echo\.db"):
        await Engine(settings(tmp_path)).start()
    (tmp_path / "echo.db").unlink()
    newer = duckdb.connect(str(tmp_path / "echo.db"))
    migrate(newer)
    newer.execute("UPDATE meta SET value = 99 WHERE key = 'schema_version'")
    newer.close()
    with pytest.raises(
        StoreError,
        match=f"schema version 99, this program supports {SCHEMA_VERSION}; use a newer ingero-echo",
    ):
        await Engine(settings(tmp_path)).start()


async def test_no_thread_goes_on_after_the_end(tmp_path: Path) -> None:
    """A segment in preparation must not be finished while the next owner uses the folder."""
    before = set(threading.enumerate())
    started = Engine(settings(tmp_path))
    await started.start()
    await started.stop()
    left = {thread.name for thread in set(threading.enumerate()) - before}
    assert left & {"journal", "segments"} == set()


def test_asking_a_running_echo_ends_in_words(tmp_path: Path) -> None:
    database = tmp_path / "echo.db"
    assert ask_running(database, {"do": "backup"}, PATIENCE_S) is None
    # longer than a socket path may be
    assert ask_running(tmp_path / ("x" * 120), {"do": "backup"}, PATIENCE_S) is None
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(control_path(database)))
        silent.listen()
        with pytest.raises(
            StoreError, match=r"echo\.db\.sock: no answer within 0\.05 s; its log has details"
        ):
            ask_running(database, {"do": "backup"}, 0.05)


async def test_a_second_engine_is_turned_away(engine: Engine, tmp_path: Path) -> None:
    """F119."""
    with pytest.raises(StoreLocked, match=f"process {os.getpid()}"):
        await Engine(settings(tmp_path)).start()


async def test_a_damaged_journal_stops_the_start_and_says_what_to_do(tmp_path: Path) -> None:
    engine = Engine(settings(tmp_path))
    await engine.start()
    assert engine.store.pid is not None
    os.kill(engine.store.pid, signal.SIGSTOP)  # so that nothing is applied
    for i in range(3):
        await engine.submit(Signal.METRICS, metrics_body(points=1, first=i, name=f"metric-{i}"))
    os.kill(engine.store.pid, signal.SIGKILL)
    engine.ingest.stop()
    segment = list_segments(tmp_path / "echo.db.journal")[-1].path
    data = segment.read_bytes()
    engine.store._stopping = True
    await engine.store.stop()
    assert engine._lock is not None
    engine._lock.release()
    segment.write_bytes(data.replace(b"metric-1", b"metric-X"))
    with pytest.raises(
        StoreDamaged, match=r"request 2 cannot be read.*Nothing was changed.*verify --repair"
    ):
        await Engine(settings(tmp_path)).start()


async def test_audit_rows_are_kept_apart_from_events(engine: Engine) -> None:
    await engine.store.audit(
        [
            [
                f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}",
                "r1",
                "abc",
                "key",
                "http",
                "tool",
                ["c1"],
                200,
                5,
                1.5,
                None,
                1,
            ]
        ]
    )
    assert (await engine.store.stats()).rows["audit_log"] == 1
    assert (await ask(engine, "SELECT count(*) FROM events")).rows == [[0]]
