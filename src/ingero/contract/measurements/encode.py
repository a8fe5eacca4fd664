"""What one rank measured, as OTLP: a resource of its own with its own time per step and some of its collectives."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ingero.contract import names
from ingero.contract.collective import CollectiveRecord, CollectiveSource
from ingero.contract.measurements.collectives import SCOPE, collective_metrics
from ingero.contract.otlp.values import (
    Gauge,
    Metric,
    NumberPoint,
    Plain,
    ResourceMetrics,
    Scope,
    ScopeMetrics,
    attributes,
)
from ingero.contract.push.encode import identity_resource
from ingero.contract.types import Identity


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTimePoint:
    """Mean own time of `count` steps, the first of them `step`. Unknown is None or NaN."""

    step: int | None
    count: int
    own_ms: float
    idle_ms: float
    span_ms: float
    end_ns: int
    source: CollectiveSource


@dataclass(frozen=True, slots=True)
class RankReport:
    """One rank in one push."""

    identity: Identity
    own_times: tuple[OwnTimePoint, ...]
    collectives: tuple[CollectiveRecord, ...]

    @property
    def points(self) -> int:
        """Data points it becomes."""
        waits = sum(record.barrier_wait_ns is not None for record in self.collectives)
        return len(self.own_times) + len(self.collectives) + waits


def encode_rank(report: RankReport) -> ResourceMetrics:
    """The resource of one rank."""
    metrics: list[Metric] = []
    if report.own_times:
        metrics.append(_own_times(report.own_times))
    if report.collectives:
        metrics += collective_metrics(report.collectives)
    return ResourceMetrics(
        resource=identity_resource(report.identity),
        scope_metrics=(ScopeMetrics(scope=Scope(name=SCOPE), metrics=tuple(metrics)),),
    )


def _own_times(points: Sequence[OwnTimePoint]) -> Metric:
    return Metric(
        name=names.STEP_OWN_TIME_MS,
        unit="ms",
        gauge=Gauge(data_points=tuple(_point(point) for point in points)),
    )


def _point(point: OwnTimePoint) -> NumberPoint:
    values: dict[str, Plain] = {
        names.STEP: point.step,
        names.STEP_COUNT: None if point.count == 1 else point.count,
        names.STEP_IDLE_MS: None if math.isnan(point.idle_ms) else round(point.idle_ms, 6),
        names.STEP_SPAN_MS: None if math.isnan(point.span_ms) else round(point.span_ms, 6),
        names.SOURCE: str(point.source),
    }
    span_ns = 0 if math.isnan(point.span_ms) else int(point.span_ms * 1e6 * point.count)
    return NumberPoint(
        attributes=attributes({key: value for key, value in values.items() if value is not None}),
        start_time_unix_nano=max(point.end_ns - span_ns, 0),
        time_unix_nano=point.end_ns,
        as_double=point.own_ms,
    )
