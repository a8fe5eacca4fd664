"""Verdicts as OTLP log records, the form in which Echo and other backends receive them."""

from collections.abc import Iterable

import msgspec

from ingero.contract import names
from ingero.contract.otlp.values import (
    AnyValue,
    LogRecord,
    LogsRequest,
    Resource,
    ResourceLogs,
    ScopeLogs,
    attributes,
)
from ingero.contract.verdict import Verdict, VerdictState


def encode_verdict_logs(changed: Iterable[tuple[str, Verdict]], wall_ns: int) -> LogsRequest:
    """Return a request with one resource per pair of cluster and verdict."""
    resources = []
    for cluster, verdict in changed:
        identity = {
            names.CLUSTER_ID: cluster,
            names.NODE_ID: verdict.node,
            names.JOB_ID: verdict.job,
        }
        record = LogRecord(
            time_unix_nano=wall_ns,
            observed_time_unix_nano=wall_ns,
            severity_number=13 if verdict.state is VerdictState.STRAGGLER else 9,
            severity_text="WARN" if verdict.state is VerdictState.STRAGGLER else "INFO",
            body=AnyValue(string_value=msgspec.json.encode(verdict).decode()),
            event_name=names.VERDICT_EVENT,
        )
        resource = Resource(
            attributes=attributes({key: value for key, value in identity.items() if value})
        )
        resources.append(
            ResourceLogs(resource=resource, scope_logs=(ScopeLogs(log_records=(record,)),))
        )
    return LogsRequest(tuple(resources))
