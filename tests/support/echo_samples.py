"""OTLP requests for Echo's tests."""

from ingero.contract.otlp import values as otlp
from ingero.contract.otlp.codec import encode_protobuf

START_NS = 1_763_168_400_000_000_000


def metrics_body(
    node: str = "n1",
    *,
    points: int = 1,
    first: int = 0,
    name: str = "m",
    value: float = 1.0,
    **attributes: otlp.Plain,
) -> bytes:
    """`points` gauge points of one node; `first` makes requests differ."""
    data_points = tuple(
        otlp.NumberPoint(
            time_unix_nano=START_NS + (first + i) * 1000,
            as_double=value,
            attributes=otlp.attributes(attributes),
        )
        for i in range(points)
    )
    metric = otlp.Metric(name=name, gauge=otlp.Gauge(data_points=data_points))
    who = otlp.Resource(
        attributes=otlp.attributes({"ingero.node.id": node, "ingero.cluster.id": "c1"})
    )
    resource = otlp.ResourceMetrics(
        resource=who, scope_metrics=(otlp.ScopeMetrics(metrics=(metric,)),)
    )
    return encode_protobuf(otlp.MetricsRequest(resource_metrics=(resource,)))


START_NS = 1_763_168_400_000_000_000


def metrics(*metric: otlp.Metric, **resource: otlp.Plain) -> bytes:
    who = otlp.Resource(
        attributes=otlp.attributes({"ingero.node.id": "n1", "ingero.cluster.id": "c1", **resource})
    )
    scope = otlp.ScopeMetrics(metrics=metric)
    return encode_protobuf(
        otlp.MetricsRequest(
            resource_metrics=(otlp.ResourceMetrics(resource=who, scope_metrics=(scope,)),)
        )
    )


def gauge(name: str, *values: float, step_ns: int = 10**9, **attributes: otlp.Plain) -> otlp.Metric:
    points = tuple(
        otlp.NumberPoint(
            time_unix_nano=START_NS + i * step_ns,
            as_double=value,
            attributes=otlp.attributes(attributes),
        )
        for i, value in enumerate(values)
    )
    return otlp.Metric(name=name, gauge=otlp.Gauge(data_points=points))
