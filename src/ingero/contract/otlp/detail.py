"""The parts of an event that have no column, as JSON: buckets, exemplars, span ids, log body."""

from typing import Final

from ingero.contract.otlp import values as otlp
from ingero.contract.otlp.text import (
    array_json,
    attributes_json,
    number,
    object_json,
    quote,
    value_json,
)

_SPAN_KINDS: Final = ("unspecified", "internal", "server", "client", "producer", "consumer")
_STATUS: Final = ("unset", "ok", "error")


def number_detail(point: otlp.NumberPoint) -> str | None:
    """Return the exemplars of a gauge or sum point."""
    return object_json(
        [("exemplars", array_json(_exemplar(exemplar) for exemplar in point.exemplars))]
    )


def histogram_detail(point: otlp.HistogramPoint) -> str | None:
    """Return totals, bounds and counts of a histogram point."""
    return object_json(
        [
            *_totals(point),
            ("bounds", array_json(number(bound) for bound in point.explicit_bounds)),
            ("counts", array_json(str(count) for count in point.bucket_counts)),
        ]
    )


def exponential_detail(point: otlp.ExponentialHistogramPoint) -> str | None:
    """Return totals, scale and buckets of an exponential histogram point."""
    return object_json(
        [
            *_totals(point),
            ("scale", str(point.scale)),
            ("zero_count", str(point.zero_count)),
            ("zero_threshold", number(point.zero_threshold)),
            ("positive", _buckets(point.positive)),
            ("negative", _buckets(point.negative)),
        ]
    )


def summary_detail(point: otlp.SummaryPoint) -> str | None:
    """Return totals and quantiles of a summary point."""
    quantiles = (
        f'{{"quantile":{number(q.quantile)},"value":{number(q.value)}}}'
        for q in point.quantile_values
    )
    return object_json(
        [
            ("count", str(point.count)),
            ("sum", number(point.sum)),
            ("quantiles", array_json(quantiles)),
        ]
    )


def _totals(
    point: otlp.HistogramPoint | otlp.ExponentialHistogramPoint,
) -> list[tuple[str, str | None]]:
    return [
        ("count", str(point.count)),
        *((name, _optional_number(getattr(point, name))) for name in ("sum", "min", "max")),
        ("exemplars", array_json(_exemplar(exemplar) for exemplar in point.exemplars)),
    ]


def _buckets(buckets: otlp.Buckets | None) -> str | None:
    if buckets is None:
        return None
    counts = array_json(str(count) for count in buckets.bucket_counts)
    return object_json([("offset", str(buckets.offset)), ("counts", counts or "[]")])


def _exemplar(exemplar: otlp.Exemplar) -> str:
    value = (
        str(exemplar.as_int)
        if exemplar.as_int is not None
        else _optional_number(exemplar.as_double)
    )
    fields = [
        ("time_unix_nano", str(exemplar.time_unix_nano)),
        ("value", value),
        ("trace_id", _optional_text(exemplar.trace_id)),
        ("span_id", _optional_text(exemplar.span_id)),
        ("attributes", attributes_json(exemplar.filtered_attributes)),
    ]
    return object_json(fields) or "{}"


def span_detail(span: otlp.Span) -> str | None:
    """Return ids, kind, status, events and links of a span."""
    status = span.status
    return object_json(
        [
            ("trace_id", _optional_text(span.trace_id)),
            ("span_id", _optional_text(span.span_id)),
            ("parent_span_id", _optional_text(span.parent_span_id)),
            ("span_kind", quote(_named(_SPAN_KINDS, span.kind))),
            ("status", quote(_named(_STATUS, status.code)) if status else None),
            ("message", _optional_text(status.message) if status else None),
            ("trace_state", _optional_text(span.trace_state)),
            ("events", array_json(_span_event(event) for event in span.events)),
            ("links", array_json(_span_link(link) for link in span.links)),
        ]
    )


def _span_event(event: otlp.SpanEvent) -> str:
    fields = [("name", quote(event.name)), ("time_unix_nano", str(event.time_unix_nano))]
    return object_json([*fields, ("attributes", attributes_json(event.attributes))]) or "{}"


def _span_link(link: otlp.SpanLink) -> str:
    fields = [("trace_id", quote(link.trace_id)), ("span_id", quote(link.span_id))]
    return object_json([*fields, ("attributes", attributes_json(link.attributes))]) or "{}"


def log_detail(record: otlp.LogRecord) -> str | None:
    """Return severity, body and ids of a log record."""
    return object_json(
        [
            ("severity", _optional_text(record.severity_text)),
            ("severity_number", str(record.severity_number) if record.severity_number else None),
            ("body", value_json(record.body) if record.body else None),
            ("trace_id", _optional_text(record.trace_id)),
            ("span_id", _optional_text(record.span_id)),
        ]
    )


def _named(choices: tuple[str, ...], code: int) -> str:
    return choices[code] if 0 <= code < len(choices) else str(code)


def _optional_number(value: float | None) -> str | None:
    return None if value is None else number(value)


def _optional_text(text: str) -> str | None:
    return quote(text) if text else None
