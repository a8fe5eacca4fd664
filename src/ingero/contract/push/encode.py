"""What an agent pushes: the health of its node and straggler events, as OTLP metrics."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from ingero.contract import names
from ingero.contract.otlp.values import (
    CUMULATIVE,
    Gauge,
    Metric,
    MetricsRequest,
    NumberPoint,
    Plain,
    Resource,
    ResourceMetrics,
    Scope,
    ScopeMetrics,
    Sum,
    attributes,
)
from ingero.contract.types import DetectionMode, Identity, NodeState

MEMCPY_DIRECTIONS = ("h2h", "h2d", "d2h", "d2d", "unknown")
_SIGNAL_METRICS = {
    "throughput": names.THROUGHPUT_RATIO,
    "compute": names.COMPUTE_EFFICIENCY,
    "memory": names.MEMORY_HEADROOM,
    "cpu": names.CPU_AVAILABILITY,
}
_SCOPE = Scope(name=names.HEALTH_SCOPE, version=names.HEALTH_SCOPE_VERSION)


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupTotals:
    """Running totals of one cgroup; `memcpy_bytes` are by direction."""

    cgroup_hash: str
    launches: int
    stall_ns: int
    memcpy_bytes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReport:
    """GPU memory that the processes of a node hold; `fragmentation` is a share of it."""

    allocated_bytes: int
    reserved_bytes: int
    largest_free_bytes: int
    fragmentation: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthReport:
    """The content of one regular push. A missing score or signal is left out, never sent as 0."""

    at_ns: int
    state: NodeState
    workload: str = "unknown"
    cgroup_hash: str = ""
    score: float | None
    signals: Mapping[str, float | None]  # by short name
    is_degraded: bool
    mode: DetectionMode
    fleet_reachable: bool  # as the agent knew it before this push
    gpu_model: str | None = None
    gpu_count: int | None = None
    version: str = ""  # of the agent
    lost_records: int = 0  # collectives that it could not read in time, since it started
    ready_s: int | None = None  # how long it will still calibrate, under load as it is now
    totals: tuple[CgroupTotals, ...] = ()
    totals_since_ns: int = 0
    memory: MemoryReport | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerEvent:
    """The content of the push that follows each regular push of a straggler.

    The last push of an episode has `is_straggler` false.
    """

    at_ns: int
    is_straggler: bool
    mode: DetectionMode
    threshold: float
    score: float
    dominant_signal: str
    event_id: str


# Further attributes, the cgroup, and one of its totals.
_CounterRow: TypeAlias = tuple[dict[str, Plain], CgroupTotals, int]


def encode_health(identity: Identity, report: HealthReport) -> MetricsRequest:
    """Return the regular push, with metrics in the order of the published contract."""
    return _request(
        identity_resource(identity),
        [
            *_health_metrics(identity, report),
            *_counter_metrics(report),
            *_memory_metrics(report),
        ],
    )


def encode_straggler_event(identity: Identity, event: StragglerEvent) -> MetricsRequest:
    """Return the push of a straggler event."""
    values: dict[str, Plain] = {
        names.DETECTION_MODE: event.mode.value,
        names.THRESHOLD_ATTR: event.threshold,
        names.SCORE_ATTR: event.score,
        names.DOMINANT_SIGNAL_ATTR: event.dominant_signal,
    }
    if event.event_id:
        values[names.EVENT_ID] = event.event_id
    metric = _gauge(names.STRAGGLER_EVENT, int(event.is_straggler), event.at_ns, values)
    return _request(identity_resource(identity), [metric])


def identity_resource(identity: Identity) -> Resource:
    """Return the OTLP resource of a node, or of one of its ranks."""
    values: dict[str, Plain] = {names.NODE_ID: identity.node, names.CLUSTER_ID: identity.cluster}
    if identity.world_size:
        values[names.WORLD_SIZE] = identity.world_size
    if identity.rank is not None:
        values[names.NODE_RANK] = identity.rank
        values[names.RANK] = identity.rank
    optional: dict[str, Plain] = {
        names.LOCAL_RANK: identity.local_rank,
        names.JOB_ID: identity.job,
        names.ROLE: identity.role,
        names.GPU_MODEL: identity.gpu_model,
        names.GPU_UUID: identity.gpu_uuid,
        names.POD: identity.pod,
        names.PROVIDER: identity.provider,
    }
    values |= {f"{names.LABEL_PREFIX}{key}": value for key, value in identity.labels}
    return Resource(
        attributes=attributes(
            values | {key: value for key, value in optional.items() if value is not None}
        )
    )


def _health_metrics(identity: Identity, report: HealthReport) -> Iterable[Metric]:
    at_ns = report.at_ns
    common: dict[str, Plain] = {
        names.NODE_STATE: report.state.value,
        names.WORKLOAD_TYPE: report.workload,
    }
    if report.score is not None:
        yield _gauge(
            names.HEALTH_SCORE,
            report.score,
            at_ns,
            common | {names.CGROUP_HASH: report.cgroup_hash},
        )
    for name, metric in _SIGNAL_METRICS.items():
        value = report.signals.get(name)
        if value is not None:
            yield _gauge(metric, float(value), at_ns, common)
    yield _gauge(names.DEGRADATION_WARNING, int(report.is_degraded), at_ns, common)
    yield _gauge(names.AGENT_DETECTION_MODE, 1, at_ns, {names.DETECTION_MODE: report.mode.value})
    yield _gauge(names.AGENT_FLEET_REACHABLE, int(report.fleet_reachable), at_ns)
    if report.version:
        about: dict[str, Plain] = {names.AGENT_VERSION: report.version}
        yield _gauge(names.AGENT_LOST_RECORDS, report.lost_records, at_ns, about)
    if report.ready_s is not None:
        yield _gauge(names.AGENT_READY_S, report.ready_s, at_ns)
    if report.gpu_model and report.gpu_count:
        info: dict[str, Plain] = {
            names.GPU_MODEL: report.gpu_model,
            names.GPU_COUNT: report.gpu_count,
        }
        yield _gauge(names.NODE_INFO, 1, at_ns, info)
    yield _gauge(names.NODE_WORLD_SIZE, identity.world_size or 0, at_ns)


def _counter_metrics(report: HealthReport) -> Iterable[Metric]:
    if not report.totals:
        return
    yield _sum(
        names.KERNEL_LAUNCH_TOTAL, "1", report, [({}, row, row.launches) for row in report.totals]
    )
    yield _sum(
        names.CPU_STALL_NANOS_TOTAL,
        "ns",
        report,
        [({}, row, row.stall_ns) for row in report.totals],
    )
    copies: list[_CounterRow] = [
        ({names.MEMCPY_DIRECTION: direction}, row, row.memcpy_bytes[direction])
        for row in report.totals
        for direction in MEMCPY_DIRECTIONS
        if direction in row.memcpy_bytes
    ]
    if copies:
        yield _sum(names.MEMCPY_BYTES_TOTAL, "By", report, copies)


def _memory_metrics(report: HealthReport) -> Iterable[Metric]:
    memory, at_ns = report.memory, report.at_ns
    if memory is None:
        return
    yield _gauge(names.MEMFRAG_ALLOCATED, memory.allocated_bytes, at_ns, unit="By")
    yield _gauge(names.MEMFRAG_RESERVED, memory.reserved_bytes, at_ns, unit="By")
    yield _gauge(names.MEMFRAG_LARGEST_FREE, memory.largest_free_bytes, at_ns, unit="By")
    yield _gauge(names.MEMFRAG_RATIO, memory.fragmentation, at_ns)


def _request(resource: Resource, metrics: list[Metric]) -> MetricsRequest:
    scope = ScopeMetrics(scope=_SCOPE, metrics=tuple(metrics))
    return MetricsRequest(
        resource_metrics=(ResourceMetrics(resource=resource, scope_metrics=(scope,)),)
    )


def _gauge(
    name: str,
    value: float,
    at_ns: int,
    values: dict[str, Plain] | None = None,
    unit: str = "1",
) -> Metric:
    point = NumberPoint(
        attributes=attributes(values or {}),
        time_unix_nano=at_ns,
        as_double=value if isinstance(value, float) else None,
        as_int=value if isinstance(value, int) else None,
    )
    return Metric(name=name, unit=unit, gauge=Gauge(data_points=(point,)))


def _sum(name: str, unit: str, report: HealthReport, rows: list[_CounterRow]) -> Metric:
    points = tuple(
        NumberPoint(
            attributes=attributes({names.CGROUP_HASH: row.cgroup_hash, **extra}),
            start_time_unix_nano=report.totals_since_ns,
            time_unix_nano=report.at_ns,
            as_int=total,
        )
        for extra, row, total in rows
    )
    return Metric(
        name=name,
        unit=unit,
        sum=Sum(data_points=points, aggregation_temporality=CUMULATIVE, is_monotonic=True),
    )
