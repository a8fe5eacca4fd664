"""`ingero status` on a screen: one block per cluster, with its verdicts and its slow nodes."""

import time
from collections.abc import Sequence

from ingero.cli.exit_status import CANNOT_TELL, FINE, SLOW
from ingero.cli.show.table import coloured, printable, render_table
from ingero.cli.show.verdicts import ago, verdict_table
from ingero.contract.fleet_api import ClusterStatus, IdleGpus, NodeStatus
from ingero.contract.types import DetectionMode, NodeState
from ingero.contract.verdict import VerdictState
from ingero.core.counted import counted
from ingero.core.live.headline import unjudged_text

HOW_TO_PUSH = "start `ingero agent`, or `ingero fleet-push` beside a recorder (`ingero trace`)"
CALIBRATING = (
    "every node is still calibrating: that takes some minutes of GPU work, which an agent sees "
    "only while a recorder (`ingero trace`, a part of `ingero agent`) runs beside it"
)


def status_text(clusters: Sequence[ClusterStatus[NodeStatus]], show_all: bool) -> str:
    """Return every cluster: headline, verdicts, and slow nodes or, with `show_all`, all nodes.

    Clusters in which somebody is slow come first.
    """
    lines: list[str] = []
    for cluster in sorted(clusters, key=lambda each: (not is_slow(each), not doubt(each))):
        lines.append(_headline(cluster))
        nodes = sorted(
            cluster.nodes, key=lambda node: (not node.straggler, node.score or 0.0, node.node_id)
        )
        slow = [node for node in nodes if node.straggler]
        shown = nodes if show_all else slow or [node for node in nodes if node.state == "silent"]
        if cluster.verdicts:
            lines.append(verdict_table(cluster.verdicts, time.time()))
        if shown:
            lines.append(_table(shown, cluster.threshold))
        if not is_slow(cluster):
            lines.append(_conclusion(cluster))
        if cluster.idle_gpus.gpus:
            lines.append(idle_text(cluster.idle_gpus))
        lines.append("")
    return "\n".join(lines)


def idle_text(idle: IdleGpus) -> str:
    """Return what GPUs on which nothing runs cost."""
    many = idle.gpus != 1
    text = f"{idle.gpus} GPU{'s are' if many else ' is'} held and idle"
    if idle.usd_per_hour:
        text += f": ${idle.usd_per_hour:,.2f} an hour"
    if idle.unpriced:
        text += (
            f"; {idle.unpriced} of them without a known price"
            if idle.usd_per_hour
            else ("; no price is known, see `ingero rates`")
        )
    return text


def is_slow(cluster: ClusterStatus[NodeStatus]) -> bool:
    """Whether a node or rank of this cluster is slow and nobody has silenced it."""
    return any(
        verdict.state is VerdictState.STRAGGLER and not verdict.silenced
        for verdict in cluster.verdicts
    ) or any(node.straggler and not node.silenced for node in cluster.nodes)


def doubt(cluster: ClusterStatus[NodeStatus]) -> str:
    """Return why it cannot be said whether somebody is slow; empty where it can."""
    live = [node for node in cluster.nodes if node.state != "silent"]
    if not live:
        return f"no node pushes; {HOW_TO_PUSH}"
    is_judged_alone = any(node.mode == DetectionMode.LOCAL_BASELINE for node in live)
    if not (cluster.quorum_met or cluster.ranks.judged or is_judged_alone):
        is_young = all(node.state == NodeState.CALIBRATING for node in live)
        return CALIBRATING if is_young else "nothing to compare yet"
    if any(v.state is VerdictState.NOT_SURE and not v.silenced for v in cluster.verdicts):
        return "the verdict above says why"
    return ""


def exit_status(clusters: Sequence[ClusterStatus[NodeStatus]]) -> int:
    """Return the exit status of `ingero status`."""
    if any(is_slow(cluster) for cluster in clusters):
        return SLOW
    is_known = clusters and not any(doubt(cluster) for cluster in clusters)
    return FINE if is_known else CANNOT_TELL


def _conclusion(cluster: ClusterStatus[NodeStatus]) -> str:
    why = doubt(cluster)
    if why:
        return coloured(f"not sure: {why}", "33")
    silenced = sum(bool(node.straggler and node.silenced) for node in cluster.nodes) + sum(
        verdict.state is VerdictState.STRAGGLER and bool(verdict.silenced)
        for verdict in cluster.verdicts
    )
    if silenced:
        return coloured(f"nobody else is slow; silenced: {silenced}", "33")
    if cluster.ranks.learning and not cluster.ranks.judged:
        return coloured(f"no node is slow; {unjudged_text(cluster.ranks.learning)}", "33")
    return coloured("nobody is slow", "32")


def _headline(cluster: ClusterStatus[NodeStatus]) -> str:
    counts = ", ".join(
        f"{count} {state}" for state, count in cluster.nodes_by_state.items() if count
    )
    ranks = cluster.ranks
    if ranks.judged or ranks.learning:
        counts += f"; {counted(ranks.judged, 'rank')} judged"
    threshold = f"threshold {cluster.threshold:.3f}" if cluster.threshold else "no threshold yet"
    notes = [] if cluster.quorum_met else ["too few active nodes for a quorum"]
    if cluster.coverage_low:
        notes.append(f"only {cluster.coverage:.0%} of the expected nodes have pushed")
    if ranks.learning:
        notes.append(f"still learning what is normal for {counted(ranks.learning, 'rank')}")
    if cluster.panic:
        notes.append(f"panic: {cluster.panic}")
    tail = coloured(f"  [{'; '.join(notes)}]", "33") if notes else ""
    name = coloured(printable(cluster.cluster_id), "1")
    return f"{name}: {counts or 'no nodes'}; {threshold}{tail}"


def _state(node: NodeStatus) -> str:
    if node.straggler:
        return "silenced" if node.silenced else "SLOW"
    return node.state


def _table(nodes: Sequence[NodeStatus], threshold: float | None) -> str:
    rows = [
        (
            node.node_id,
            _state(node),
            "–" if node.score is None else f"{node.score:.3f}",
            "–" if not threshold else f"{threshold:.3f}",
            "" if node.straggler_for_s is None else ago(node.straggler_for_s),
            node.mode or "–",
            f"{node.last_push_s_ago:.0f} s ago",
            f"silenced {node.silenced}" if node.silenced else "",
        )
        for node in nodes
    ]
    return render_table(
        ("node", "state", "score", "threshold", "since", "mode", "last push", ""), rows
    )
