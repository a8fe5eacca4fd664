"""The state of one cluster on one page: where every investigation begins."""

import asyncio
from collections import Counter
from typing import Final

import msgspec

from ingero.echo.tools.arrivals import arrived_since
from ingero.echo.tools.asker import Answered, Asked, Asker, Json, iso, question, records
from ingero.echo.tools.minutes import load_minutes
from ingero.echo.tools.records import load_records
from ingero.echo.tools.scores import Scores, load_scores
from ingero.echo.tools.stragglers import Straggler, rank_stragglers

SILENT_S: Final = 60.0
TOP: Final = 5
_EXTENT: Final = """SELECT coalesce(sum(events), 0)::BIGINT AS events,
  count(DISTINCT node_id) AS nodes, count(DISTINCT metric_name) AS metrics,
  epoch_us(max(newest_ts)) AS newest_us FROM {arrived}"""
_CHAIN_IDS: Final = """SELECT count(DISTINCT causal_chain_id) FROM events
WHERE cluster_id = $1 AND received_ts >= make_timestamp($2) AND causal_chain_id IS NOT NULL"""
_CHAINS: Final = """SELECT chain_id, node_id, severity, summary, root_cause, top_frame
FROM causal_chains
WHERE cluster_id = $1 AND {arrived}
ORDER BY CASE severity WHEN 'CRITICAL' THEN 0 WHEN 'HIGH' THEN 1 WHEN 'MEDIUM' THEN 2 ELSE 3 END,
  detected_at DESC"""


class SummaryQuestion(Asked, kw_only=True):
    """How a cluster is doing."""


class ChainNews(msgspec.Struct):
    """One causal chain that an agent reported, with the place in the code of most slow calls."""

    chain_id: str | None
    node_id: str | None
    severity: str | None
    summary: str | None
    root_cause: str | None
    top_frame: str | None


class SlowNode(msgspec.Struct):
    """One of the worst nodes; `find_stragglers` has the details."""

    node_id: str
    state: str
    evidence: str


class SummaryAnswer(Answered, kw_only=True):
    """Counts of the window. `silent` nodes sent data in it, but not in its last minute."""

    nodes: int
    scored_nodes: int
    active: int
    idle: int
    calibrating: int
    silent: int
    events: int
    metrics: int
    chain_ids: int
    newest_event: str | None
    threshold: float | None
    threshold_source: str
    quorum_met: bool | None
    median: float | None
    mad: float | None
    straggler_count: int
    stragglers: list[SlowNode]
    chains: list[ChainNews]
    next: str


@question
async def summary(asker: Asker, asked: SummaryQuestion) -> SummaryAnswer:
    """State of this cluster: nodes, health threshold, slow nodes, reports of agents.

    Ask this first.

    `next` names the question to ask after it.
    """
    cluster = await asker.cluster(asked.cluster_id, asked.window)
    await load_minutes(asker)  # before several statements at once need them
    (scores, slow, notes), extent, chains = await asyncio.gather(
        _slow_nodes(asker, cluster, asked.window),
        _extent(asker, cluster, asker.since_us(asked.window)),
        _chains(asker, cluster, asker.since_us(asked.window)),
    )
    newest_us = extent["newest_us"]
    is_silent = [
        newest_us is not None and newest_us - node.seen_us > SILENT_S * 1e6 for node in scores.nodes
    ]
    states = Counter(
        node.state for node, silent in zip(scores.nodes, is_silent, strict=True) if not silent
    )
    quorum = scores.fleet.get("quorum_met")
    return SummaryAnswer(
        cluster_id=cluster,
        window=asked.window,
        truncated=scores.truncated or len(slow) > TOP or len(chains) > TOP,
        notes=[
            *notes,
            *([] if extent["events"] else [f"nothing arrived in the window {asked.window}"]),
        ],
        nodes=extent["nodes"],
        scored_nodes=len(scores.nodes),
        active=states["active"],
        idle=states["idle"],
        calibrating=states["calibrating"],
        silent=sum(is_silent),
        events=extent["events"],
        metrics=extent["metrics"],
        chain_ids=extent["chains"],
        newest_event=None if newest_us is None else iso(newest_us / 1e6),
        threshold=scores.threshold,
        threshold_source=scores.threshold_source,
        quorum_met=None if quorum is None else bool(quorum),
        median=scores.median,
        mad=scores.mad,
        straggler_count=len(slow),
        stragglers=[SlowNode(found.node_id, found.state, found.evidence) for found in slow[:TOP]],
        chains=[msgspec.convert(chain, ChainNews) for chain in chains[:TOP]],
        next=_next(slow[0].node_id if slow else None, scores, bool(chains), bool(extent["events"])),
    )


async def _slow_nodes(
    asker: Asker, cluster: str, window: str
) -> tuple[Scores, list[Straggler], list[str]]:
    scores, collectives = await asyncio.gather(
        load_scores(asker, cluster, window), load_records(asker, cluster, window)
    )
    return scores, *await rank_stragglers(asker, cluster, window, scores, collectives)


async def _chains(asker: Asker, cluster: str, since_us: int) -> list[Json]:
    arrived = await arrived_since(asker, since_us)
    return records(await asker.query(_CHAINS.format(arrived=arrived), [cluster], TOP + 1))


async def _extent(asker: Asker, cluster: str, since_us: int) -> Json:
    arrived = (await load_minutes(asker)).arrived(since_us, "cluster_id = $1")
    (extent,) = records(await asker.query(_EXTENT.format(arrived=arrived), [cluster]))
    ((chains,),) = (await asker.query(_CHAIN_IDS, [cluster, since_us])).rows
    return {**extent, "chains": chains}


def _next(slowest: str | None, scores: Scores, has_chains: bool, has_events: bool) -> str:
    if slowest is not None:
        return f"fleet.cluster.find_stragglers shows why {slowest} is slow and what it costs"
    is_unsure = bool(scores.nodes) and scores.threshold is None
    if has_chains:
        calm = "no node was compared yet" if is_unsure else "no node is slower than the others"
        return f"{calm}; fleet.cluster.anomalies lists what agents reported"
    if has_events and is_unsure:
        return (
            "no node was reported as slow, but none is active yet, so that health scores are not "
            "compared; ask again when agents have seen some minutes of work"
        )
    if has_events:
        return (
            "no node is slow; fleet.cluster.find_outlier_nodes compares any other metric across "
            "nodes"
        )
    return "ask again with a longer window, or check that agents push and Fleet forwards"
