"""Pushes of own times, and a small job that sends them to a verdict service."""

import numpy as np

from ingero.contract import names
from ingero.contract.otlp.values import (
    Gauge,
    Metric,
    MetricsRequest,
    NumberPoint,
    Resource,
    ResourceMetrics,
    ScopeMetrics,
    attributes,
)
from ingero.contract.verdict import Verdict
from ingero.fleet.verdicts import VerdictService

START_S = 1_700_000_000.0


def own_time_push(
    node: str, rank: int, step: int, own_ms: float, job: str = "j", **more: str
) -> MetricsRequest:
    """Return a push of the own time of one step."""
    identity = {names.NODE_ID: node, names.CLUSTER_ID: "c", names.JOB_ID: job, names.RANK: rank}
    identity |= {f"ingero.{name}": value for name, value in more.items()}
    point = NumberPoint(attributes=attributes({names.STEP: step}), as_double=own_ms)
    metric = Metric(name=names.STEP_OWN_TIME_MS, gauge=Gauge(data_points=(point,)))
    return MetricsRequest(
        (
            ResourceMetrics(
                resource=Resource(attributes=attributes(identity)),
                scope_metrics=(ScopeMetrics(metrics=(metric,)),),
            ),
        )
    )


def verdicts_of_a_job(service: VerdictService, seconds: int) -> list[tuple[str, Verdict]]:
    """Push own times of eight ranks every second; rank 5 is 10 % slower after two minutes."""
    rng = np.random.default_rng(1)
    found: list[tuple[str, Verdict]] = []
    for second in range(seconds):
        for rank in range(8):
            slow = 1.1 if rank == 5 and second >= 120 else 1.0
            own = 500 * slow * float(np.exp(rng.normal(0, 0.005)))
            service.take(own_time_push(f"n{rank}", rank, second, own), "c", START_S + second)
        found += service.tick(START_S + second)
    return found
