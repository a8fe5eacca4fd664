"""Health scores of a cluster and its threshold: the one Fleet reported, else computed here."""

from dataclasses import dataclass
from typing import Final

from ingero.contract import names
from ingero.core.health.threshold import SERVED_MAX, ThresholdPolicy, clamp_raw, compute_threshold
from ingero.echo.tools.asker import Asker, records
from ingero.echo.tools.minutes import load_minutes

MAX_NODES: Final = 20_000
FLEET_GAUGES: Final = (
    "threshold",
    "median",
    "mad",
    "quorum_met",
    "active_nodes",
    "idle_nodes",
    "panic_mode",
)
_NAMES: Final = ", ".join(
    f"'{name}'" for name in (names.HEALTH_SCORE, *(f"ingero_fleet_{g}" for g in FLEET_GAUGES))
)
# the request that brought the latest score of each node is known without reading all others
_LATEST: Final = f"""WITH latest AS (SELECT metric_name, node_id,
    arg_max(last_seq, (newest_ts, last_seq)) AS seq
  FROM {{arrived}} WHERE last_seq IS NOT NULL GROUP BY metric_name, node_id)
SELECT e.metric_name, e.node_id, value_double AS value, epoch_us(received_ts) AS seen_us,
  epoch_us(ts) AS at_us, attrs->>'$."{names.NODE_STATE}"' AS state
FROM events AS e JOIN latest AS l ON e.seq = l.seq AND e.metric_name = l.metric_name
  AND e.node_id IS NOT DISTINCT FROM l.node_id
WHERE cluster_id = $1 AND value_double IS NOT NULL AND e.seq >= (SELECT min(seq) FROM latest)
QUALIFY row_number() OVER (PARTITION BY e.metric_name, e.node_id ORDER BY idx DESC) = 1"""


@dataclass(frozen=True, slots=True)
class NodeScore:
    """The latest score of a node; 0 to 1, higher is healthier."""

    node_id: str
    score: float
    state: str
    at_us: int
    seen_us: int


@dataclass(frozen=True, slots=True)
class Scores:
    """All nodes of a cluster and its threshold, which is None while there is no score."""

    nodes: tuple[NodeScore, ...]
    threshold: float | None
    threshold_source: str
    median: float | None
    mad: float | None
    fleet: dict[str, float]
    truncated: bool


async def load_scores(asker: Asker, cluster: str, window: str) -> Scores:
    """Return the latest score of every node in the window."""
    policy = ThresholdPolicy()
    condition = f"cluster_id = $1 AND metric_name IN ({_NAMES})"
    arrived = (await load_minutes(asker)).arrived(asker.since_us(window), condition)
    found = await asker.query(_LATEST.format(arrived=arrived), [cluster], MAX_NODES)
    nodes, fleet = [], {}
    for row in records(found):
        if row["metric_name"] != names.HEALTH_SCORE:
            fleet[row["metric_name"].removeprefix("ingero_fleet_")] = float(row["value"])
        elif row["node_id"] is not None:
            state = row["state"] or "unknown"
            nodes.append(
                NodeScore(row["node_id"], float(row["value"]), state, row["at_us"], row["seen_us"])
            )
    values = [node.score for node in nodes if node.state in ("active", "unknown")]
    stats = compute_threshold(values, policy) if values else None
    threshold, source = fleet.get("threshold"), "fleet"
    if threshold is None and stats is not None:
        line = min(clamp_raw(stats.value, policy), stats.median - policy.min_gap)
        threshold, source = min(max(line, policy.min), SERVED_MAX), "computed"
    return Scores(
        tuple(sorted(nodes, key=lambda node: (node.score, node.node_id))),
        threshold,
        source if threshold is not None else "none",
        fleet.get("median", stats.median if stats else None),
        fleet.get("mad", stats.mad if stats else None),
        fleet,
        found.truncated,
    )
