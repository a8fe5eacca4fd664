"""Columns of OTLP requests: both builders give the same table and refuse the same bytes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.batches import rows_of
from tests.support.compiled import needs_codecs
from tests.support.otlp_strategies import COMMON, values

from ingero.contract.otlp import columns as otlp_columns
from ingero.contract.otlp import limits as otlp_limits
from ingero.contract.otlp import rows as otlp_rows
from ingero.contract.otlp import values as otlp
from ingero.contract.otlp.codec import encode_protobuf
from ingero.contract.otlp.columns import Columns, PureColumns, new_columns
from ingero.contract.otlp.rows import Signal, decode_rows, resource_context
from ingero.contract.timeline.varint import varint
from ingero.errors import IngeroError, MalformedPush, TooLarge

SIGNALS = {
    Signal.METRICS: otlp.MetricsRequest,
    Signal.TRACES: otlp.TracesRequest,
    Signal.LOGS: otlp.LogsRequest,
}


def outcome(columns: Columns, signal: Signal, body: bytes) -> object:
    """Return the rows, or the type of the error."""
    try:
        added = columns.add(signal, body, 7, 99)
    except IngeroError as error:
        assert len(columns) == 0
        return type(error)
    assert added == len(columns)
    batch = columns.take()
    return rows_of(batch), batch.not_finite


def checked(columns: Columns, signal: Signal, body: bytes) -> object:
    """Return the number of rows that a check finds, or the type of the error."""
    try:
        return columns.check(signal, body)
    except IngeroError as error:
        return type(error)
    finally:
        assert len(columns) == 0


def agree(signal: Signal, body: bytes) -> None:
    """Check that both builders give the same table or error, and that `check` predicts it."""
    found = outcome(new_columns(), signal, body)
    assert found == outcome(PureColumns(), signal, body)
    expected = len(found[0]) if isinstance(found, tuple) else found
    assert checked(new_columns(), signal, body) == checked(PureColumns(), signal, body) == expected


def point(**fields: object) -> otlp.NumberPoint:
    return otlp.NumberPoint(time_unix_nano=1_763_168_400_000_000_000, **fields)  # type: ignore[arg-type] - test fields


def request(*metrics: otlp.Metric, **resource: otlp.Plain) -> bytes:
    scope = otlp.ScopeMetrics(scope=otlp.Scope(name="ingero.health", version="1"), metrics=metrics)
    who = otlp.Resource(attributes=otlp.attributes(resource))
    return encode_protobuf(
        otlp.MetricsRequest(
            resource_metrics=(otlp.ResourceMetrics(resource=who, scope_metrics=(scope,)),)
        )
    )


plain_scalars = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=6),
    st.text(st.characters(max_codepoint=127), max_size=6),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
)
common_points = st.lists(
    st.builds(
        point,
        attributes=st.dictionaries(
            st.sampled_from(["op", "causal_chain_id", 'q"\\\n\x01']), plain_scalars, max_size=3
        ).map(otlp.attributes),
        as_double=st.none() | st.floats(),
        flags=st.integers(0, 3),
    )
    | st.builds(
        point,
        as_int=st.integers(-(2**63), 2**63 - 1),
        start_time_unix_nano=st.integers(0, 2**64 - 1),
    ),
    max_size=4,
).map(tuple)


@needs_codecs
@settings(max_examples=150, deadline=None)
@given(common_points, st.booleans(), st.integers(0, 2), st.booleans())
def test_common_metrics_agree(
    points: tuple, is_sum: bool, temporality: int, monotonic: bool
) -> None:
    if is_sum:
        total = otlp.Sum(
            data_points=points, aggregation_temporality=temporality, is_monotonic=monotonic
        )
        metric = otlp.Metric(name="m", unit="By", sum=total)
    else:
        metric = otlp.Metric(name="m", description="d", gauge=otlp.Gauge(data_points=points))
    agree(Signal.METRICS, request(metric, **{"ingero.node.id": "n", "ingero.rank": 3}))


@needs_codecs
@settings(max_examples=40, deadline=None)
@given(st.data(), st.sampled_from(list(SIGNALS)))
def test_any_request_agrees(data: st.DataObject, signal: Signal) -> None:
    agree(signal, encode_protobuf(data.draw(values(SIGNALS[signal]))))


@needs_codecs
@settings(max_examples=200, deadline=None)
@given(st.data(), st.sampled_from(sorted(COMMON)))
def test_other_common_requests_agree_without_the_pure_decoder(
    data: st.DataObject, kind: str
) -> None:
    signal, body = data.draw(COMMON[kind])
    pure = (lambda *_: pytest.fail("left to the pure decoder"), *otlp_columns._PURE_FUNCTIONS[1:])
    found = outcome(otlp_columns.CompiledColumns(pure), signal, body)
    assert found == outcome(PureColumns(), signal, body)
    agree(signal, body)


@needs_codecs
@settings(max_examples=300, deadline=None)
@given(st.data(), st.sampled_from(sorted(COMMON)))
def test_damaged_bytes_agree(data: st.DataObject, kind: str) -> None:
    signal, sound = data.draw(COMMON[kind])
    body = bytearray(sound)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body) - 1))
        what = data.draw(st.sampled_from(["flip", "cut", "insert"]))
        if what == "flip":
            body[at] ^= 1 << data.draw(st.integers(0, 7))
        elif what == "insert":
            body.insert(at, data.draw(st.integers(0, 255)))
        else:
            del body[at:]
            break
    agree(signal, bytes(body))


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=40), st.sampled_from(list(SIGNALS)))
def test_arbitrary_bytes_are_refused_or_agree(body: bytes, signal: Signal) -> None:
    agree(signal, body)


@needs_codecs
@pytest.mark.parametrize("signal", [Signal.TRACES, Signal.LOGS])
def test_records_are_checked_against_the_limits_before_they_are_read(signal: Signal) -> None:
    """Compiled code reads them, and refuses what the pure decoder refuses, in the same words."""
    field = b"\x2a" if signal == Signal.TRACES else b"\x1a"  # the name, the severity
    text = field + varint(otlp_limits.MAX_TEXT_BYTES + 1) + b"x" * (otlp_limits.MAX_TEXT_BYTES + 1)
    for items, expected in (
        ([b"\x12" + varint(len(text)) + text], "a text of more than 1048576 bytes"),
        ([b"\x12\x00"] * 201_000, "more than 200000 events"),
        ([b"\x12\x00"] * 300_001, "more than 600000 fields"),
    ):
        scope = b"".join(items)
        inner = b"\x0a\x00\x12" + varint(len(scope)) + scope
        body = b"\x0a" + varint(len(inner)) + inner
        for columns in (new_columns(), PureColumns()):
            with pytest.raises(TooLarge, match=expected):
                columns.check(signal, body)


@needs_codecs
def test_many_numbers_in_one_value_are_too_many_fields() -> None:
    """Compiled code counts fields before it reads a value that holds others."""
    numbers = otlp.any_value([0] * 300_000)
    attribute = otlp.KeyValue(key="a", value=numbers)
    points = (point(as_double=1.0, attributes=(attribute,)),)
    body = request(otlp.Metric(name="m", gauge=otlp.Gauge(data_points=points)))
    for columns in (new_columns(), PureColumns()):
        with pytest.raises(TooLarge, match="more than 600000 fields"):
            columns.check(Signal.METRICS, body)


@needs_codecs
def test_unusual_requests_keep_the_sign_of_zero() -> None:
    points = (point(as_double=-0.0, attributes=otlp.attributes({"ü": 1})),)
    agree(Signal.METRICS, request(otlp.Metric(name="m", gauge=otlp.Gauge(data_points=points))))


@needs_codecs
def test_a_refused_request_leaves_the_others_alone() -> None:
    good = request(
        otlp.Metric(name="m", gauge=otlp.Gauge(data_points=(point(as_double=1.0), point(as_int=2))))
    )
    for columns in (new_columns(), PureColumns()):
        columns.add(Signal.METRICS, good, 1, 10)
        with pytest.raises(MalformedPush):
            columns.add(Signal.METRICS, good[:-3], 2, 20)
        columns.add(Signal.METRICS, good, 3, 30)
        batch = columns.take()
        assert (batch.seq.tolist(), batch.idx.tolist(), batch.received_us.tolist()) == (
            [1, 1, 3, 3],
            [0, 1, 0, 1],
            [10, 10, 30, 30],
        )
        assert len(columns) == 0


def test_identity_becomes_columns_and_the_rest_stays_json() -> None:
    """F124: cluster, node, rank and nranks of the resource; aliases with other values are kept."""
    who = resource_context(
        otlp.Resource(
            attributes=otlp.attributes(
                {
                    "ingero.cluster.id": "prod",
                    "ingero.node.id": "gpu-7",
                    "ingero.rank": 5,
                    "ingero.node.rank": 5,
                    "ingero.world_size": "64",
                    "ingero.job.id": 4711,
                    "host.name": "other",
                    "os": "linux",
                }
            )
        )
    )
    assert who == (
        "prod",
        "gpu-7",
        5,
        64,
        "4711",
        None,
        None,
        None,
        '{"host.name":"other","os":"linux"}',
    )
    assert resource_context(None) == ("default", *[None] * 8)
    with pytest.raises(MalformedPush, match="line break"):
        resource_context(otlp.Resource(attributes=otlp.attributes({"node_id": "a\nb"})))


@pytest.mark.parametrize(
    ("temporality", "monotonic", "expected"),
    [
        (2, True, ("sum", "cumulative", None, None, 9.0)),
        (0, True, ("sum", "cumulative", None, None, 9.0)),
        (1, True, ("sum", "delta", 9.0, 9, None)),
        (2, False, ("gauge", None, 9.0, 9, None)),
    ],
)
def test_a_running_total_never_lands_in_a_value(
    temporality: int, monotonic: bool, expected: tuple
) -> None:
    total = otlp.Sum(
        data_points=(point(as_int=9),), aggregation_temporality=temporality, is_monotonic=monotonic
    )
    (row,) = decode_rows(Signal.METRICS, request(otlp.Metric(name="t", sum=total)))
    found = (
        row.context.kind,
        row.context.temporality,
        row.value_double,
        row.value_int,
        row.cumulative_value,
    )
    assert found == expected


def test_no_recorded_value_is_missing_not_zero() -> None:
    (row,) = decode_rows(
        Signal.METRICS,
        request(
            otlp.Metric(name="m", gauge=otlp.Gauge(data_points=(point(as_double=0.0, flags=1),)))
        ),
    )
    assert (row.value_double, row.value_int, row.cumulative_value) == (None, None, None)


def test_spans_and_logs_keep_what_matters() -> None:
    span = otlp.Span(
        trace_id="aa" * 16,
        span_id="bb" * 8,
        name="ingero.detection.straggler",
        kind=1,
        start_time_unix_nano=1_000_000_000,
        end_time_unix_nano=3_500_000_000,
        attributes=otlp.attributes({"causal_chain_id": "c1", "n": 1}),
        status=otlp.SpanStatus(code=2, message="late"),
    )
    scopes = (otlp.ScopeSpans(spans=(span,)),)
    body = encode_protobuf(
        otlp.TracesRequest(resource_spans=(otlp.ResourceSpans(scope_spans=scopes),))
    )
    (row,) = decode_rows(Signal.TRACES, body)
    assert row[1:8] == (3_500_000_000, 1_000_000_000, 2500.0, None, None, "c1", '{"n":1}')
    assert row.detail == (
        f'{{"trace_id":"{"aa" * 16}","span_id":"{"bb" * 8}",'
        '"span_kind":"internal","status":"error","message":"late"}'
    )
    record = otlp.LogRecord(
        observed_time_unix_nano=5,
        severity_text="WARN",
        body=otlp.any_value({"a": [1, None]}),
        attributes=otlp.attributes({"event.name": "ingero.verdict"}),
    )
    logs = otlp.LogsRequest(
        resource_logs=(otlp.ResourceLogs(scope_logs=(otlp.ScopeLogs(log_records=(record,)),)),)
    )
    (row,) = decode_rows(Signal.LOGS, encode_protobuf(logs))
    assert (row.context.metric_name, row.context.kind, row.ts) == ("ingero.verdict", "log", 5)
    assert row.detail == '{"severity":"WARN","body":{"a":[1,null]}}'


def test_a_request_of_countless_points_is_too_large() -> None:
    body = request(otlp.Metric(name="m", gauge=otlp.Gauge(data_points=(point(),) * 201_000)))
    for columns in (new_columns(), PureColumns()):
        with pytest.raises(TooLarge, match=r"more than (200000 events|600000 fields)"):
            columns.add(Signal.METRICS, body, 1, 1)
        assert len(columns) == 0
    assert otlp_rows.MAX_ROWS == 200_000


def test_countless_spans_are_too_large_before_any_row_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Freeing 200,000 rows at once held the event loop for 77 ms."""
    monkeypatch.setitem(otlp_rows._ROWS, Signal.TRACES, lambda _: pytest.fail("rows were made"))
    spans = b"\x12\x00" * 201_000
    scope = b"\x12" + varint(len(spans)) + spans
    body = b"\x0a" + varint(len(scope)) + scope
    with pytest.raises(TooLarge, match="more than 200000 events"):
        decode_rows(Signal.TRACES, body)


def test_an_empty_batch_has_no_rows() -> None:
    for columns in (new_columns(), PureColumns()):
        batch = columns.take()
        assert len(batch.seq) == 0
        assert batch.attrs.offsets.dtype == np.int32


@pytest.mark.parametrize("place", ["resource", "scope", "name", "unit"])
@pytest.mark.parametrize("is_ascii", [True, False])
def test_texts_that_many_events_share_are_counted_for_each_of_them(
    place: str, is_ascii: bool
) -> None:
    """The database writes them for each event: one megabyte became a hundred gigabytes."""
    text = ("x" if is_ascii else "é") * 200_000
    points = otlp.Gauge(data_points=(point(as_double=1.0),) * 400)
    metric = otlp.Metric(
        name=text if place == "name" else "m", unit=text if place == "unit" else "", gauge=points
    )
    scope = otlp.ScopeMetrics(
        scope=otlp.Scope(name=text if place == "scope" else "s"), metrics=(metric,)
    )
    who = otlp.Resource(attributes=otlp.attributes({"x": text if place == "resource" else "x"}))
    body = encode_protobuf(
        otlp.MetricsRequest(
            resource_metrics=(otlp.ResourceMetrics(resource=who, scope_metrics=(scope,)),)
        )
    )
    small = request(otlp.Metric(name="m", gauge=points), node_id="n")
    for columns in (new_columns(), PureColumns()):
        assert columns.add(Signal.METRICS, small, 1, 1) == 400
        shared = columns.shared_bytes
        assert shared == 400 * len("defaultningero.healthmgauge")
        for refuse in (columns.add, lambda *body: new_columns().check(*body[:2])):
            with pytest.raises(TooLarge, match="counted once for each event, exceed 268435456"):
                refuse(Signal.METRICS, body, 1, 1)
        assert (len(columns), columns.shared_bytes) == (400, shared)
        columns.clear()
        assert columns.shared_bytes == 0


@pytest.mark.parametrize("key", ["cluster_id", "ingero.node.id", "job_id", "role"])
def test_long_ids_are_refused_and_labels_cut(key: str) -> None:
    metric = otlp.Metric(name="m", gauge=otlp.Gauge(data_points=(point(as_double=1.0),)))
    for columns in (new_columns(), PureColumns()):
        assert columns.add(Signal.METRICS, request(metric, **{key: "é" * 126}), 1, 1) == 1
        with pytest.raises(MalformedPush, match="is longer than 253 bytes"):
            columns.add(Signal.METRICS, request(metric, **{key: "é" * 127}), 1, 1)
    (row,) = decode_rows(Signal.METRICS, request(metric, gpu_model="x" * 300))
    assert row.context.who.gpu_model == "x" * 252 + "…"
    assert "x" * 300 in (row.context.who.resource or "")
