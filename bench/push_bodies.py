"""Pushes for the benchmarks: the nine metrics that a reference agent sends for one node.

Own times are those of an agent with eight ranks and ten steps per second.
"""

import numpy as np

from ingero.contract import names
from ingero.contract.collective import CollectiveSource
from ingero.contract.measurements.own_time import OwnTime
from ingero.contract.measurements.ranks import RankReport, encode_rank
from ingero.contract.otlp import values as otlp
from ingero.contract.otlp.codec import encode_json, encode_protobuf
from ingero.contract.types import Identity

T0_NS = 1_800_000_000 * 10**9
RANKS, STEPS = 8, 10


def push(node: int, clusters: int = 4) -> otlp.MetricsRequest:
    score = 0.85 + (node * 37 % 100) / 1000
    state = {names.NODE_STATE: "active", names.WORKLOAD_TYPE: "training"}
    metrics = (
        _gauge(names.HEALTH_SCORE, score, node, **state, **{names.CGROUP_HASH: "8a5edab282632443"}),
        _gauge(names.THROUGHPUT_RATIO, score, node, **state),
        _gauge(names.COMPUTE_EFFICIENCY, 0.9, node, **state),
        _gauge(names.MEMORY_HEADROOM, 0.8, node, **state),
        _gauge(names.CPU_AVAILABILITY, 0.7, node, **state),
        _gauge(names.DEGRADATION_WARNING, 0, node, **state),
        _gauge(names.AGENT_DETECTION_MODE, 1, node, **{names.DETECTION_MODE: "fleet"}),
        _gauge(names.AGENT_FLEET_REACHABLE, 1, node),
        _gauge(names.NODE_WORLD_SIZE, 8, node),
    )
    identity = {
        names.NODE_ID: f"gpu-node-{node:05d}",
        names.CLUSTER_ID: f"cluster-{node % clusters}",
        names.WORLD_SIZE: 8,
        names.NODE_RANK: node % 8,
    }
    scope = otlp.ScopeMetrics(
        scope=otlp.Scope(names.HEALTH_SCOPE, names.HEALTH_SCOPE_VERSION), metrics=metrics
    )
    return otlp.MetricsRequest(
        resource_metrics=(
            otlp.ResourceMetrics(
                resource=otlp.Resource(attributes=otlp.attributes(identity)), scope_metrics=(scope,)
            ),
        )
    )


def _gauge(name: str, value: float, node: int, **attributes: otlp.Plain) -> otlp.Metric:
    number = {"as_int": value} if isinstance(value, int) else {"as_double": value}
    point = otlp.NumberPoint(otlp.attributes(attributes), time_unix_nano=T0_NS + node, **number)
    return otlp.Metric(name, unit="1", gauge=otlp.Gauge(data_points=(point,)))


def bodies(count: int, clusters: int = 4) -> tuple[list[bytes], list[bytes]]:
    """Return pushes of `count` nodes as protobuf and as JSON."""
    requests = [push(node, clusters) for node in range(count)]
    return [encode_protobuf(request) for request in requests], [
        encode_json(request) for request in requests
    ]


def own_time_bodies(nodes: int, pushes: int) -> list[bytes]:
    """Return pushes of own times: those of all nodes for one second, then for the next."""
    chance = np.random.default_rng(1)
    return [
        encode_protobuf(
            otlp.MetricsRequest(
                tuple(
                    encode_rank(_ranks_report(node, rank, nodes, STEPS * second, chance))
                    for rank in range(RANKS)
                )
            )
        )
        for second in range(pushes)
        for node in range(nodes)
    ]


def _ranks_report(
    node: int, rank: int, nodes: int, first: int, chance: np.random.Generator
) -> RankReport:
    identity = Identity(
        node=f"gpu-node-{node:05d}",
        cluster="bench",
        job="job-1",
        rank=node * RANKS + rank,
        local_rank=rank,
        world_size=nodes * RANKS,
        provider="lambda",
        gpu_model="NVIDIA H100 80GB HBM3",
    )
    times = tuple(
        OwnTime(
            step=step,
            own_ms=100.0 + float(chance.normal(0, 0.3)),
            idle_ms=3.25 + rank * 0.01,
            span_ms=130.5 + float(chance.normal(0, 0.1)),
            end_ns=T0_NS + step * 10**8,
            source=CollectiveSource.PLUGIN,
        )
        for step in range(first, first + STEPS)
    )
    return RankReport(identity, times, ())
