"""OTLP requests as frozen values, equal whether they arrived as protobuf or as JSON.

Field names are those of the protocol's messages; JSON spells them in camelCase. Ids are lower-case
hex. A field is None where the protocol distinguishes absent from zero.
"""

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
# msgspec supports no upper bound beyond int64; the protobuf encoder refuses larger numbers.
UInt64 = Annotated[int, Meta(ge=0)]
UInt32 = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
# The id of a trace or span. Its length is not checked: protobuf carries any, and JSON does as well.
HexId = Annotated[str, Meta(pattern=r"\A([0-9a-fA-F]{2})*\Z")]
Plain: TypeAlias = "str | bool | int | float | bytes | list[Plain] | dict[str, Plain] | None"

_SCALAR_FIELDS = {
    str: "string_value",
    bool: "bool_value",
    int: "int_value",
    float: "double_value",
    bytes: "bytes_value",
}
CUMULATIVE = 2  # AggregationTemporality
DELTA = 1


class Value(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """The base of all OTLP values: immutable, compared by content."""


class _Identified(Value, frozen=True, gc=False):
    """The base of values with ids, which are stored in lower case."""

    def __post_init__(self) -> None:
        for name in ("trace_id", "span_id", "parent_span_id"):
            text = getattr(self, name, "")
            if text and not text.islower():
                msgspec.structs.force_setattr(self, name, text.lower())


class ArrayValue(Value, frozen=True, gc=False):
    values: "tuple[AnyValue, ...]" = ()


class KeyValueList(Value, frozen=True, gc=False):
    values: "tuple[KeyValue, ...]" = ()


class AnyValue(Value, frozen=True, gc=False):
    """A value of which at most one field is set; without any it is empty."""

    string_value: str | None = None
    bool_value: bool | None = None
    int_value: Int64 | None = None
    double_value: float | None = None
    array_value: ArrayValue | None = None
    kvlist_value: KeyValueList | None = None
    bytes_value: bytes | None = None


_EMPTY = AnyValue()


class KeyValue(Value, frozen=True, gc=False):
    key: str = ""
    value: AnyValue | None = None


class Scope(Value, frozen=True, gc=False):
    name: str = ""
    version: str = ""
    attributes: tuple[KeyValue, ...] = ()
    dropped_attributes_count: UInt32 = 0


class Resource(Value, frozen=True, gc=False):
    attributes: tuple[KeyValue, ...] = ()
    dropped_attributes_count: UInt32 = 0


class Exemplar(_Identified, frozen=True, gc=False):
    filtered_attributes: tuple[KeyValue, ...] = ()
    time_unix_nano: UInt64 = 0
    as_double: float | None = None
    as_int: Int64 | None = None
    span_id: HexId = ""
    trace_id: HexId = ""


class NumberPoint(Value, frozen=True, gc=False):
    attributes: tuple[KeyValue, ...] = ()
    start_time_unix_nano: UInt64 = 0
    time_unix_nano: UInt64 = 0
    as_double: float | None = None
    as_int: Int64 | None = None
    exemplars: tuple[Exemplar, ...] = ()
    flags: UInt32 = 0


class HistogramPoint(Value, frozen=True, gc=False):
    attributes: tuple[KeyValue, ...] = ()
    start_time_unix_nano: UInt64 = 0
    time_unix_nano: UInt64 = 0
    count: UInt64 = 0
    sum: float | None = None
    bucket_counts: tuple[UInt64, ...] = ()
    explicit_bounds: tuple[float, ...] = ()
    exemplars: tuple[Exemplar, ...] = ()
    flags: UInt32 = 0
    min: float | None = None
    max: float | None = None


class Buckets(Value, frozen=True, gc=False):
    offset: Int32 = 0
    bucket_counts: tuple[UInt64, ...] = ()


class ExponentialHistogramPoint(Value, frozen=True, gc=False):
    attributes: tuple[KeyValue, ...] = ()
    start_time_unix_nano: UInt64 = 0
    time_unix_nano: UInt64 = 0
    count: UInt64 = 0
    sum: float | None = None
    scale: Int32 = 0
    zero_count: UInt64 = 0
    positive: Buckets | None = None
    negative: Buckets | None = None
    flags: UInt32 = 0
    exemplars: tuple[Exemplar, ...] = ()
    min: float | None = None
    max: float | None = None
    zero_threshold: float = 0.0


class Quantile(Value, frozen=True, gc=False):
    quantile: float = 0.0
    value: float = 0.0


class SummaryPoint(Value, frozen=True, gc=False):
    attributes: tuple[KeyValue, ...] = ()
    start_time_unix_nano: UInt64 = 0
    time_unix_nano: UInt64 = 0
    count: UInt64 = 0
    sum: float = 0.0
    quantile_values: tuple[Quantile, ...] = ()
    flags: UInt32 = 0


class Gauge(Value, frozen=True, gc=False):
    data_points: tuple[NumberPoint, ...] = ()


class Sum(Value, frozen=True, gc=False):
    data_points: tuple[NumberPoint, ...] = ()
    aggregation_temporality: Int32 = 0
    is_monotonic: bool = False


class Histogram(Value, frozen=True, gc=False):
    data_points: tuple[HistogramPoint, ...] = ()
    aggregation_temporality: Int32 = 0


class ExponentialHistogram(Value, frozen=True, gc=False):
    data_points: tuple[ExponentialHistogramPoint, ...] = ()
    aggregation_temporality: Int32 = 0


class Summary(Value, frozen=True, gc=False):
    data_points: tuple[SummaryPoint, ...] = ()


class Metric(Value, frozen=True, gc=False):
    name: str = ""
    description: str = ""
    unit: str = ""
    gauge: Gauge | None = None
    sum: Sum | None = None
    histogram: Histogram | None = None
    exponential_histogram: ExponentialHistogram | None = None
    summary: Summary | None = None
    metadata: tuple[KeyValue, ...] = ()

    @property
    def numbers(self) -> tuple[NumberPoint, ...]:
        """The points of a gauge or a sum; empty for every other kind."""
        kind = self.gauge or self.sum
        return kind.data_points if kind else ()


class ScopeMetrics(Value, frozen=True, gc=False):
    scope: Scope | None = None
    metrics: tuple[Metric, ...] = ()
    schema_url: str = ""


class ResourceMetrics(Value, frozen=True, gc=False):
    resource: Resource | None = None
    scope_metrics: tuple[ScopeMetrics, ...] = ()
    schema_url: str = ""


class MetricsRequest(Value, frozen=True, gc=False):
    resource_metrics: tuple[ResourceMetrics, ...] = ()


class SpanEvent(Value, frozen=True, gc=False):
    time_unix_nano: UInt64 = 0
    name: str = ""
    attributes: tuple[KeyValue, ...] = ()
    dropped_attributes_count: UInt32 = 0


class SpanLink(_Identified, frozen=True, gc=False):
    trace_id: HexId = ""
    span_id: HexId = ""
    trace_state: str = ""
    attributes: tuple[KeyValue, ...] = ()
    dropped_attributes_count: UInt32 = 0
    flags: UInt32 = 0


class SpanStatus(Value, frozen=True, gc=False):
    message: str = ""
    code: Int32 = 0


class Span(_Identified, frozen=True, gc=False):
    trace_id: HexId = ""
    span_id: HexId = ""
    trace_state: str = ""
    parent_span_id: HexId = ""
    flags: UInt32 = 0
    name: str = ""
    kind: Int32 = 0
    start_time_unix_nano: UInt64 = 0
    end_time_unix_nano: UInt64 = 0
    attributes: tuple[KeyValue, ...] = ()
    dropped_attributes_count: UInt32 = 0
    events: tuple[SpanEvent, ...] = ()
    dropped_events_count: UInt32 = 0
    links: tuple[SpanLink, ...] = ()
    dropped_links_count: UInt32 = 0
    status: SpanStatus | None = None


class ScopeSpans(Value, frozen=True, gc=False):
    scope: Scope | None = None
    spans: tuple[Span, ...] = ()
    schema_url: str = ""


class ResourceSpans(Value, frozen=True, gc=False):
    resource: Resource | None = None
    scope_spans: tuple[ScopeSpans, ...] = ()
    schema_url: str = ""


class TracesRequest(Value, frozen=True, gc=False):
    resource_spans: tuple[ResourceSpans, ...] = ()


class LogRecord(_Identified, frozen=True, gc=False):
    time_unix_nano: UInt64 = 0
    observed_time_unix_nano: UInt64 = 0
    severity_number: Int32 = 0
    severity_text: str = ""
    body: AnyValue | None = None
    attributes: tuple[KeyValue, ...] = ()
    dropped_attributes_count: UInt32 = 0
    flags: UInt32 = 0
    trace_id: HexId = ""
    span_id: HexId = ""
    event_name: str = ""


class ScopeLogs(Value, frozen=True, gc=False):
    scope: Scope | None = None
    log_records: tuple[LogRecord, ...] = ()
    schema_url: str = ""


class ResourceLogs(Value, frozen=True, gc=False):
    resource: Resource | None = None
    scope_logs: tuple[ScopeLogs, ...] = ()
    schema_url: str = ""


class LogsRequest(Value, frozen=True, gc=False):
    resource_logs: tuple[ResourceLogs, ...] = ()


Request: TypeAlias = MetricsRequest | TracesRequest | LogsRequest
Kind: TypeAlias = type[MetricsRequest] | type[TracesRequest] | type[LogsRequest]


def plain(value: AnyValue | None) -> Plain:
    """Return the Python value inside an AnyValue; None for an empty one."""
    if value is None:
        return None
    if value.string_value is not None:
        return value.string_value
    for scalar in (value.int_value, value.double_value, value.bool_value, value.bytes_value):
        if scalar is not None:
            return scalar
    if value.array_value is not None:
        return [plain(item) for item in value.array_value.values]
    return plain_attributes(value.kvlist_value.values) if value.kvlist_value is not None else None


def plain_attributes(attributes: tuple[KeyValue, ...]) -> dict[str, Plain]:
    """Return attributes as a dictionary; of equal keys the last one counts."""
    return {attribute.key: plain(attribute.value) for attribute in attributes}


def any_value(value: Plain) -> AnyValue:
    """Return the AnyValue of a Python value."""
    if isinstance(value, list):
        return AnyValue(array_value=ArrayValue(values=tuple(any_value(item) for item in value)))
    if isinstance(value, dict):
        return AnyValue(kvlist_value=KeyValueList(values=attributes(value)))
    return (
        AnyValue()
        if value is None
        else msgspec.structs.replace(_EMPTY, **{_SCALAR_FIELDS[type(value)]: value})
    )


def attributes(values: dict[str, Plain]) -> tuple[KeyValue, ...]:
    """Return the attributes of a dictionary."""
    return tuple(KeyValue(key=key, value=any_value(value)) for key, value in values.items())


def count_items(request: Request) -> int:
    """Return the number of data points, spans or log records, which is what OTLP counts."""
    match request:
        case MetricsRequest():
            return sum(
                len(kind.data_points)
                for resource in request.resource_metrics
                for scope in resource.scope_metrics
                for metric in scope.metrics
                for kind in (
                    metric.gauge,
                    metric.sum,
                    metric.histogram,
                    metric.exponential_histogram,
                    metric.summary,
                )
                if kind is not None
            )
        case TracesRequest():
            return sum(
                len(scope.spans)
                for resource in request.resource_spans
                for scope in resource.scope_spans
            )
        case LogsRequest():
            return sum(
                len(scope.log_records)
                for resource in request.resource_logs
                for scope in resource.scope_logs
            )
