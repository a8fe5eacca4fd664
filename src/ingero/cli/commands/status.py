"""`ingero status`: show who is slow now, cluster by cluster, on one screen."""

import sys
import time
from pathlib import Path

import click
import msgspec

from ingero.cli.exit_status import Question
from ingero.cli.fleet_options import CLUSTER, FLEET, chosen_cluster, fleet_client
from ingero.cli.params import AS_JSON
from ingero.cli.show.screen import Screen
from ingero.cli.show.status import HOW_TO_PUSH, exit_status, status_text
from ingero.cli.show.table import coloured, print_json, printable
from ingero.cli.show.verdicts import ago
from ingero.contract.api_paths import FLEET_STATUS
from ingero.contract.fleet_api import ClusterStatus, NodeStatus, Status
from ingero.errors import Unavailable
from ingero.transport.fleet_client import FleetClient

WATCH_S = 2.0


@click.command(cls=Question)
@CLUSTER
@click.option("--all", "show_all", is_flag=True, help="List healthy nodes too.")
@click.option(
    "--watch",
    is_flag=True,
    help="Show the newest answer in place, every two seconds, until Ctrl-C.",
)
@AS_JSON
@FLEET
def command(
    cluster: str | None,
    all_clusters: bool,
    show_all: bool,
    watch: bool,
    as_json: bool,
    fleet: str | None,
    context: str | None,
    ca_cert: Path | None,
) -> int:
    """Show who is slow now, by cluster.

    For each cluster, the verdicts come first: which rank of which node is slow, why, by how much,
    since when, what it costs and what to do. They are based on the own time of ranks between
    collectives. Below them are the nodes whose health score is below the threshold, with the
    detection mode.

    The exit status is 0 when nobody is slow, 1 when somebody is and 3 when Fleet cannot tell:
    it does not answer, nobody pushes, or there is nothing to compare yet. Ranks and nodes that are
    silenced, and ranks that are late without a cost, do not count as slow.

    Address, certificates, token and cluster are those of `fleet` in ingero.yaml, or of the context
    in use; options and the token in $INGERO_FLEET_TOKEN take precedence.

    \b
    Examples:
      ingero status
      ingero status --fleet https://fleet:8080 --watch
      ingero status --json | jq '.clusters[].nodes[] | select(.straggler)'
    """
    client = fleet_client(fleet, ca_cert, context)
    wanted = chosen_cluster(cluster, all_clusters, context)
    if watch and sys.stdout.isatty() and not as_json:
        return _watch(client, wanted, show_all)
    while True:
        clusters = _ask(client, wanted)
        if as_json:
            print_json(msgspec.to_builtins(Status(clusters)))
        else:
            print(_text(clusters, show_all, client.url))
        if not watch:
            return exit_status(clusters)
        sys.stdout.flush()
        try:
            time.sleep(WATCH_S)
        except KeyboardInterrupt:
            return 0


def _watch(client: FleetClient, wanted: str | None, show_all: bool) -> int:
    """Show the newest answer in place until Ctrl-C; while Fleet is away, the last one stays."""
    shown, silent_since_s = "", None
    with Screen() as screen:
        while True:
            try:
                shown = _text(_ask(client, wanted), show_all, client.url)
                problem, silent_since_s = "", None
            except Unavailable as error:
                silent_since_s = silent_since_s or time.monotonic()
                problem = f"for {ago(time.monotonic() - silent_since_s)}: {printable(error)}"
            title = f"{printable(client.url)}  {time.strftime('%H:%M:%S')}"
            tail = coloured(f"  no answer {problem}", "31;1") if problem else ""
            screen.draw([title + tail, "", *shown.splitlines()])
            try:
                time.sleep(WATCH_S)
            except KeyboardInterrupt:
                return 0


def _ask(client: FleetClient, wanted: str | None) -> list[ClusterStatus[NodeStatus]]:
    found = client.get(FLEET_STATUS, Status[NodeStatus]).clusters
    return found if wanted is None else _only(wanted, found)


def _text(clusters: list[ClusterStatus[NodeStatus]], show_all: bool, url: str) -> str:
    if not clusters:
        return f"no cluster has pushed to {printable(url)} yet; {HOW_TO_PUSH}"
    return status_text(clusters, show_all)


def _only(name: str, clusters: list[ClusterStatus[NodeStatus]]) -> list[ClusterStatus[NodeStatus]]:
    """Return one cluster; raises Unavailable when it has not pushed.

    A misspelled name must not read as "nobody is slow".
    """
    chosen = [cluster for cluster in clusters if cluster.cluster_id == name]
    if not chosen:
        known = ", ".join(cluster.cluster_id for cluster in clusters) or "none yet"
        raise Unavailable(f"no cluster {name!r} has pushed; there are: {known}")
    return chosen
