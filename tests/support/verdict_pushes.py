"""Pushes of own times, and a small job that sends them to a verdict service."""

import numpy as np

from ingero.contract import names
from ingero.contract.collective import CollectiveRecord, CollectiveSource
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


RATES = "currency_name: USD\ncurrency_symbol: $\nfallback_rate: 2.0\nproviders: {onprem: {X: 1}}\n"


def collectives(
    second: int, slow: int | None, rng: np.random.Generator, is_host: bool
) -> list[CollectiveRecord]:
    """Return one second of a job of eight ranks, TP 2 x DP 4.

    It has four steps, each with two TP all-reduces and one over DP. A rank is slow from second 110.
    """
    records = []
    longer_ms = 0 if slow is None else 95 * (second - 110)  # steps of the slow period
    clock = np.full(8, (920 * second + longer_ms) * 1_000_000)
    for step in range(second * 4, second * 4 + 4):
        for turn in range(3):
            groups = (
                [[r, r + 1] for r in range(0, 8, 2)] if turn < 2 else [[0, 2, 4, 6], [1, 3, 5, 7]]
            )
            own = 75_000_000 * np.exp(rng.normal(0, 0.005, 8))
            if slow is not None:
                own[slow] *= 1.1
            before, arrival = clock.copy(), clock + own.astype(np.int64)
            for number, group in enumerate(groups):
                end = arrival[group].max() + 1_000_000
                for place, rank in enumerate(group):
                    enqueued = (
                        arrival[rank] if is_host and rank == slow else before[rank] + 15_000_000
                    )
                    records.append(
                        CollectiveRecord(
                            job="j", node=f"n{rank // 2}", global_rank=rank,
                            comm=100 * (turn == 2) + number,
                            seq=step if turn == 2 else 2 * step + turn, op="AllReduce",
                            rank=place, nranks=len(group),
                            peer=None, datatype="float32", reduce_op="sum",
                            size_bytes=4096, stream=None,
                            start_ns=int(enqueued), end_ns=int(end),
                            gpu_duration_ns=int(end - arrival[rank]),
                            source=CollectiveSource.PLUGIN,
                        )
                    )  # fmt: skip
                    clock[rank] = end
    return records


_SECONDS: dict[int, list[CollectiveRecord]] = {}


def collectives_cache(
    second: int, slow: int | None, rng: np.random.Generator, is_host: bool, node: int
) -> list[CollectiveRecord]:
    if node == 0:
        _SECONDS.clear()
        _SECONDS[second] = collectives(second, slow, rng, is_host)
    return [record for record in _SECONDS[second] if record.node == f"n{node}"]
