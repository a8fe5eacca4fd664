"""The event database: loads are atomic, retries add nothing, projections match their events."""

import json
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from tests.support.echo_samples import START_NS, gauge, metrics
from tests.support.stores import meta, only_files, open_test_store, writing

from ingero.contract import names
from ingero.contract.otlp import values as otlp
from ingero.contract.otlp.codec import encode_protobuf
from ingero.contract.otlp.rows import Signal
from ingero.errors import StoreError
from ingero.storage.events.store import EventStore
from ingero.storage.journal.frames import Frame

START_US = START_NS // 1000
MIB = 1 << 20


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EventStore]:
    opened = open_test_store(tmp_path / "echo.db", 512 * MIB, 1)
    yield opened
    opened.close()


@only_files
@pytest.mark.parametrize(
    "content", [b"", b"notes of mine\n" * 9, b"SQLite format 3\0" + bytes(8192)]
)
def test_a_file_of_another_kind_is_refused_before_duckdb_looks_for_an_extension(
    content: bytes, tmp_path: Path
) -> None:
    file = tmp_path / "notes.db"
    file.write_bytes(content)
    with pytest.raises(StoreError, match=r"notes\.db: it is not a database of Echo; name another"):
        open_test_store(file, 512 * MIB, 1)
    assert file.read_bytes() == content


@only_files
def test_a_database_of_somebody_else_gets_no_tables_of_ours(tmp_path: Path) -> None:
    """A wrong --db-path must not change the file; verify, backup and serve all take that option."""
    with duckdb.connect(str(tmp_path / "theirs.db")) as theirs:
        theirs.execute("CREATE TABLE orders (id INTEGER)")
    with pytest.raises(StoreError, match="not one of Echo's"):
        open_test_store(tmp_path / "theirs.db", 512 * MIB, 1)
    with duckdb.connect(str(tmp_path / "theirs.db")) as theirs:
        assert theirs.execute("SHOW TABLES").fetchall() == [("orders",)]


@only_files
def test_memory_of_loaded_blocks_is_freed_and_only_the_memory_limit_may_change(
    tmp_path: Path,
) -> None:
    store = open_test_store(tmp_path / "echo.db", 512 * MIB, 1)
    in_memory = "SELECT memory_usage_bytes FROM duckdb_memory() WHERE tag = 'BASE_TABLE'"
    with writing(store) as connection:
        connection.execute(
            "INSERT INTO events BY NAME SELECT range AS seq, hash(range) / 7 AS value_double "
            "FROM range(300_000)"
        )
    store.checkpoint()
    held = store.scalar(in_memory)
    assert held > 2 * MIB
    store.forget_blocks(held, MIB)
    assert store.scalar(in_memory) == held  # not more than what may stay
    store.forget_blocks(held - 1, MIB)
    assert store.scalar(in_memory) <= MIB
    assert store.scalar("SELECT current_setting('memory_limit')") == "512.0 MiB"
    assert store.scalar("SELECT count(DISTINCT value_double) FROM events") == 300_000
    with pytest.raises(duckdb.InvalidInputException, match="configuration has been locked"):
        store.cursor().execute("SET threads = 2")
    store.close()


def event(name: str, body: otlp.Plain, **attributes: otlp.Plain) -> bytes:
    record = otlp.LogRecord(
        time_unix_nano=START_NS,
        event_name=name,
        body=None if body is None else otlp.any_value(body),
        attributes=otlp.attributes(attributes),
    )
    who = otlp.Resource(attributes=otlp.attributes({"ingero.cluster.id": "c1"}))
    logs = otlp.ResourceLogs(resource=who, scope_logs=(otlp.ScopeLogs(log_records=(record,)),))
    return encode_protobuf(otlp.LogsRequest(resource_logs=(logs,)))


def frame(
    seq: int, body: bytes, signal: int = Signal.METRICS, received_us: int = START_US
) -> Frame:
    return Frame(seq, seq - 1, received_us, signal, body)


def rows(store: EventStore, sql: str) -> list[tuple]:
    return store.cursor().execute(sql).fetchall()


def test_points_become_rows_with_identity_and_json(store: EventStore) -> None:
    """F124."""
    body = metrics(
        gauge("m", 0.5, op="x"), **{"ingero.rank": 3, "ingero.world_size": 8, "os": "linux"}
    )
    assert store.load([frame(1, body)]).events == 1
    assert rows(
        store,
        "SELECT cluster_id, node_id, rank, nranks, metric_name, value_double, attrs->>'op', "
        "resource->>'os', epoch_ns(ts), epoch_us(received_ts), "
        f"seq - {store.first_seq}, idx FROM events",
    ) == [("c1", "n1", 3, 8, "m", 0.5, "x", "linux", START_NS, START_US, 1, 0)]


def test_a_retry_adds_nothing_even_after_a_restart(store: EventStore, tmp_path: Path) -> None:
    body = metrics(gauge("m", 1.0, 2.0))
    store.load([frame(1, body), frame(2, body)])
    assert store.load([frame(3, body)]).duplicates == 1
    store.close()
    again = open_test_store(tmp_path / "echo.db", 512 * MIB, 1)
    assert again.applied_seq == 3
    loaded = again.load([frame(4, body), frame(5, metrics(gauge("m", 3.0)))])
    assert (loaded.events, loaded.requests, loaded.duplicates) == (1, 2, 1)
    assert again.scalar("SELECT count(*) FROM events") == 3
    again.close()


def test_digests_are_forgotten_when_no_retry_can_come(store: EventStore) -> None:
    body = metrics(gauge("m", 1.0))
    store.load([frame(1, body)])
    assert store.forget_digests(START_US + 60_000_000) == 0
    assert store.forget_digests(START_US + 3_600_000_000) == 1
    store.upkeep(START_US + 3_600_000_000)
    assert store.scalar("SELECT count(*) FROM applied_requests") == 0


def test_a_load_is_one_transaction(store: EventStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """F118: rows, digests and applied sequence appear together or not at all."""
    monkeypatch.setattr("ingero.storage.events.store.projections", lambda _: ["SELECT nonsense"])
    with pytest.raises(duckdb.Error):
        store.load([frame(1, metrics(gauge("m", 1.0)))])
    assert rows(
        store, "SELECT (SELECT count(*) FROM events), (SELECT count(*) FROM applied_requests)"
    ) == [(0, 0)]
    assert store.applied_seq == 0
    monkeypatch.undo()
    assert store.load([frame(1, metrics(gauge("m", 1.0)))]).duplicates == 0
    assert meta(store, "applied_seq") == 1


def test_collectives_get_their_own_table_in_full(store: EventStore) -> None:
    attributes: dict[str, otlp.Plain] = {
        names.NCCL_OP: "ncclAllReduce",
        names.NCCL_COMM: "00000000000000ab",
        names.NCCL_RANK: 5,
        names.NCCL_NRANKS: 8,
        names.NCCL_SEQ: 41,
        names.NCCL_DATATYPE: "bfloat16",
        names.NCCL_REDUCE_OP: "sum",
        names.NCCL_STREAM: 7,
        names.NCCL_GPU_DURATION_NS: 9_000_000,
        names.SOURCE: "nccl-plugin",
    }
    point = otlp.NumberPoint(
        start_time_unix_nano=START_NS - 10_000_000,
        time_unix_nano=START_NS,
        as_double=10.0,
        attributes=otlp.attributes(attributes),
    )
    duration = otlp.Metric(
        name=names.COLLECTIVE_DURATION_MS, gauge=otlp.Gauge(data_points=(point,))
    )
    sides = [
        gauge(name, value, **attributes)
        for name, value in (
            (names.COLLECTIVE_BARRIER_WAIT_MS, 4.0),
            (names.COLLECTIVE_BYTES, 1024.0),
            (names.COLLECTIVE_LATENESS_MS, 290.0),
        )
    ]
    store.load([frame(1, metrics(duration, *sides, **{"ingero.rank": 21, "ingero.job.id": "j"}))])
    assert rows(
        store,
        "SELECT comm_id_hash, comm_seq, op_type, rank, nranks, global_rank, job_id, datatype, "
        "reduce_op, bytes, duration_ms, gpu_duration_ns, barrier_wait_ms, lateness_ms, "
        "peer_lag_ms, stream, source, peer, epoch_ns(ts) - epoch_ns(start_ts) FROM nccl_ops",
    ) == [
        (
            *("00000000000000ab", 41, "AllReduce", 5, 8, 21, "j", "bfloat16", "sum"),
            *(1024, 10.0, 9_000_000),
            *(4.0, 290.0, None, 7, "nccl-plugin", None, 10_000_000),
        )
    ]
    assert store.scalar("SELECT count(*) FROM events") == 4


@pytest.mark.parametrize(
    ("sent", "stored"), [(-1, "f" * 16), (171, "00000000000000ab"), ("0xAB", "00000000000000ab")]
)
def test_a_communicator_is_sixteen_hex_digits_however_it_was_sent(
    store: EventStore, sent: otlp.Plain, stored: str
) -> None:
    attributes = {names.NCCL_COMM: sent, names.NCCL_OP: "all_gather", names.NCCL_RANK: 0}
    store.load([frame(1, metrics(gauge(names.COLLECTIVE_DURATION_MS, 1.0, **attributes)))])
    assert rows(store, "SELECT comm_id_hash, op_type, bytes, comm_seq FROM nccl_ops") == [
        (stored, "AllGather", None, None)
    ]


VERDICT = {
    "episode": "e1",
    "state": "straggler",
    "node": "n5",
    "rank": 5,
    "job": "j",
    "class": "compute",
    "excess": 0.2,
    "error": 0.01,
    "since": 1763168400.5,
    "peers": 7,
    "usd_per_hour": 12.5,
    "confidence": 0.9,
    "evidence": "7 peers",
    "next": "drain n5",
}


@pytest.mark.parametrize("form", ["attributes", "object", "text"])
def test_verdicts_arrive_as_attributes_object_or_text(store: EventStore, form: str) -> None:
    body = {"attributes": None, "object": VERDICT, "text": json.dumps(VERDICT)}[form]
    attributes = VERDICT if form == "attributes" else {}
    store.load([frame(1, event(names.VERDICT_EVENT, body, **attributes), Signal.LOGS)])
    assert rows(
        store,
        "SELECT cluster_id, episode, state, node_id, rank, job_id, class, excess, error, "
        "epoch_us(since), period, peers, usd_per_hour, confidence, evidence, next FROM verdicts",
    ) == [
        (
            *("c1", "e1", "straggler", "n5", 5, "j", "compute", 0.2, 0.01, 1_763_168_400_500_000),
            *(None, 7, 12.5, 0.9, "7 peers", "drain n5"),
        )
    ]


def test_causal_chains_keep_lists_as_json(store: EventStore) -> None:
    chain = {
        "id": "n1:7",
        "node": "n1",
        "detected_at": "2025-11-15T01:00:00.5Z",
        "severity": "HIGH",
        "summary": "s",
        "root_cause": "r",
        "recommendations": ["a", "b"],
        "cuda_p99_us": 12.5,
    }
    store.load([frame(1, event(names.CAUSAL_CHAIN_EVENT, chain), Signal.LOGS)])
    assert rows(
        store,
        "SELECT chain_id, node_id, epoch_ms(detected_at::TIMESTAMP), severity, "
        "recommendations->>'$[1]', p99_us, p50_us FROM causal_chains",
    ) == [("n1:7", "n1", 1_763_168_400_500, "HIGH", "b", 12.5, None)]


def test_minutes_are_rolled_up_once_and_late_points_join_their_minute(store: EventStore) -> None:
    """F125: node_metrics, one row per node, metric and minute."""
    store.load([frame(1, metrics(gauge("m", 1.0, 3.0, step_ns=10**9)))])
    assert store.roll_up(START_US) == 1
    assert store.roll_up(START_US) == 0
    store.load([frame(2, metrics(gauge("m", 8.0, step_ns=10**9)))])
    store.roll_up(START_US)
    assert rows(store, 'SELECT node_id, "count", "sum", "min", "max" FROM node_metrics') == [
        ("n1", 3, 12.0, 1.0, 8.0)
    ]


@only_files
def test_oldest_rows_go_first_in_small_steps(store: EventStore) -> None:
    for seq in range(1, 11):
        store.load([frame(seq, metrics(gauge("m", float(seq), 0.0)), received_us=START_US + seq)])
    assert store.delete_step("events", START_US + 4, 4) == 4
    assert store.delete_step("events", START_US + 4, 4) == 2
    assert store.delete_step("events", START_US + 4, 4) == 0
    assert store.scalar("SELECT min(seq) FROM events") == 4
    assert store.delete_step("events", None, 4) == 4
    assert meta(store, "rows_deleted") == 10


@only_files
def test_a_copy_is_a_whole_database(store: EventStore, tmp_path: Path) -> None:
    store.load([frame(1, metrics(gauge("m", 1.0)))])
    assert store.copy_to(tmp_path / "backup.db") == 1
    store.load([frame(2, metrics(gauge("m", 2.0)))])
    copy = open_test_store(tmp_path / "backup.db", 512 * MIB, 1)
    assert (copy.applied_seq, copy.scalar("SELECT count(*) FROM events")) == (1, 1)
    copy.close()


def test_requests_decoded_ahead_are_loaded_like_others_and_never_twice(store: EventStore) -> None:
    """While one load commits, the next is decoded: a retry in both of them counts once."""
    first, second = metrics(gauge("a", 1.0)), metrics(gauge("b", 2.0, 3.0))
    ahead = store.prepare([frame(2, first), frame(3, second)])
    assert store.load([frame(1, first)]).events == 1
    loaded = store.load([frame(2, first), frame(3, second)], prepared=ahead)
    assert (loaded.events, loaded.duplicates) == (2, 1)
    third = store.prepare([frame(4, metrics(gauge("c", 4.0)))])
    known = set(third.fresh)
    assert store.load([frame(4, metrics(gauge("c", 4.0)))], known, third).duplicates == 1
    fresh = store.prepare([frame(5, metrics(gauge("c", 4.0)))])
    assert store.load([frame(5, metrics(gauge("c", 4.0)))], prepared=fresh).events == 1
    assert rows(store, "SELECT metric_name, value_double FROM events ORDER BY seq, idx") == [
        ("a", 1.0), ("b", 2.0), ("b", 3.0), ("c", 4.0),
    ]  # fmt: skip


@only_files
def test_a_checkpoint_does_not_write_large_loads_again(store: EventStore) -> None:
    """A load of 123,000 rows is a full row group and a small one; both stay what they are."""
    with writing(store) as connection:
        for seq in range(2):
            connection.execute(
                f"INSERT INTO events BY NAME SELECT {seq} AS seq, range::INTEGER AS idx "
                "FROM range(123000)"
            )
    store.checkpoint()
    groups = "SELECT count(DISTINCT row_group_id) FROM pragma_storage_info('events')"
    assert rows(store, groups) == [(4,)]
