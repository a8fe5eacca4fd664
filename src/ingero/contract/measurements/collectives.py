"""Collective records as OTLP: one duration point per record, from entry to exit, its fields as attributes."""

from collections.abc import Iterable, Iterator, Sequence

from ingero.contract import names
from ingero.contract.collective import CollectiveRecord, encode_comm
from ingero.contract.otlp.values import (
    Gauge,
    KeyValue,
    Metric,
    MetricsRequest,
    NumberPoint,
    Plain,
    Resource,
    ResourceMetrics,
    Scope,
    ScopeMetrics,
    attributes,
)

POINTS_PER_REQUEST = 2_000
SCOPE = "ingero.nccl"


def encode_collectives(
    records: Sequence[CollectiveRecord], cluster: str, node: str
) -> MetricsRequest:
    """One request; `node` stands in where a record does not name its own. A resource per node, job and rank."""
    by_rank: dict[tuple[str, str | None, int | None], list[CollectiveRecord]] = {}
    for record in records:
        by_rank.setdefault((record.node or node, record.job, record.global_rank), []).append(record)
    return MetricsRequest(
        tuple(
            ResourceMetrics(
                resource=Resource(attributes=_identity(cluster, *who)),
                scope_metrics=(
                    ScopeMetrics(scope=Scope(name=SCOPE), metrics=collective_metrics(own)),
                ),
            )
            for who, own in by_rank.items()
        )
    )


def encode_batches(
    records: Iterable[CollectiveRecord], cluster: str, node: str
) -> Iterator[tuple[MetricsRequest, int]]:
    """Requests of bounded size, each with the number of its points."""
    batch: list[CollectiveRecord] = []
    for record in records:
        batch.append(record)
        if len(batch) == POINTS_PER_REQUEST:
            yield encode_collectives(batch, cluster, node), len(batch)
            batch = []
    if batch:
        yield encode_collectives(batch, cluster, node), len(batch)


def _identity(cluster: str, node: str, job: str | None, rank: int | None) -> tuple[KeyValue, ...]:
    values = {names.NODE_ID: node, names.CLUSTER_ID: cluster, names.JOB_ID: job, names.RANK: rank}
    return attributes({key: value for key, value in values.items() if value is not None})


def collective_metrics(records: Sequence[CollectiveRecord]) -> tuple[Metric, ...]:
    """Durations of all records; where the host waited for some, those waits, marked by a flag of their own."""
    durations = [_point(record, (record.end_ns - record.start_ns) / 1e6) for record in records]
    waits = [
        _point(record, record.barrier_wait_ns / 1e6, is_barrier=True)
        for record in records
        if record.barrier_wait_ns is not None
    ]
    named = ((names.COLLECTIVE_DURATION_MS, durations), (names.COLLECTIVE_BARRIER_WAIT_MS, waits))
    return tuple(
        Metric(name=name, unit="ms", gauge=Gauge(data_points=tuple(points)))
        for name, points in named
        if points
    )


def _point(record: CollectiveRecord, value_ms: float, *, is_barrier: bool = False) -> NumberPoint:
    values: dict[str, Plain] = {
        names.NCCL_OP: record.op,
        names.NCCL_COMM: encode_comm(record.comm),
        names.NCCL_RANK: record.rank,
        names.NCCL_NRANKS: record.nranks,
        names.NCCL_PEER: record.peer,
        names.NCCL_DATATYPE: record.datatype,
        names.NCCL_REDUCE_OP: record.reduce_op,
        names.NCCL_SEQ: record.seq,
        names.NCCL_BYTES: record.size_bytes,
        names.NCCL_STREAM: record.stream,
        names.NCCL_GPU_DURATION_NS: record.gpu_duration_ns,
        names.SOURCE: str(record.source),
        names.NCCL_BARRIER: is_barrier or None,
    }
    return NumberPoint(
        attributes=attributes({key: value for key, value in values.items() if value is not None}),
        start_time_unix_nano=record.start_ns,
        time_unix_nano=record.end_ns,
        as_double=value_ms,
    )
