"""Hypothesis strategies for whole OTLP requests, small but touching every field."""

import math
from typing import get_args, get_origin, get_type_hints

import msgspec
from hypothesis import strategies as st

from ingero.contract.collective import CollectiveSource
from ingero.contract.measurements.own_time import OwnTime
from ingero.contract.names import CAUSAL_CHAIN_ID as CHAIN
from ingero.contract.otlp import values as otlp
from ingero.contract.otlp.codec import encode_protobuf
from ingero.contract.otlp.rows import Signal

texts = st.text(st.characters(codec="utf-8"), max_size=4)
times = st.integers(0, 2**64 - 1)
floats = st.floats(allow_nan=False)


def any_values() -> st.SearchStrategy[otlp.AnyValue]:
    scalars = st.one_of(
        st.none(),
        texts,
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        floats,
        st.binary(max_size=3),
    )
    plains = st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
        max_leaves=3,
    )
    return plains.map(otlp.any_value)


def values(cls: type) -> st.SearchStrategy:
    """A value of any OTLP type, every field drawn or left at its default."""
    hints = get_type_hints(cls, include_extras=True)
    fields = {
        field.name: st.just(field.default) | _field(hints[field.name])
        for field in msgspec.structs.fields(cls)
    }
    if cls in (otlp.NumberPoint, otlp.Exemplar):  # one of the two, as the protocol says
        return st.one_of(
            st.builds(cls, **fields | {"as_int": st.none()}),
            st.builds(cls, **fields | {"as_double": st.none()}),
        )
    if cls is otlp.Metric:
        kinds = ("gauge", "sum", "histogram", "exponential_histogram", "summary")
        return st.one_of(
            *(
                st.builds(cls, **fields | {other: st.none() for other in kinds if other != kind})
                for kind in kinds
            )
        )
    return st.builds(cls, **fields)


def _field(hint: object) -> st.SearchStrategy:
    arguments = get_args(hint)
    if type(None) in arguments:
        return st.none() | _field(
            next(argument for argument in arguments if argument is not type(None))
        )
    if get_origin(hint) is tuple:
        return st.lists(_field(arguments[0]), max_size=2).map(tuple)
    scalars = {
        otlp.UInt64: times,
        otlp.Int64: st.integers(-(2**63), 2**63 - 1),
        otlp.UInt32: st.integers(0, 2**32 - 1),
        otlp.Int32: st.integers(0, 3),
        otlp.HexId: st.sampled_from((0, 1, 8, 16)).flatmap(
            lambda size: st.binary(min_size=size, max_size=size).map(bytes.hex)
        ),
        str: texts,
        float: floats,
        bool: st.booleans(),
        otlp.AnyValue: any_values(),
    }
    return scalars[hint] if hint in scalars else values(hint)


# Requests of the shapes that senders use, which compiled code reads by itself: by kind, the signal
# and the body.
_names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=4)
_plain_attributes = st.builds(
    lambda found, chain: otlp.attributes(found | ({} if chain is None else {CHAIN: chain})),
    st.dictionaries(_names, texts | st.integers(-(2**63), 2**63 - 1), max_size=3),
    st.none() | texts,
)
_numbers = st.floats().filter(lambda value: value != 0 or math.copysign(1, value) > 0)
_shared = {
    "attributes": _plain_attributes,
    "time_unix_nano": times,
    "start_time_unix_nano": times,
    "flags": st.integers(0, 3),
}
_totals = {"count": times, **dict.fromkeys(("sum", "min", "max"), st.none() | st.floats())}
_counts = st.lists(times, max_size=3).map(tuple)
_buckets = st.none() | st.builds(
    otlp.Buckets, offset=st.integers(-(2**31), 2**31 - 1), bucket_counts=_counts
)
_points = {
    "histogram": st.builds(
        otlp.HistogramPoint,
        **_shared,
        **_totals,
        bucket_counts=_counts,
        explicit_bounds=st.lists(st.floats(), max_size=3).map(tuple),
    ),
    "exponential_histogram": st.builds(
        otlp.ExponentialHistogramPoint,
        **_shared,
        **_totals,
        scale=st.integers(-(2**31), 2**31 - 1),
        zero_count=times,
        zero_threshold=_numbers,
        positive=_buckets,
        negative=_buckets,
    ),
    "summary": st.builds(
        otlp.SummaryPoint,
        **_shared,
        count=times,
        sum=_numbers,
        quantile_values=st.lists(
            st.builds(otlp.Quantile, quantile=_numbers, value=_numbers), max_size=2
        ).map(tuple),
    ),
    "gauge": st.builds(otlp.NumberPoint, **_shared, as_double=st.none() | st.floats()),
}
_HOLDERS = {
    "histogram": otlp.Histogram,
    "exponential_histogram": otlp.ExponentialHistogram,
    "summary": otlp.Summary,
    "gauge": otlp.Gauge,
}
_ids = {"trace_id": st.sampled_from(["", "0a" * 16]), "span_id": st.sampled_from(["", "fb" * 8])}
_records = st.builds(
    otlp.LogRecord,
    **_ids,
    time_unix_nano=times,
    observed_time_unix_nano=times,
    severity_number=st.integers(0, 30),
    severity_text=texts,
    body=st.none()
    | st.recursive(
        texts | st.none() | st.booleans() | st.floats(),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_names, inner, max_size=2),
        max_leaves=4,
    ).map(otlp.any_value),
    attributes=_plain_attributes
    | texts.map(lambda name: otlp.attributes({"event.name": name, "n": 1})),
    flags=st.integers(0, 2**32 - 1),
    dropped_attributes_count=st.integers(0, 2**32 - 1),
    event_name=texts,
)
_spans = st.builds(
    otlp.Span,
    **_ids,
    parent_span_id=st.sampled_from(["", "c4" * 8]),
    name=texts,
    trace_state=texts,
    kind=st.integers(0, 5),
    flags=st.integers(0, 2**32 - 1),
    start_time_unix_nano=times,
    end_time_unix_nano=times,
    attributes=_plain_attributes,
    status=st.none() | st.builds(otlp.SpanStatus, message=texts, code=st.integers(0, 2)),
    events=st.lists(
        st.builds(
            otlp.SpanEvent,
            time_unix_nano=times,
            name=texts,
            attributes=_plain_attributes,
            dropped_attributes_count=st.integers(0, 9),
        ),
        max_size=2,
    ).map(tuple),
    links=st.lists(
        st.builds(
            otlp.SpanLink,
            **_ids,
            trace_state=texts,
            attributes=_plain_attributes,
            flags=st.integers(0, 9),
        ),
        max_size=2,
    ).map(tuple),
)


def _metrics(kind: str, points: list[otlp.Value], temporality: int) -> tuple[Signal, bytes]:
    holder = _HOLDERS[kind](data_points=tuple(points))
    if hasattr(holder, "aggregation_temporality"):
        holder = msgspec.structs.replace(holder, aggregation_temporality=temporality)
    scope = otlp.ScopeMetrics(
        scope=otlp.Scope(name="é"), metrics=(otlp.Metric(name="m", unit="ms", **{kind: holder}),)
    )
    resource = otlp.ResourceMetrics(resource=_who, scope_metrics=(scope,))
    return Signal.METRICS, encode_protobuf(otlp.MetricsRequest(resource_metrics=(resource,)))


def _logs(records: list[otlp.LogRecord]) -> tuple[Signal, bytes]:
    scope = otlp.ScopeLogs(scope=otlp.Scope(name="s"), log_records=tuple(records))
    resource = otlp.ResourceLogs(resource=_who, scope_logs=(scope,))
    return Signal.LOGS, encode_protobuf(otlp.LogsRequest(resource_logs=(resource,)))


def _traces(spans: list[otlp.Span]) -> tuple[Signal, bytes]:
    scope = otlp.ScopeSpans(spans=tuple(spans))
    resource = otlp.ResourceSpans(resource=_who, scope_spans=(scope,))
    return Signal.TRACES, encode_protobuf(otlp.TracesRequest(resource_spans=(resource,)))


_who = otlp.Resource(attributes=otlp.attributes({"ingero.node.id": "n", "ingero.rank": 3}))
COMMON: dict[str, st.SearchStrategy[tuple[Signal, bytes]]] = {
    **{
        kind: st.builds(_metrics, st.just(kind), st.lists(points, max_size=2), st.integers(0, 2))
        for kind, points in _points.items()
    },
    "logs": st.lists(_records, max_size=3).map(_logs),
    "spans": st.lists(_spans, max_size=3).map(_traces),
}


milliseconds = st.integers(0, 10**9).map(lambda us: us / 1000)


own_times = st.builds(
    OwnTime,
    step=st.none() | st.integers(0, 2**63 - 1),
    count=st.integers(1, 1000),
    own_ms=milliseconds,
    idle_ms=milliseconds | st.just(math.nan),
    span_ms=milliseconds | st.just(math.nan),
    end_ns=st.integers(0, 2**62),
    source=st.none() | st.sampled_from(CollectiveSource),
)
