"""Slow nodes as one ranked list: verdicts, scores below the threshold, ranks that arrive late."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from ingero.contract import names
from ingero.core.collectives.waiting import find_late
from ingero.core.durations import readable_seconds
from ingero.echo.tools.asker import Answered, Asked, Asker, Json, Limit, iso, question, records
from ingero.echo.tools.minutes import load_minutes
from ingero.echo.tools.records import Records, load_records
from ingero.echo.tools.scores import NodeScore, Scores, load_scores
from ingero.echo.tools.why import Why, load_why

_STATES: Final = {"straggler": 0, "suspect": 2, "recovering": 3, "late": 4}
_BELOW_LINE: Final = "below_threshold"
_BELOW: Final = 1  # a score below the threshold ranks after a verdict and before a suspicion
_VERDICTS: Final = """SELECT * EXCLUDE (seq, idx, received_ts), epoch_us(since) AS since_us
FROM verdicts
WHERE cluster_id = $1 AND received_ts >= make_timestamp($2)
QUALIFY row_number() OVER (PARTITION BY episode ORDER BY ts DESC, seq DESC, idx DESC) = 1
ORDER BY ts DESC"""
_FIELDS: Final = (
    *("cause", "collective", "link", "loss", "loss_error", "excess", "period", "usd_per_hour"),
    *("confidence", "evidence", "next"),
)
_SCORES: Final = (
    f"cluster_id = $1 AND metric_name = '{names.HEALTH_SCORE}' "
    "AND list_contains($3::VARCHAR[], node_id)"
)
# A node's last healthy score is not older than `healthy_ts`, so only minutes with scores since
# then can hold it, or a low score after it.
_STARTS: Final = """WITH parts AS {arrived},
healthy AS (SELECT node_id, max(first_ts) AS healthy_ts FROM parts WHERE max >= $2 GROUP BY node_id)
SELECT node_id, epoch_us(min(first_ts)) AS first_us,
  epoch_us(min(minute) FILTER (last_ts >= healthy_ts)) AS start_us
FROM parts LEFT JOIN healthy USING (node_id) GROUP BY node_id"""
_SINCE: Final = f"""WITH scores AS (SELECT node_id, ts, value_double FROM events
  WHERE {_SCORES} AND received_ts >= make_timestamp($4)),
healthy AS (SELECT node_id, max(ts) AS at FROM scores WHERE value_double >= $2 GROUP BY node_id)
SELECT s.node_id, epoch_us(min(s.ts)) FROM scores AS s LEFT JOIN healthy AS h USING (node_id)
WHERE h.at IS NULL OR s.ts > h.at GROUP BY s.node_id"""


class StragglersQuestion(Asked, kw_only=True):
    """Which nodes are slow."""

    limit: Limit = 20


class Straggler(msgspec.Struct, omit_defaults=True, rename={"cause_class": "class"}):
    """One slow node or rank; `reasons` names the sources: verdict, score, lateness.

    `cause` is what sets it apart, or what its agent found; `top_frame` is the place in the code
    from which most of its slow calls came. `loss` is the share of its slow step that the job
    loses, an upper bound with `at_most`.
    """

    node_id: str
    state: str
    rank: int | None = None
    reasons: list[str] = []
    score: float | None = None
    gap: float | None = None
    since: str | None = None
    cause_class: str | None = None
    cause: str | None = None
    top_frame: str | None = None
    loss: float | None = None
    loss_error: float | None = None
    at_most: bool = False
    collective: str | None = None
    link: str | None = None
    excess: float | None = None
    lateness_ms: float | None = None
    period: int | None = None
    usd_per_hour: float | None = None
    confidence: float | None = None
    evidence: str = ""
    next: str = ""


class StragglersAnswer(Answered, kw_only=True):
    """The worst first. An empty list means that no node is slow only together with a threshold."""

    stragglers: list[Straggler]
    nodes: int
    threshold: float | None
    threshold_source: str
    median: float | None


@question
async def find_stragglers(asker: Asker, asked: StragglersQuestion) -> StragglersAnswer:
    """Nodes that slow this cluster down, the worst first.

    Ask this right after the summary. Each row has its reasons: Fleet's verdict (cause, cost, what
    to do), a health score below the cluster's threshold, or collectives in which the others waited
    for a rank. The first row is the node to open next.
    """
    cluster = await asker.cluster(asked.cluster_id, asked.window)
    scores, collectives = await asyncio.gather(
        load_scores(asker, cluster, asked.window), load_records(asker, cluster, asked.window)
    )
    ordered, notes = await rank_stragglers(asker, cluster, asked.window, scores, collectives)
    if len(ordered) > asked.limit:
        notes.append(f"{len(ordered) - asked.limit} more nodes are slow; raise limit to see them")
    return StragglersAnswer(
        cluster_id=cluster,
        window=asked.window,
        truncated=len(ordered) > asked.limit or scores.truncated,
        notes=notes,
        stragglers=ordered[: asked.limit],
        nodes=len(scores.nodes),
        threshold=scores.threshold,
        threshold_source=scores.threshold_source,
        median=scores.median,
    )


async def rank_stragglers(
    asker: Asker, cluster: str, window: str, scores: Scores, collectives: Records | None
) -> tuple[list[Straggler], list[str]]:
    """Return everything that is slow, the worst first, and notes on the list."""
    ranking = _Ranking()
    below = _below(scores)
    verdicts, since = await asyncio.gather(
        asker.query(_VERDICTS, [cluster, asker.since_us(window)]),
        _slow_since(asker, cluster, window, scores, below),
    )
    notes = _add_verdicts(records(verdicts), ranking)
    _add_scores(scores, below, since, ranking)
    notes += _add_lateness(collectives, ranking)
    if not scores.nodes:
        notes.append(
            f"no health score arrived in the window {window}: only verdicts and collectives were "
            "used"
        )
    elif scores.threshold is None:
        notes.append(
            "no node is active yet, so health scores were not compared: only verdicts and "
            "collectives were used"
        )
    if scores.threshold_source == "computed":
        notes.append("Fleet reported no threshold here, so it was computed from the latest scores")
    return await _with_why(asker, cluster, window, ranking.ordered()), notes


async def _with_why(
    asker: Asker, cluster: str, window: str, slow: list[Straggler]
) -> list[Straggler]:
    """Add what the agents of slow nodes found, where no verdict names a cause."""
    if not slow:
        return slow
    worst: dict[str, Why] = {}
    for why in await load_why(asker, cluster, window, [found.node_id for found in slow]):
        worst.setdefault(why.node_id, why)
    return [
        msgspec.structs.replace(
            found,
            cause=found.cause or worst[found.node_id].text,
            top_frame=worst[found.node_id].top_frame,
        )
        if found.node_id in worst
        else found
        for found in slow
    ]


@dataclass(slots=True)
class _Ranking:
    """Slow nodes and ranks. Facts about a node are joined with those about its ranks."""

    found: dict[tuple[str, int | None], tuple[int, Straggler]] = field(default_factory=dict)

    def add(self, place: int, node: str, rank: int | None, **facts: Any) -> None:
        """Add facts about a node; the lowest place counts."""
        key = next(
            (k for k in self.found if k[0] == node and (rank is None or k[1] in (rank, None))),
            (node, rank),
        )
        before, straggler = self.found.get(key, (place, Straggler(node, _BELOW_LINE, rank)))
        reasons = [*straggler.reasons, facts.pop("reason")]
        kept = {
            name: value
            for name, value in facts.items()
            if value is not None and not _has(straggler, name)
        }
        self.found[key] = (
            min(place, before),
            msgspec.structs.replace(straggler, reasons=reasons, **kept),
        )

    def ordered(self) -> list[Straggler]:
        """Return the list, the worst first."""
        ranked = sorted(
            self.found.values(),
            key=lambda item: (
                item[0],
                -len(item[1].reasons),
                -(item[1].usd_per_hour or 0.0),
                -(item[1].gap or 0.0),
                -(item[1].excess or 0.0),
                item[1].node_id,
            ),
        )
        return [_with_next(straggler) for _, straggler in ranked]


def _has(straggler: Straggler, name: str) -> bool:
    return getattr(straggler, name) not in (None, "", _BELOW_LINE)


def _with_next(straggler: Straggler) -> Straggler:
    if straggler.next:
        return straggler
    advice = (
        f"open {straggler.node_id}: `ingero explain --nodes {straggler.node_id}:8080` shows why"
    )
    return msgspec.structs.replace(straggler, next=advice)


def _add_verdicts(rows: list[Json], ranking: _Ranking) -> list[str]:
    notes = []
    for row in rows:
        if row["state"] == "fleet_event":
            notes.append(
                f"the whole fleet slowed down together at {row['ts']}: "
                f"{row['evidence'] or 'no node to blame'}"
            )
        if row["state"] == "not_sure":
            notes.append(f"not sure about {row['node_id']}: {row['evidence']}")
        if row["state"] not in _STATES or row["node_id"] is None:
            continue
        ranking.add(
            _STATES[row["state"]],
            row["node_id"],
            row["rank"],
            reason="verdict",
            state=row["state"],
            since=None if row["since_us"] is None else iso(row["since_us"] / 1e6),
            cause_class=row["class"],
            at_most=bool(row["at_most"]),
            **{name: row[name] for name in _FIELDS},
        )
    return notes


def _below(scores: Scores) -> list[NodeScore]:
    """Return the nodes whose score is below the threshold."""
    threshold = scores.threshold
    if threshold is None:
        return []
    return [
        node
        for node in scores.nodes
        if node.score < threshold and node.state in ("active", "unknown")
    ]


def _add_scores(
    scores: Scores, below: list[NodeScore], since: dict[str, int], ranking: _Ranking
) -> None:
    threshold = scores.threshold or 0.0
    for node in below:
        ranking.add(
            _BELOW,
            node.node_id,
            None,
            reason="score",
            score=round(node.score, 6),
            gap=round(threshold - node.score, 6),
            since=iso(since[node.node_id] / 1e6) if node.node_id in since else None,
            evidence=f"score {node.score:.3f}, threshold {threshold:.3f}, median "
            f"{scores.median or 0:.3f}",
        )


async def _slow_since(
    asker: Asker, cluster: str, window: str, scores: Scores, below: list[NodeScore]
) -> dict[str, int]:
    """Return in microseconds when the first score below the threshold came, per node."""
    if not below:
        return {}
    nodes = [node.node_id for node in below]
    since_us, most = asker.since_us(window), len(nodes) + 1
    minutes = (await load_minutes(asker)).arrived(since_us, _SCORES)
    params: list[Any] = [cluster, scores.threshold, nodes]
    rows = records(await asker.query(_STARTS.format(arrived=minutes), params, most))
    starts = [row["start_us"] for row in rows if row["start_us"] is not None]
    found = {row["node_id"]: row["first_us"] for row in rows if row["start_us"] is None}
    if starts:
        params = [*params[:2], [n for n in nodes if n not in found], max(since_us, min(starts))]
        found |= dict((await asker.query(_SINCE, params, most)).rows)
    return found


def _add_lateness(loaded: Records | None, ranking: _Ranking) -> list[str]:
    if loaded is None:
        return []
    late = find_late(loaded.collectives, loaded.waiting)
    if late is None:
        return []
    recorder = loaded.collectives.recorders[late.who]
    every = f", every {late.period} operations" if late.period else ""
    ranking.add(
        _BELOW,
        recorder.node or "unknown",
        recorder.global_rank,
        reason="lateness",
        lateness_ms=round(late.lateness_ms, 3),
        period=late.period,
        evidence=f"the others waited {readable_seconds(late.lateness_ms / 1e3)} for it in "
        f"{late.times} collectives{every}",
    )
    return loaded.notes
