"""OTLP requests as rows of Echo's `events`: the definition that compiled code is tested against.

What many points share (resource, scope, metric) is a context, to which rows refer. The running
total of a cumulative counter has a field of its own and is never a value.
"""

from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Any, Final, NamedTuple

from ingero.contract import names
from ingero.contract.otlp import values as otlp
from ingero.contract.otlp.codec import count_protobuf_items, decode_protobuf
from ingero.contract.otlp.detail import (
    exponential_detail,
    histogram_detail,
    log_detail,
    number_detail,
    span_detail,
    summary_detail,
)
from ingero.contract.otlp.limits import check_protobuf
from ingero.contract.otlp.text import attributes_json
from ingero.contract.push.decode import MAX_ID_BYTES, cut_label
from ingero.contract.timeline.varint import varint
from ingero.errors import MalformedPush, TooLarge

# Of one request. A body full of empty points would otherwise grow 100-fold in memory.
MAX_ROWS: Final = 200_000
# Of one request: what its rows share (resource, scope, name, unit), counted for each row, because
# the database writes it for each. One megabyte could otherwise become a hundred gigabytes.
MAX_SHARED_BYTES: Final = 256 << 20
_LONG_TEXT: Final = 4096  # the database keeps equal texts once up to this length
_LONG_WEIGHT: Final = 4
NO_VALUE_FLAG: Final = 1  # DataPointFlags: the point has no value
_LARGEST_TIME: Final = 2**63 - 2  # the database reads the next number as infinity
_NS_PER_MS: Final = 1e6
EVENT_NAME_ATTR: Final = "event.name"


class Signal(IntEnum):
    """The kind of a request; the journal stores this number."""

    METRICS = 1
    TRACES = 2
    LOGS = 3


class ResourceContext(NamedTuple):
    """The sender of an event; `resource` holds the attributes that have no column."""

    cluster_id: str
    node_id: str | None
    rank: int | None
    nranks: int | None
    job_id: str | None
    role: str | None
    provider: str | None
    gpu_model: str | None
    resource: str | None


class Context(NamedTuple):
    """What the points of one metric share."""

    who: ResourceContext
    scope: str | None
    metric_name: str
    kind: str
    temporality: str | None
    unit: str | None


class Row(NamedTuple):
    """One event, without the fields that the receiver adds."""

    context: Context
    ts: int | None
    start_ts: int | None
    value_double: float | None
    value_int: int | None
    cumulative_value: float | None
    causal_chain_id: str | None
    attrs: str | None
    detail: str | None


# By field, the attributes that fill it, best first. The plain names are those of the published
# contract of Echo.
_TEXT_SOURCES: Final = {
    "cluster_id": (names.CLUSTER_ID, "cluster_id"),
    "node_id": (names.NODE_ID, "node_id", "host.name"),
    "job_id": (names.JOB_ID, "job_id"),
    "role": (names.ROLE, "role"),
    "provider": (names.PROVIDER, "provider", "cloud.provider"),
    "gpu_model": (names.GPU_MODEL, "gpu_model"),
}
_LABELS: Final = frozenset({"provider", "gpu_model"})  # cut, with the whole text in `resource`
_INT_SOURCES: Final = {
    "rank": (names.RANK, names.NODE_RANK, "rank"),
    "nranks": (names.WORLD_SIZE, "nranks"),
}


def decode_rows(signal: int, body: bytes) -> list[Row]:
    """Return all rows of one request; raises MalformedPush, or TooLarge beyond MAX_ROWS."""
    # An item has at least two bytes. Counting costs a tenth of making rows, which would be for
    # nothing, and of freeing them, for which all other Python code waits.
    kind = _REQUESTS[Signal(signal)]
    if (
        kind is not otlp.MetricsRequest
        and len(body) > 2 * MAX_ROWS
        and count_protobuf_items(kind, body) > MAX_ROWS
    ):
        raise too_many_rows()
    rows = []
    for row in _ROWS[Signal(signal)](body):
        rows.append(row)
        if len(rows) > MAX_ROWS:
            raise too_many_rows()
    return rows


def check_limits(signal: int, body: bytes) -> None:
    """Raise what `decode_rows` raises before it decodes anything."""
    check_protobuf(_REQUESTS[Signal(signal)], body)


def too_many_rows() -> TooLarge:
    """Return the error that pure and compiled code raise."""
    return TooLarge(f"the request holds more than {MAX_ROWS} events; send smaller batches")


def too_much_shared() -> TooLarge:
    """Return the error that pure and compiled code raise."""
    return TooLarge(
        f"resource, scope and names, counted once for each event, exceed {MAX_SHARED_BYTES} bytes; "
        "send smaller batches or shorter texts"
    )


def shared_bytes(context: Context) -> int:
    """Return what the database writes of a context for each row; long texts count more."""
    texts = (*context.who, *context[1:])
    sizes = [len(text.encode()) for text in texts if isinstance(text, str)]
    return sum(size if size <= _LONG_TEXT else _LONG_WEIGHT * size for size in sizes)


def resource_context(resource: otlp.Resource | None) -> ResourceContext:
    """Return the sender that a resource names.

    Raises MalformedPush for names with line breaks, and for ids that are too long: cutting them
    would merge them.
    """
    attributes = resource.attributes if resource else ()
    plain = otlp.plain_attributes(attributes)
    found: dict[str, Any] = {}
    used: dict[str, Any] = {}
    for column, sources in (*_TEXT_SOURCES.items(), *_INT_SOURCES.items()):
        read = _as_int32 if column in _INT_SOURCES else _as_text
        value = next((one for key in sources if (one := read(plain.get(key))) is not None), None)
        found[column] = _name_or_label(column, value) if isinstance(value, str) else value
        used |= dict.fromkeys(sources, found[column])
    found["cluster_id"] = found["cluster_id"] or names.DEFAULT_CLUSTER
    rest = [
        kv for kv in attributes if kv.key not in used or str(plain[kv.key]) != str(used[kv.key])
    ]
    return ResourceContext(**found, resource=attributes_json(rest))


def _name_or_label(column: str, text: str) -> str:
    if "\r" in text or "\n" in text:
        raise MalformedPush(f"{column} {text[:MAX_ID_BYTES]!r} contains a line break")
    if column in _LABELS:
        return cut_label(text)
    if len(text) > MAX_ID_BYTES or len(text.encode()) > MAX_ID_BYTES:
        raise MalformedPush(f"{column} is longer than {MAX_ID_BYTES} bytes")
    return text


def decode_resource(body: bytes) -> ResourceContext:
    """Return `resource_context` of the bytes of a Resource message."""
    # Wrap it in a request with nothing else: field 1 of ResourceMetrics in field 1 of the request.
    inner = b"\x0a" + varint(len(body)) + body
    request = decode_protobuf(otlp.MetricsRequest, b"\x0a" + varint(len(inner)) + inner)
    return resource_context(request.resource_metrics[0].resource)


def sum_kind(temporality: int, is_monotonic: bool) -> tuple[str, str | None]:
    """Return the kind and temporality of a sum.

    A sum that may fall is stored as a gauge; a monotonic one without temporality is cumulative.
    """
    if temporality == otlp.DELTA:
        return "sum", "delta"
    return ("sum", "cumulative") if is_monotonic else ("gauge", None)


# By the field of a metric that holds its points.
_KINDS: Final = {5: "gauge", 9: "histogram", 10: "exponential_histogram", 11: "summary"}
_SUM_FIELD: Final = 7


def metric_kind(field: int, temporality: int, is_monotonic: bool) -> tuple[str, str | None]:
    """Return the kind and temporality of a metric whose points are in this field of it."""
    if field == _SUM_FIELD:
        return sum_kind(temporality, is_monotonic)
    return _KINDS[field], {otlp.DELTA: "delta", otlp.CUMULATIVE: "cumulative"}.get(temporality)


def _metric_rows(body: bytes) -> Iterator[Row]:
    for resource in decode_protobuf(otlp.MetricsRequest, body).resource_metrics:
        who = resource_context(resource.resource)
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                yield from _rows_of_metric(who, _scope_name(scope.scope), metric)


def _rows_of_metric(who: ResourceContext, scope: str | None, metric: otlp.Metric) -> Iterator[Row]:
    def context(kind: str, temporality: str | None) -> Context:
        return Context(who, scope, metric.name, kind, temporality, metric.unit or None)

    numbers = context("gauge", None)
    if metric.sum is not None:
        numbers = context(*sum_kind(metric.sum.aggregation_temporality, metric.sum.is_monotonic))
    for number_point in metric.numbers:
        yield _number_row(numbers, number_point)
    holder: Any
    detail: Callable[[Any], str | None]
    for field, holder, detail in (
        (9, metric.histogram, histogram_detail),
        (10, metric.exponential_histogram, exponential_detail),
        (11, metric.summary, summary_detail),
    ):
        if holder is not None:
            temporality = getattr(holder, "aggregation_temporality", 0)
            shared = context(*metric_kind(field, temporality, False))
            for point in holder.data_points:
                chain, attrs = _point_attributes(point.attributes)
                times = time_or_none(point.time_unix_nano), time_or_none(point.start_time_unix_nano)
                yield Row(shared, *times, None, None, None, chain, attrs, detail(point))


def _number_row(context: Context, point: otlp.NumberPoint) -> Row:
    whole = point.as_int
    value = float(whole) if whole is not None else point.as_double
    if point.flags & NO_VALUE_FLAG:
        value = whole = None
    chain, attrs = _point_attributes(point.attributes)
    times = time_or_none(point.time_unix_nano), time_or_none(point.start_time_unix_nano)
    detail = number_detail(point)
    if context.temporality == "cumulative":
        return Row(context, *times, None, None, value, chain, attrs, detail)
    return Row(context, *times, value, whole, None, chain, attrs, detail)


def _span_rows(body: bytes) -> Iterator[Row]:
    for resource in decode_protobuf(otlp.TracesRequest, body).resource_spans:
        who = resource_context(resource.resource)
        for scope in resource.scope_spans:
            for span in scope.spans:
                context = Context(who, _scope_name(scope.scope), span.name, "span", None, "ms")
                chain, attrs = _point_attributes(span.attributes)
                start, end = (
                    time_or_none(span.start_time_unix_nano),
                    time_or_none(span.end_time_unix_nano),
                )
                duration_ms = None if start is None or end is None else (end - start) / _NS_PER_MS
                yield Row(
                    context,
                    end or start,
                    start,
                    duration_ms,
                    None,
                    None,
                    chain,
                    attrs,
                    span_detail(span),
                )


def _log_rows(body: bytes) -> Iterator[Row]:
    for resource in decode_protobuf(otlp.LogsRequest, body).resource_logs:
        who = resource_context(resource.resource)
        for scope in resource.scope_logs:
            for record in scope.log_records:
                name = record.event_name or _as_text(
                    otlp.plain_attributes(record.attributes).get(EVENT_NAME_ATTR)
                )
                context = Context(who, _scope_name(scope.scope), name or "log", "log", None, None)
                chain, attrs = _point_attributes(record.attributes)
                ts = time_or_none(record.time_unix_nano) or time_or_none(
                    record.observed_time_unix_nano
                )
                yield Row(context, ts, None, None, None, None, chain, attrs, log_detail(record))


_ROWS: Final = {Signal.METRICS: _metric_rows, Signal.TRACES: _span_rows, Signal.LOGS: _log_rows}
_REQUESTS: Final[dict[int, otlp.Kind]] = {
    Signal.METRICS: otlp.MetricsRequest,
    Signal.TRACES: otlp.TracesRequest,
    Signal.LOGS: otlp.LogsRequest,
}


def _point_attributes(attributes: tuple[otlp.KeyValue, ...]) -> tuple[str | None, str | None]:
    """Return the id of the causal chain, and the other attributes as JSON."""
    for position, attribute in enumerate(attributes):
        if (
            attribute.key == names.CAUSAL_CHAIN_ID
            and attribute.value
            and attribute.value.string_value is not None
        ):
            rest = (*attributes[:position], *attributes[position + 1 :])
            return attribute.value.string_value, attributes_json(rest)
    return None, attributes_json(attributes)


def time_or_none(nanoseconds: int) -> int | None:
    """Return None for 0, which means unknown in OTLP, and for times outside every calendar."""
    return nanoseconds if 0 < nanoseconds <= _LARGEST_TIME else None


def _scope_name(scope: otlp.Scope | None) -> str | None:
    return (scope.name or None) if scope else None


def _as_text(value: otlp.Plain) -> str | None:
    if isinstance(value, str):
        return value or None
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _as_int32(value: otlp.Plain) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value) if len(value) < 11 else None
    if isinstance(value, int) and not isinstance(value, bool) and -(2**31) <= value < 2**31:
        return value
    return None
