"""What one event of each kind costs Echo to decode: to columns in compiled code, and purely."""

import time

from ingero.contract.otlp import values as otlp
from ingero.contract.otlp.codec import encode_protobuf
from ingero.contract.otlp.columns import Columns, PureColumns, new_columns
from ingero.contract.otlp.rows import Signal

EVENTS = 1000  # of a request
ROUNDS = 5
NOW_NS = 1_763_168_400_000_000_000
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def _attributes(i: int) -> tuple[otlp.KeyValue, ...]:
    return otlp.attributes(
        {"op": "ncclAllReduce", "kernel": f"sm90_gemm_{i % 37}", "rank": i % 64, "us": i / 3.0}
    )


def _metrics() -> dict[str, otlp.Metric]:
    """Return a metric of each kind."""
    shared = [
        {"attributes": _attributes(i), "time_unix_nano": NOW_NS + i, "start_time_unix_nano": NOW_NS}
        for i in range(EVENTS)
    ]
    counts, bounds = tuple(range(12)), tuple(2.0**i for i in range(11))
    buckets = otlp.Buckets(offset=-4, bucket_counts=counts)
    quantiles = tuple(otlp.Quantile(quantile=q, value=q * 7) for q in (0.5, 0.9, 0.99))
    totals = {"count": 66, "sum": 123.25, "min": 0.125, "max": 99.5}
    numbers = (otlp.NumberPoint(**each, as_double=1 / 3) for each in shared)
    histograms = (
        otlp.HistogramPoint(**each, **totals, bucket_counts=counts, explicit_bounds=bounds)
        for each in shared
    )
    exponential = (
        otlp.ExponentialHistogramPoint(**each, **totals, scale=3, positive=buckets)
        for each in shared
    )
    summaries = (
        otlp.SummaryPoint(**each, count=66, sum=123.25, quantile_values=quantiles)
        for each in shared
    )
    return {
        "gauge": otlp.Metric(gauge=otlp.Gauge(data_points=tuple(numbers))),
        "histogram": otlp.Metric(histogram=otlp.Histogram(data_points=tuple(histograms))),
        "exponential histogram": otlp.Metric(
            exponential_histogram=otlp.ExponentialHistogram(data_points=tuple(exponential))
        ),
        "summary": otlp.Metric(summary=otlp.Summary(data_points=tuple(summaries))),
    }


def _log_request(who: otlp.Resource) -> bytes:
    records = tuple(
        otlp.LogRecord(
            time_unix_nano=NOW_NS + i,
            severity_number=9,
            severity_text="INFO",
            body=otlp.any_value(f"step {i} of rank {i % 64} took 0.25 s"),
            attributes=_attributes(i),
            trace_id=TRACE,
            span_id=SPAN,
        )
        for i in range(EVENTS)
    )
    scope = otlp.ScopeLogs(log_records=records)
    resource = otlp.ResourceLogs(resource=who, scope_logs=(scope,))
    return encode_protobuf(otlp.LogsRequest(resource_logs=(resource,)))


def _span_request(who: otlp.Resource) -> bytes:
    spans = tuple(
        otlp.Span(
            trace_id=TRACE,
            span_id=SPAN,
            name=f"step {i % 8}",
            kind=1,
            start_time_unix_nano=NOW_NS,
            end_time_unix_nano=NOW_NS + i,
            attributes=_attributes(i),
            status=otlp.SpanStatus(code=1),
        )
        for i in range(EVENTS)
    )
    scope = otlp.ScopeSpans(spans=spans)
    resource = otlp.ResourceSpans(resource=who, scope_spans=(scope,))
    return encode_protobuf(otlp.TracesRequest(resource_spans=(resource,)))


def _bodies() -> dict[str, tuple[Signal, bytes]]:
    """Return requests of one kind each, about as large as what senders send."""
    who = otlp.Resource(attributes=otlp.attributes({"ingero.node.id": "node-1"}))
    return {
        **{name: (Signal.METRICS, _metric_request(who, one)) for name, one in _metrics().items()},
        "log record": (Signal.LOGS, _log_request(who)),
        "span": (Signal.TRACES, _span_request(who)),
    }


def _metric_request(who: otlp.Resource, metric: otlp.Metric) -> bytes:
    scope = otlp.ScopeMetrics(metrics=(metric,))
    resource = otlp.ResourceMetrics(resource=who, scope_metrics=(scope,))
    return encode_protobuf(otlp.MetricsRequest(resource_metrics=(resource,)))


def _best_us(columns: Columns, signal: Signal, body: bytes, *, is_kept: bool) -> float:
    """Return microseconds of CPU per event, the least of a few rounds."""
    best = float("inf")
    for number in range(ROUNDS):
        began = time.thread_time()
        if is_kept:
            columns.add(signal, body, number, 0)
            columns.take()
        else:
            columns.check(signal, body)
        best = min(best, time.thread_time() - began)
    return best / EVENTS * 1e6


def decode_rows_of_table() -> list[tuple[str, float, float, float, float]]:
    """Return a row per kind: bytes, then CPU to check and to decode, and to decode purely."""
    return [
        (
            name,
            len(body) / EVENTS,
            _best_us(new_columns(), signal, body, is_kept=False),
            _best_us(new_columns(), signal, body, is_kept=True),
            _best_us(PureColumns(), signal, body, is_kept=True),
        )
        for name, (signal, body) in _bodies().items()
    ]
