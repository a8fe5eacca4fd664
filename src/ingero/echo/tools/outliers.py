"""Nodes that differ from their peers in any metric."""

from typing import Annotated, Final

import msgspec
import numpy as np
from msgspec import Meta

from ingero.contract import names
from ingero.core.counted import counted
from ingero.core.robust import MAD_TO_SIGMA, median_and_mad
from ingero.echo.tools.asker import Answered, Asked, Asker, Json, Limit, question, records
from ingero.echo.tools.minutes import load_minutes

MAX_NODES: Final = 20_000
# share of the median: if peers agree to the last digit, a tiny difference is not an outlier
SPREAD_FLOOR: Final = 0.01
MIN_NODES: Final = 3
_NODES: Final = "cluster_id = $1 AND node_id IS NOT NULL"
_VALUES: Final = """SELECT node_id, sum(points)::BIGINT AS points,
  sum(sum) / nullif(sum(numbers), 0) AS mean, min(min) AS low, max(max) AS high,
  max(max_total) - min(min_total) AS increase,
  (epoch_ns(max(last_ts)) - epoch_ns(min(first_ts))) / 1e9 AS seconds
FROM {arrived} WHERE points > 0 GROUP BY node_id"""
_NAMES: Final = """SELECT metric_name, count(DISTINCT node_id) FROM {arrived}
GROUP BY 1 ORDER BY 2 DESC, 1"""


class OutliersQuestion(Asked, kw_only=True):
    """Which nodes differ in a metric."""

    metric: Annotated[str, Meta(description="Metric to compare.", min_length=1, max_length=256)] = (
        names.HEALTH_SCORE
    )
    k: Annotated[
        float,
        Meta(
            description="Number of robust standard deviations from which a node is an outlier.",
            ge=1,
            le=20,
        ),
    ] = 3.0
    limit: Limit = 20


class OutlierNode(msgspec.Struct):
    """`z` is the distance from the median in robust standard deviations; negative is below."""

    node_id: str
    value: float
    z: float
    points: int
    low: float | None
    high: float | None


class OutliersAnswer(Answered, kw_only=True):
    """Nodes beyond `k`, the farthest first.

    `value` is the mean, or growth per second for a running total.
    """

    outliers: list[OutlierNode]
    metric: str
    unit: str
    nodes: int
    median: float | None
    mad: float | None


@question
async def find_outlier_nodes(asker: Asker, asked: OutliersQuestion) -> OutliersAnswer:
    """Nodes that differ from their peers in one metric, ranked by robust z-score.

    Use it when no node is below the health threshold but the job is slow, with metrics such as
    ingero.node.throughput_ratio, ingero.node.memory_headroom or gpu.memcpy.bytes_total. Running
    totals are compared by their growth per second.
    """
    cluster = await asker.cluster(asked.cluster_id, asked.window)
    minutes, since_us = await load_minutes(asker), asker.since_us(asked.window)
    arrived = minutes.arrived(since_us, f"{_NODES} AND metric_name = $2")
    found = await asker.query(_VALUES.format(arrived=arrived), [cluster, asked.metric], MAX_NODES)
    rows = records(found)
    is_total = any(row["increase"] is not None and row["mean"] is None for row in rows)
    values = [_value(row, is_total) for row in rows]
    known = [(row, value) for row, value in zip(rows, values, strict=True) if value is not None]
    notes = []
    if len(known) < MIN_NODES:
        there = minutes.arrived(since_us, _NODES)
        notes.append(await _too_few(asker, cluster, there, asked.metric, len(known)))
    outliers: list[OutlierNode] = []
    centre = mad = None
    if len(known) >= MIN_NODES:
        centre, mad = median_and_mad([value for _, value in known])
        outliers = _beyond(known, centre, mad, asked.k)
    if len(outliers) > asked.limit:
        notes.append(f"{len(outliers) - asked.limit} more nodes differ; raise limit or k")
    return OutliersAnswer(
        cluster_id=cluster,
        window=asked.window,
        truncated=len(outliers) > asked.limit or found.truncated,
        notes=notes,
        outliers=outliers[: asked.limit],
        metric=asked.metric,
        unit="per second" if is_total else "value",
        nodes=len(known),
        median=centre,
        mad=mad,
    )


def _beyond(
    known: list[tuple[Json, float]], centre: float, mad: float, k: float
) -> list[OutlierNode]:
    """Return the nodes that are further away than `k` robust deviations, the farthest first."""
    spread = max(MAD_TO_SIGMA * mad, SPREAD_FLOOR * abs(centre), float(np.finfo(float).tiny))
    outliers = [
        OutlierNode(
            row["node_id"],
            value,
            round((value - centre) / spread, 3),
            row["points"],
            row["low"],
            row["high"],
        )
        for row, value in known
        if abs(value - centre) > k * spread
    ]
    return sorted(outliers, key=lambda outlier: (-abs(outlier.z), outlier.node_id))


def _value(row: dict[str, float | None], is_total: bool) -> float | None:
    increase, seconds = row["increase"], row["seconds"]
    if not is_total:
        return row["mean"]
    return increase / seconds if increase is not None and seconds else None


async def _too_few(asker: Asker, cluster: str, arrived: str, metric: str, nodes: int) -> str:
    there = (await asker.query(_NAMES.format(arrived=arrived), [cluster], 12)).rows
    listed = [f"{name} ({counted(count, 'node')})" for name, count in there]
    return (
        f"only {counted(nodes, 'node reports', 'nodes report')} {metric}, {MIN_NODES} are needed "
        f"to compare; metrics here: {', '.join(listed) or 'none at all'}"
    )
