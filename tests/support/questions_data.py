"""What a cluster sends, small enough to know the answers by heart."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ingero.contract import names
from ingero.contract.collective import CollectiveRecord, CollectiveSource
from ingero.contract.measurements.collectives import encode_batches
from ingero.contract.otlp import values as otlp
from ingero.contract.otlp.codec import encode_protobuf

START_NS = 1_763_168_400_000_000_000
SECOND = 1_000_000_000


def resource(cluster: str, node: str | None, **more: otlp.Plain) -> otlp.Resource:
    named = {key.replace("_", ".", 1): value for key, value in more.items()}
    who = {names.CLUSTER_ID: cluster, **({names.NODE_ID: node} if node else {}), **named}
    return otlp.Resource(attributes=otlp.attributes(who))


def metrics(
    cluster: str, node: str | None, values: Sequence[otlp.Metric], **more: otlp.Plain
) -> bytes:
    scope = otlp.ScopeMetrics(metrics=tuple(values))
    one = otlp.ResourceMetrics(resource=resource(cluster, node, **more), scope_metrics=(scope,))
    return encode_protobuf(otlp.MetricsRequest(resource_metrics=(one,)))


def gauge(
    name: str,
    values: Iterable[float],
    attributes: Mapping[str, otlp.Plain] | None = None,
    start_ns: int = START_NS,
) -> otlp.Metric:
    """One point a second."""
    points = tuple(
        otlp.NumberPoint(
            time_unix_nano=start_ns + i * SECOND,
            as_double=value,
            attributes=otlp.attributes(dict(attributes or {})),
        )
        for i, value in enumerate(values)
    )
    return otlp.Metric(name=name, gauge=otlp.Gauge(data_points=points))


def total(
    name: str,
    values: Iterable[int],
    attributes: Mapping[str, otlp.Plain] | None = None,
    start_ns: int = START_NS,
) -> otlp.Metric:
    """A running total, one point a second."""
    points = tuple(
        otlp.NumberPoint(
            time_unix_nano=start_ns + i * SECOND,
            as_int=value,
            attributes=otlp.attributes(dict(attributes or {})),
        )
        for i, value in enumerate(values)
    )
    return otlp.Metric(
        name=name, sum=otlp.Sum(data_points=points, aggregation_temporality=2, is_monotonic=True)
    )


def score(cluster: str, node: str, values: Iterable[float]) -> bytes:
    return metrics(cluster, node, [gauge(names.HEALTH_SCORE, values, {names.NODE_STATE: "active"})])


def log(
    cluster: str, node: str | None, event: str, document: Mapping[str, object], at_s: int = 0
) -> bytes:
    """A verdict or causal chain as a log record with a JSON body."""
    record = otlp.LogRecord(
        time_unix_nano=START_NS + at_s * SECOND,
        event_name=event,
        body=otlp.any_value(json.dumps(document)),
    )
    one = otlp.ResourceLogs(
        resource=resource(cluster, node), scope_logs=(otlp.ScopeLogs(log_records=(record,)),)
    )
    return encode_protobuf(otlp.LogsRequest(resource_logs=(one,)))


def verdict(node: str, state: str, episode: str = "e1", **more: object) -> dict[str, object]:
    return {"episode": episode, "state": state, "node": node, "since": START_NS / 1e9, **more}


def collectives(
    steps: int,
    ranks: int,
    late: Mapping[int, Mapping[int, float]],
    *,
    is_gpu_timed: bool = False,
    transfer_ms: float = 10.0,
    skew_ms: Mapping[int, float] | None = None,
) -> list[CollectiveRecord]:
    """An AllReduce of 1 MiB per second: `late[step][rank]` in ms, one node per rank."""
    records = []
    for step in range(steps):
        begin = START_NS + step * SECOND
        lateness = late.get(step, {})
        end = begin + int((max(lateness.values(), default=0.0) + transfer_ms) * 1e6)
        for rank in range(ranks):
            offset = int((skew_ms or {}).get(rank, 0.0) * 1e6)
            start = begin + int(lateness.get(rank, 0.0) * 1e6)
            records.append(
                CollectiveRecord(
                    job="llama",
                    node=f"node-{rank:02d}",
                    global_rank=rank,
                    comm=0xABC,
                    seq=step,
                    op="AllReduce",
                    rank=rank,
                    nranks=ranks,
                    peer=None,
                    datatype="bf16",
                    reduce_op="sum",
                    size_bytes=1 << 20,
                    start_ns=start + offset,
                    end_ns=end + offset,
                    gpu_duration_ns=end - start if is_gpu_timed else None,
                    stream=7,
                    source=CollectiveSource.PLUGIN if is_gpu_timed else CollectiveSource.EBPF,
                )
            )
    return records


def collective_bodies(cluster: str, records: Iterable[CollectiveRecord]) -> list[bytes]:
    return [encode_protobuf(request) for request, _ in encode_batches(records, cluster, "imported")]


def logs() -> Iterator[bytes]:
    """Verdicts about three nodes and a causal chain, as Fleet and an agent report them."""
    yield log("prod", None, names.VERDICT_EVENT, verdict("gpu-5", "suspect", excess=0.1), 1)
    facts = {
        "class": "compute",
        "excess": 0.31,
        "usd_per_hour": 12.5,
        "evidence": "+31 %",
        "next": "drain gpu-5",
    }
    yield log("prod", None, names.VERDICT_EVENT, verdict("gpu-5", "straggler", rank=40, **facts), 2)
    yield log("prod", None, names.VERDICT_EVENT, verdict("gpu-6", "resolved", "e2"), 3)
    stalled = {"class": "hang", "job": "llama", "engine": "vllm on port 8000, pid 7"}
    yield log("serve", None, names.VERDICT_EVENT, verdict("gpu-7", "straggler", "e3", **stalled), 5)
    chain = {
        "id": "c-1",
        "severity": "HIGH",
        "summary": "cudaStreamSync slow",
        "root_cause": "backup on 4 cores",
    }
    yield log("prod", "gpu-5", names.CAUSAL_CHAIN_EVENT, chain, 4)
