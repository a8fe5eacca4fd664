"""Requests that are known to be sound: one event for each table that is derived from events."""

from functools import cache

from ingero.contract import names
from ingero.contract.otlp import values as otlp
from ingero.contract.otlp.codec import encode_protobuf
from ingero.contract.otlp.rows import Signal


@cache
def sound_requests() -> tuple[tuple[Signal, bytes], ...]:
    """Return a collective, a verdict and a causal chain as `(signal, body)`."""
    point = otlp.NumberPoint(
        time_unix_nano=1, as_double=1.0, attributes=otlp.attributes({names.NCCL_RANK: 0})
    )
    metrics = tuple(
        otlp.Metric(name=name, gauge=otlp.Gauge(data_points=(point,)))
        for name in (names.COLLECTIVE_DURATION_MS, names.COLLECTIVE_BYTES)
    )
    records = tuple(
        otlp.LogRecord(time_unix_nano=1, event_name=name, body=otlp.any_value({"node": "n"}))
        for name in (names.VERDICT_EVENT, names.CAUSAL_CHAIN_EVENT)
    )
    scopes = (otlp.ScopeMetrics(metrics=metrics),)
    logs = (otlp.ScopeLogs(log_records=records),)
    measured = otlp.MetricsRequest(resource_metrics=(otlp.ResourceMetrics(scope_metrics=scopes),))
    logged = otlp.LogsRequest(resource_logs=(otlp.ResourceLogs(scope_logs=logs),))
    return (Signal.METRICS, encode_protobuf(measured)), (Signal.LOGS, encode_protobuf(logged))
