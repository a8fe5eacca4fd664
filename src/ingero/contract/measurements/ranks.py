"""What ranks measured, as OTLP: own times of steps and collectives, one resource per rank."""

from collections.abc import Iterator
from dataclasses import dataclass

from ingero.contract import names
from ingero.contract.collective import CollectiveRecord, checked
from ingero.contract.measurements.collectives import (
    SCOPE,
    decode_collective,
    encode_collective_metrics,
)
from ingero.contract.measurements.own_time import OwnTime, decode_own_time, encode_own_times
from ingero.contract.otlp.values import (
    Gauge,
    Metric,
    MetricsRequest,
    NumberPoint,
    Plain,
    ResourceMetrics,
    Scope,
    ScopeMetrics,
    plain_attributes,
)
from ingero.contract.push.encode import identity_resource
from ingero.contract.types import Identity


@dataclass(frozen=True, slots=True)
class RankReport:
    """What one rank measured since the last push, as its agent sends it."""

    identity: Identity
    own_times: tuple[OwnTime, ...]
    collectives: tuple[CollectiveRecord, ...]

    @property
    def points(self) -> int:
        """The number of data points that the report is encoded to."""
        waits = sum(record.barrier_wait_ns is not None for record in self.collectives)
        return len(self.own_times) + len(self.collectives) + waits


@dataclass(frozen=True, slots=True)
class Measured:
    """What one resource of a push measured, as Fleet reads it.

    `resource` holds the attributes of the resource; `malformed` counts the points left out.
    """

    resource: dict[str, Plain]
    own_times: tuple[OwnTime, ...]
    collectives: tuple[CollectiveRecord, ...]
    malformed: int

    @property
    def source(self) -> str:
        """Where the measurements come from; empty where the sender does not state it."""
        if self.own_times:
            return str(self.own_times[0].source or "")
        return str(self.collectives[0].source) if self.collectives else ""


def encode_rank(report: RankReport) -> ResourceMetrics:
    """Return the resource of one rank."""
    metrics: list[Metric] = []
    if report.own_times:
        metrics.append(encode_own_times(report.own_times))
    if report.collectives:
        metrics += encode_collective_metrics(report.collectives)
    return ResourceMetrics(
        resource=identity_resource(report.identity),
        scope_metrics=(ScopeMetrics(scope=Scope(name=SCOPE), metrics=tuple(metrics)),),
    )


def decode_ranks(request: MetricsRequest) -> Iterator[Measured]:
    """Yield the measurements of each resource that has any."""
    for each in request.resource_metrics:
        resource = plain_attributes(each.resource.attributes) if each.resource else {}
        own: list[OwnTime] = []
        collectives: list[CollectiveRecord] = []
        malformed = 0
        for metric in (metric for scope in each.scope_metrics for metric in scope.metrics):
            for point in _points(metric):
                try:
                    if metric.name == names.STEP_OWN_TIME_MS:
                        own.append(decode_own_time(point))
                    elif metric.name == names.COLLECTIVE_DURATION_MS:
                        collectives.append(checked(decode_collective(point, resource)))
                except (KeyError, TypeError, ValueError, OverflowError):
                    malformed += 1
        if own or collectives or malformed:
            yield Measured(resource, tuple(own), tuple(collectives), malformed)


def split_measurements(request: MetricsRequest, points: int) -> Iterator[MetricsRequest]:
    """Yield what `decode_ranks` reads of a request, in requests of at most `points` points.

    Own times come first: they say whether the collectives of a rank are only a sample. The report
    of an inference engine stays in one piece.
    """
    for each in request.resource_metrics:
        metrics = [metric for scope in each.scope_metrics for metric in scope.metrics]
        for name in (names.STEP_OWN_TIME_MS, names.COLLECTIVE_DURATION_MS):
            found = [point for m in metrics if m.name == name for point in _points(m)]
            for start in range(0, len(found), points):
                gauge = Gauge(data_points=tuple(found[start : start + points]))
                scope = ScopeMetrics(metrics=(Metric(name=name, gauge=gauge),))
                part = ResourceMetrics(resource=each.resource, scope_metrics=(scope,))
                yield MetricsRequest(resource_metrics=(part,))
        engine = tuple(m for m in metrics if m.name.startswith(names.ENGINE_PREFIX))
        if engine:
            whole = ResourceMetrics(
                resource=each.resource, scope_metrics=(ScopeMetrics(metrics=engine),)
            )
            yield MetricsRequest(resource_metrics=(whole,))


def _points(metric: Metric) -> tuple[NumberPoint, ...]:
    if metric.gauge is not None:
        return metric.gauge.data_points
    return metric.sum.data_points if metric.sum is not None else ()
