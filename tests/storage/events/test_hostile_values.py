"""No value that a sender can choose keeps a request, or those beside it, out of the database."""

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.stores import open_test_store

from ingero.contract import names
from ingero.contract.otlp import values as otlp
from ingero.contract.otlp.codec import encode_protobuf
from ingero.contract.otlp.rows import Signal
from ingero.storage.events.store import EventStore
from ingero.storage.journal.frames import Frame

START_NS = 1_763_168_400_000_000_000
VERDICT_TYPED = (
    "rank",
    "excess",
    "error",
    "since",
    "period",
    "peers",
    "usd_per_hour",
    "confidence",
)
VERDICT_TEXTS = ("episode", "state", "node", "job", "class", "evidence", "next")
CHAIN_TYPED = ("detected_at", "cuda_p99_us", "cuda_p50_us", "tail_ratio")
CHAIN_TEXTS = ("id", "chain_id", "node", "severity", "summary", "root_cause", "explanation")
CHAIN_OBJECTS = ("recommendations", "cuda_op", "timeline")
COLLECTIVE = (
    *(names.NCCL_OP, names.NCCL_COMM, names.NCCL_RANK, names.NCCL_NRANKS, names.NCCL_PEER),
    *(names.NCCL_DATATYPE, names.NCCL_REDUCE_OP, names.NCCL_SEQ, names.NCCL_STREAM),
    *(names.NCCL_GPU_DURATION_NS, names.NCCL_BYTES, names.SOURCE),
)
RESOURCE = ("ingero.rank", "ingero.world_size", "ingero.node.id", "ingero.job.id", "gpu_model", "x")
SIDES = (
    *(names.COLLECTIVE_BYTES, names.COLLECTIVE_BARRIER_WAIT_MS, names.COLLECTIVE_PEER_LAG_MS),
    *(names.COLLECTIVE_LATENESS_MS, names.COLLECTIVE_DURATION_MS, "m"),
)
NOT_FINITE = (math.nan, math.inf, -math.inf)
REALS = (*NOT_FINITE, 1e300, -1e300, 1.7e308, 9.3e18, -9.3e18, 9.2e12, 5e-324, -0.0)
WORDS = (
    "nan",
    "NaN",
    "-inf",
    "Infinity",
    "1e300",
    "9" * 400,
    "",
    "\x00",
    "a\x00b",
    "{",
    "[1",
    "0x",
)
TIMES = ("epoch", "infinity", "-infinity", "294247-01-10", "1600-01-01", "99999-01-01T00:00:00Z")

hostile = (
    st.sampled_from((*REALS, *WORDS, *TIMES, 2**63 - 1, -(2**63), 2**31, True, None, b"\xff\xfe"))
    | st.sampled_from(("x" * (1 << 16), "9" * (1 << 16), "{" * 50_000, '{"a":' * 5_000))
    | st.floats()
    | st.integers(-(2**63), 2**63 - 1)
    | st.text(st.characters(codec="utf-8"), max_size=20)
    | st.lists(st.floats(), max_size=2)
    | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=3), st.none(), max_size=2)
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EventStore]:
    path: Path = tmp_path_factory.mktemp("hostile") / "echo.db"
    opened = open_test_store(path, 1 << 30, 1)
    yield opened
    opened.close()


def metrics(resource: dict[str, otlp.Plain], *metric: otlp.Metric) -> bytes:
    who = otlp.Resource(attributes=otlp.attributes(resource))
    scope = otlp.ScopeMetrics(metrics=metric)
    return encode_protobuf(
        otlp.MetricsRequest(
            resource_metrics=(otlp.ResourceMetrics(resource=who, scope_metrics=(scope,)),)
        )
    )


def gauge(name: str, value: float, attributes: dict[str, otlp.Plain]) -> otlp.Metric:
    point = otlp.NumberPoint(
        time_unix_nano=START_NS, as_double=value, attributes=otlp.attributes(attributes)
    )
    return otlp.Metric(name=name, gauge=otlp.Gauge(data_points=(point,)))


def event(name: str, body: otlp.Plain, attributes: dict[str, otlp.Plain]) -> bytes:
    record = otlp.LogRecord(
        time_unix_nano=START_NS,
        event_name=name,
        body=otlp.any_value(body),
        attributes=otlp.attributes(attributes),
    )
    logs = otlp.ResourceLogs(scope_logs=(otlp.ScopeLogs(log_records=(record,)),))
    return encode_protobuf(otlp.LogsRequest(resource_logs=(logs,)))


def load(store: EventStore, signal: Signal, body: bytes) -> int:
    """Load one request that must become exactly its events, and return the values it missed."""
    seq = store.applied_seq + 1
    loaded = store.load([Frame(seq, seq - 1, seq, signal, body)])
    assert loaded.duplicates or loaded.events == store.scalar(
        f"SELECT count(*) FROM events WHERE seq = {store.first_seq + seq}"
    )
    store.roll_up(seq)
    return loaded.missing


@pytest.mark.parametrize("form", ["attributes", "object", "text"])
@pytest.mark.parametrize("name", [names.VERDICT_EVENT, names.CAUSAL_CHAIN_EVENT])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_every_field_of_verdicts_and_chains_takes_any_value(
    store: EventStore, name: str, form: str, data: st.DataObject
) -> None:
    fields = (
        (*VERDICT_TYPED, *VERDICT_TEXTS)
        if name == names.VERDICT_EVENT
        else (*CHAIN_TYPED, *CHAIN_TEXTS, *CHAIN_OBJECTS)
    )
    sent = data.draw(st.dictionaries(st.sampled_from(fields), hostile, min_size=1, max_size=4))
    if form == "text":
        sent = {key: value for key, value in sent.items() if not isinstance(value, bytes)}
    body = json.dumps(sent) if form == "text" else sent if form == "object" else None
    load(store, Signal.LOGS, event(name, body, sent if form == "attributes" else {}))


@settings(max_examples=40, deadline=None)
@given(raw=st.text(st.characters(codec="utf-8"), max_size=30), value=st.text(max_size=5))
def test_a_body_that_is_almost_json_takes_nothing_with_it(
    store: EventStore, raw: str, value: str
) -> None:
    for text in ("{" + raw, f'{{"since":{raw}}}', json.dumps({"since": value}) + raw):
        for name in (names.VERDICT_EVENT, names.CAUSAL_CHAIN_EVENT):
            load(store, Signal.LOGS, event(name, text, {}))


@settings(max_examples=80, deadline=None)
@given(
    attributes=st.dictionaries(st.sampled_from(COLLECTIVE), hostile, max_size=4),
    resource=st.dictionaries(st.sampled_from(RESOURCE), st.sampled_from(REALS) | st.integers(0, 9)),
    values=st.dictionaries(
        st.sampled_from(SIDES), st.sampled_from(REALS) | st.floats(), min_size=1
    ),
)
def test_every_column_of_collectives_takes_any_value(
    store: EventStore,
    attributes: dict[str, otlp.Plain],
    resource: dict[str, otlp.Plain],
    values: dict[str, float],
) -> None:
    sides = [gauge(name, value, attributes) for name, value in values.items()]
    duration = gauge(names.COLLECTIVE_DURATION_MS, 1.0, attributes)
    load(store, Signal.METRICS, metrics(resource, duration, *sides))


def test_no_typed_column_holds_a_number_that_is_not_finite(store: EventStore) -> None:
    """Runs after the properties above: every real column of every table is searched."""
    columns = (
        store.cursor()
        .execute(
            "SELECT table_name, column_name FROM duckdb_columns() WHERE data_type = 'DOUBLE' "
            "AND table_name IN (SELECT table_name FROM duckdb_tables())"
        )
        .fetchall()
    )
    assert len(columns) > 10
    for table, column in columns:
        found = store.scalar(f'SELECT count(*) FROM {table} WHERE NOT isfinite("{column}")')
        assert found == 0, (table, column)
    for table, column in (("verdicts", "since"), ("causal_chains", "detected_at")):
        found = store.scalar(
            f"SELECT count(*) FROM {table} WHERE NOT isfinite({column}::TIMESTAMP)"
        )
        assert found == 0, (table, column)


@pytest.mark.parametrize("value", NOT_FINITE)
def test_values_that_are_not_finite_are_missing_and_counted(
    store: EventStore, value: float
) -> None:
    for temporality, monotonic in ((otlp.DELTA, True), (otlp.CUMULATIVE, True), (0, False)):
        point = otlp.NumberPoint(time_unix_nano=START_NS, as_double=value)
        total = otlp.Sum(
            data_points=(point,), aggregation_temporality=temporality, is_monotonic=monotonic
        )
        assert load(store, Signal.METRICS, metrics({}, otlp.Metric(name="s", sum=total))) == 1
    assert (
        store.scalar(
            "SELECT count(value_double) + count(cumulative_value) FROM events "
            f"WHERE seq > {store.first_seq + store.applied_seq - 3}"
        )
        == 0
    )


@pytest.mark.parametrize("value", [*NOT_FINITE, 1e300, -1e300, 9.3e18])
def test_a_collective_keeps_its_row_when_its_size_is_impossible(
    store: EventStore, value: float
) -> None:
    body = metrics(
        {},
        gauge(names.COLLECTIVE_DURATION_MS, 1.0, {names.NCCL_RANK: 3}),
        gauge(names.COLLECTIVE_BYTES, value, {names.NCCL_RANK: 3}),
    )
    assert load(store, Signal.METRICS, body) == 1
    row = store.cursor().execute(
        f"SELECT rank, bytes, duration_ms FROM nccl_ops "
        f"WHERE seq = {store.first_seq + store.applied_seq}"
    )
    assert row.fetchall() == [(3, None, 1.0)]


@pytest.mark.parametrize("since", ["nan", "inf", "1e300", math.nan, -math.inf, 1e300, -1.0, "soon"])
def test_a_verdict_keeps_its_row_when_its_start_is_impossible(
    store: EventStore, since: otlp.Plain
) -> None:
    body = event(names.VERDICT_EVENT, {"episode": "e", "rank": 2**40, "since": since}, {})
    assert load(store, Signal.LOGS, body) == 2, "the start and the rank"
    row = store.cursor().execute(
        f"SELECT episode, rank, since FROM verdicts "
        f"WHERE seq = {store.first_seq + store.applied_seq}"
    )
    assert row.fetchall() == [("e", None, None)]


def test_the_sum_of_a_minute_that_overflows_is_missing(store: EventStore) -> None:
    points = [gauge("large", 1.7e308, {"i": i}) for i in range(4)]
    assert load(store, Signal.METRICS, metrics({}, *points)) == 0
    row = store.cursor().execute(
        "SELECT count, sum, min, max FROM node_metrics WHERE metric_name = 'large'"
    )
    assert row.fetchall() == [(4, None, 1.7e308, 1.7e308)]
