"""`ingero status`: who is slow now, cluster by cluster, on one screen."""

import sys
import time
from pathlib import Path
from typing import Any

import click

from ingero.cli.fleet_http import fleet_json
from ingero.cli.params import AS_JSON
from ingero.cli.show.table import coloured, print_json, printable, render_table
from ingero.cli.show.verdicts import ago, verdict_table
from ingero.errors import Unavailable

DEFAULT_FLEET = "http://127.0.0.1:8080"
WATCH_S = 2.0


@click.command()
@click.option(
    "--fleet",
    default=DEFAULT_FLEET,
    show_default=True,
    metavar="URL",
    help="Fleet's threshold API.",
)
@click.option("--cluster", help="Only this cluster.")
@click.option("--all", "show_all", is_flag=True, help="List healthy nodes too.")
@click.option("--watch", is_flag=True, help="Again every two seconds, until Ctrl-C.")
@AS_JSON
@click.option(
    "--ca-cert", type=click.Path(path_type=Path), help="Authority that signed Fleet's certificate."
)
def command(
    fleet: str,
    cluster: str | None,
    show_all: bool,
    watch: bool,
    as_json: bool,
    ca_cert: Path | None,
) -> int:
    """Who is slow now: which rank of which node, why, by how much, since when, what it costs and what to do.

    Verdicts come from own time between collectives. Below them, nodes whose score is under the threshold.
    Exit status 0: nobody is slow; 1: somebody is. A token comes from $INGERO_FLEET_TOKEN.

    \b
    Examples:
      ingero status
      ingero status --fleet https://fleet:8080 --watch
      ingero status --json | jq '.clusters[].nodes[] | select(.straggler)'
    """
    while True:
        answer = fleet_json(fleet, "/api/v1/status", ca_cert)
        clusters = answer["clusters"] if cluster is None else _only(cluster, answer["clusters"])
        if as_json:
            print_json({"clusters": clusters})
        else:
            if watch and sys.stdout.isatty():
                print("\x1b[H\x1b[2J", end="")
            _show(clusters, show_all, fleet)
        if not watch:
            return 1 if any(_is_slow(cluster) for cluster in clusters) else 0
        sys.stdout.flush()
        try:
            time.sleep(WATCH_S)
        except KeyboardInterrupt:
            return 0


def _only(name: str, clusters: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A cluster nobody pushes for is an error: a typo must not read as "nobody is slow"."""
    chosen = [cluster for cluster in clusters if cluster["cluster_id"] == name]
    if not chosen:
        known = ", ".join(cluster["cluster_id"] for cluster in clusters) or "none yet"
        raise Unavailable(f"no cluster {name!r} has pushed; there are: {known}")
    return chosen


def _show(clusters: list[dict[str, Any]], show_all: bool, fleet: str) -> None:
    if not clusters:
        print(f"no cluster has pushed to {fleet} yet; start agents with `ingero fleet-push`")
        return
    for cluster in clusters:
        print(_headline(cluster))
        nodes = sorted(
            cluster["nodes"],
            key=lambda node: (not node["straggler"], node["score"] or 0.0, node["node_id"]),
        )
        slow = [node for node in nodes if node["straggler"]]
        shown = nodes if show_all else slow or [node for node in nodes if node["state"] == "silent"]
        verdicts = cluster.get("verdicts", [])
        if verdicts:
            print(verdict_table(verdicts, time.time()))
        if shown:
            print(_table(shown, cluster["threshold"]))
        if not _is_slow(cluster):
            compared = cluster["quorum_met"] or cluster.get("ranks", {}).get("judged")
            print(
                coloured("nobody is slow", "32")
                if compared
                else coloured("not sure: nothing to compare yet", "33")
            )
        print()


def _is_slow(cluster: dict[str, Any]) -> bool:
    named = any(
        v["state"] == "straggler" and not v.get("silenced") for v in cluster.get("verdicts", [])
    )
    return named or any(node["straggler"] and not node.get("silenced") for node in cluster["nodes"])


def _headline(cluster: dict[str, Any]) -> str:
    counts = ", ".join(
        f"{count} {state}" for state, count in cluster["nodes_by_state"].items() if count
    )
    ranks = cluster.get("ranks", {"judged": 0, "learning": 0})
    if ranks["judged"] or ranks["learning"]:
        counts += f"; {ranks['judged']} ranks judged"
    threshold = (
        f"threshold {cluster['threshold']:.3f}" if cluster["threshold"] else "no threshold yet"
    )
    notes = [] if cluster["quorum_met"] else ["too few active nodes for a quorum"]
    if cluster["coverage_low"]:
        notes.append(f"only {cluster['coverage']:.0%} of the expected nodes are heard")
    if ranks["learning"]:
        notes.append(f"still learning what is normal for {ranks['learning']} ranks")
    if cluster["panic"]:
        notes.append(f"panic: {cluster['panic']}")
    tail = coloured(f"  [{'; '.join(notes)}]", "33") if notes else ""
    return f"{coloured(printable(cluster['cluster_id']), '1')}: {counts or 'no nodes'}; {threshold}{tail}"


def _table(nodes: list[dict[str, Any]], threshold: float | None) -> str:
    rows = [
        (
            node["node_id"],
            "SLOW" if node["straggler"] else node["state"],
            "–" if node["score"] is None else f"{node['score']:.3f}",
            "–" if not threshold else f"{threshold:.3f}",
            "" if node["straggler_for_s"] is None else ago(node["straggler_for_s"]),
            node["mode"] or "–",
            f"{node['last_push_s_ago']:.0f} s ago",
            f"silenced {node['silenced']}" if node.get("silenced") else "",
        )
        for node in nodes
    ]
    return render_table(
        ("node", "state", "score", "threshold", "since", "mode", "last push", ""), rows
    )
