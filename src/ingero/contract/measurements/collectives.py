"""Collective records as OTLP: one duration point per record, with its fields as attributes."""

from collections.abc import Iterable, Iterator, Sequence

from ingero.contract import names
from ingero.contract.collective import (
    CollectiveRecord,
    CollectiveSource,
    canonical_op,
    decode_comm,
    encode_comm,
)
from ingero.contract.measurements.fields import (
    integer,
    integer_or_none,
    source_or_none,
    text_or_none,
)
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
    plain_attributes,
)

POINTS_PER_REQUEST = 2_000
SCOPE = "ingero.nccl"
MAX_WEIGHT = 1e6


def encode_collectives(
    records: Sequence[CollectiveRecord], cluster: str, node: str
) -> MetricsRequest:
    """Return one request with a resource per node, job and rank.

    `node` is used for records that do not name their own.
    """
    by_rank: dict[tuple[str, str | None, int | None], list[CollectiveRecord]] = {}
    for record in records:
        by_rank.setdefault((record.node or node, record.job, record.global_rank), []).append(record)
    return MetricsRequest(
        tuple(
            ResourceMetrics(
                resource=Resource(attributes=_identity(cluster, *who)),
                scope_metrics=(
                    ScopeMetrics(scope=Scope(name=SCOPE), metrics=encode_collective_metrics(own)),
                ),
            )
            for who, own in by_rank.items()
        )
    )


def encode_batches(
    records: Iterable[CollectiveRecord], cluster: str, node: str
) -> Iterator[tuple[MetricsRequest, int]]:
    """Yield requests of bounded size, each with the number of its points."""
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


def encode_collective_metrics(records: Sequence[CollectiveRecord]) -> tuple[Metric, ...]:
    """Return the durations of all records, and the waits of the host where there were any.

    Points about a wait carry the attribute `nccl.barrier`.
    """
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
        names.STEP: record.step,
        names.STEP_PLACE: record.place,
        names.STEP_AFTER_NS: record.after_ns,
        names.SAMPLE_WEIGHT: None if record.weight == 1.0 else round(record.weight, 3),
    }
    return NumberPoint(
        attributes=attributes({key: value for key, value in values.items() if value is not None}),
        start_time_unix_nano=record.start_ns,
        time_unix_nano=record.end_ns,
        as_double=value_ms,
    )


def decode_collective(point: NumberPoint, resource: dict[str, Plain]) -> CollectiveRecord:
    """Return the record of one duration point.

    Raises KeyError, TypeError or ValueError for attributes that are missing or make no sense.
    """
    values = plain_attributes(point.attributes)
    comm = values[names.NCCL_COMM]
    rank = resource.get(names.RANK, resource.get(names.NODE_RANK))
    return CollectiveRecord(
        job=text_or_none(resource.get(names.JOB_ID)),
        node=text_or_none(resource.get(names.NODE_ID)),
        global_rank=integer_or_none(rank),
        comm=(decode_comm(comm) if isinstance(comm, str) else integer(comm)) & 0xFFFFFFFFFFFFFFFF,
        seq=integer_or_none(values.get(names.NCCL_SEQ)),
        op=canonical_op(str(values[names.NCCL_OP])),
        rank=integer(values[names.NCCL_RANK]),
        nranks=integer(values[names.NCCL_NRANKS]),
        peer=integer_or_none(values.get(names.NCCL_PEER)),
        datatype=str(values.get(names.NCCL_DATATYPE, "")),
        reduce_op=text_or_none(values.get(names.NCCL_REDUCE_OP)),
        size_bytes=integer_or_none(values.get(names.NCCL_BYTES)) or 0,
        start_ns=point.start_time_unix_nano,
        end_ns=point.time_unix_nano,
        gpu_duration_ns=integer_or_none(values.get(names.NCCL_GPU_DURATION_NS)),
        stream=integer_or_none(values.get(names.NCCL_STREAM)),
        source=source_or_none(values.get(names.SOURCE)) or CollectiveSource.EBPF,
        step=integer_or_none(values.get(names.STEP)),
        place=integer_or_none(values.get(names.STEP_PLACE)),
        after_ns=integer_or_none(values.get(names.STEP_AFTER_NS)),
        weight=_weight(values.get(names.SAMPLE_WEIGHT)),
    )


def _weight(value: Plain) -> float:
    """Return the weight of a point; one that makes no sense counts as 1."""
    if isinstance(value, int | float) and 1.0 <= value <= MAX_WEIGHT:
        return float(value)
    return 1.0
