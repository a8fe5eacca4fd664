"""`ingero status`: show who is slow now, cluster by cluster, on one screen."""

import sys
import time
from pathlib import Path

import click
import msgspec

from ingero.cli.exit_status import Question
from ingero.cli.fleet_options import FLEET_CA, FLEET_URL, fleet_client
from ingero.cli.params import AS_JSON
from ingero.cli.show.status import HOW_TO_PUSH, exit_status, print_clusters
from ingero.cli.show.table import print_json
from ingero.contract.api_paths import FLEET_STATUS
from ingero.contract.fleet_api import ClusterStatus, NodeStatus, Status
from ingero.errors import Unavailable

WATCH_S = 2.0


@click.command(cls=Question)
@FLEET_URL
@click.option("--cluster", help="Show only this cluster.")
@click.option("--all", "show_all", is_flag=True, help="List healthy nodes too.")
@click.option("--watch", is_flag=True, help="Repeat every two seconds, until Ctrl-C.")
@AS_JSON
@FLEET_CA
def command(
    fleet: str,
    cluster: str | None,
    show_all: bool,
    watch: bool,
    as_json: bool,
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

    Certificates and the token are those of `fleet` in ingero.yaml; --ca-cert and the token in
    $INGERO_FLEET_TOKEN take precedence.

    \b
    Examples:
      ingero status
      ingero status --fleet https://fleet:8080 --watch
      ingero status --json | jq '.clusters[].nodes[] | select(.straggler)'
    """
    while True:
        found = fleet_client(fleet, ca_cert).get(FLEET_STATUS, Status[NodeStatus]).clusters
        clusters = found if cluster is None else _only(cluster, found)
        if as_json:
            print_json(msgspec.to_builtins(Status(clusters)))
        else:
            if watch and sys.stdout.isatty():
                print("\x1b[H\x1b[2J", end="")
            if not clusters:
                print(f"no cluster has pushed to {fleet} yet; {HOW_TO_PUSH}")
            print_clusters(clusters, show_all)
        if not watch:
            return exit_status(clusters)
        sys.stdout.flush()
        try:
            time.sleep(WATCH_S)
        except KeyboardInterrupt:
            return 0


def _only(name: str, clusters: list[ClusterStatus[NodeStatus]]) -> list[ClusterStatus[NodeStatus]]:
    """Return one cluster; raises Unavailable when it has not pushed.

    A misspelled name must not read as "nobody is slow".
    """
    chosen = [cluster for cluster in clusters if cluster.cluster_id == name]
    if not chosen:
        known = ", ".join(cluster.cluster_id for cluster in clusters) or "none yet"
        raise Unavailable(f"no cluster {name!r} has pushed; there are: {known}")
    return chosen
