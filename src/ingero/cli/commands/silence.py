"""`ingero silence`: mute alerts about a node or a job for a while; it is measured as before."""

import sys
import time
from typing import Any, TypeVar

import click
import msgspec

from ingero.cli.fleet_options import CLUSTER, FLEET, chosen_cluster, fleet_client
from ingero.cli.params import AS_JSON, Duration
from ingero.cli.show.table import print_json, printable, render_table
from ingero.cli.show.verdicts import ago
from ingero.contract.api_paths import FLEET_SILENCES, FLEET_SILENCES_LIFT
from ingero.contract.fleet_api import LiftedSilences, SilenceList
from ingero.contract.silence import LiftRequest, Silence, SilenceRequest
from ingero.errors import ConfigError
from ingero.transport.fleet_client import FleetClient

Request = TypeVar("Request", SilenceRequest, LiftRequest)


@click.command()
@click.argument("target", metavar="NODE|JOB|list|lift")
@click.argument("lifted", required=False, metavar="[NODE|JOB]")
@click.option(
    "--for", "how_long", type=Duration(), help="Duration of the silence, such as 30m, 2h or 1d."
)
@click.option("--why", help="Reason for the silence, shown to others.")
@click.option("--force", is_flag=True, help="Silence a node or job that Fleet has never seen.")
@CLUSTER
@AS_JSON
@FLEET
def command(
    target: str,
    lifted: str | None,
    how_long: float | None,
    why: str | None,
    force: bool,
    cluster: str | None,
    all_clusters: bool,
    as_json: bool,
    **where: Any,
) -> int:
    """Mute alerts about a node or a job for a while.

    The node or job is measured and judged as before: its verdicts, their events and series carry
    `silenced`, and the shipped Prometheus alerts leave them out. `ingero status` shows who is
    silenced until when, and its exit status is no longer 1 because of them.

    A node or job that Fleet has never seen is refused, because its name may be misspelt; --force
    silences it all the same.

    `ingero silence list` shows all silences and `ingero silence lift` ends one; lifting what is not
    silenced exits with 1.

    The token comes from $INGERO_FLEET_TOKEN, else fleet.token_file of ingero.yaml. Without one,
    Fleet accepts silences from its own machine only.

    \b
    Examples:
      ingero silence gpu-node-17 --for 2h --why "fan is being replaced"
      ingero silence list
      ingero silence lift gpu-node-17
    """
    client = fleet_client(where["fleet"], where["ca_cert"], where["context"])
    cluster = chosen_cluster(cluster, all_clusters, where["context"])
    if target == "list":
        listed = client.get(FLEET_SILENCES, SilenceList)
        print_json(msgspec.to_builtins(listed)) if as_json else _show(listed.silences)
        return 0
    if target == "lift":
        return _lift(client, lifted, cluster, as_json)
    if lifted or not how_long or not why:
        raise click.UsageError(
            'give duration and reason: `ingero silence NODE|JOB --for 2h --why "..."`'
        )
    request = _checked(
        SilenceRequest(target=target, for_s=how_long, why=why, cluster=cluster, force=force)
    )
    silence = client.post(FLEET_SILENCES, request, Silence)
    print_json(msgspec.to_builtins(silence)) if as_json else _show([silence])
    return 0


def _lift(client: FleetClient, target: str | None, cluster: str | None, as_json: bool) -> int:
    if not target:
        raise click.UsageError(
            "name the node or job whose silence ends: `ingero silence lift NODE|JOB`"
        )
    request = _checked(LiftRequest(target=target, cluster=cluster))
    ended = client.post(FLEET_SILENCES_LIFT, request, LiftedSilences)
    if as_json:
        print_json(msgspec.to_builtins(ended))
    elif ended.lifted:
        print(f"{printable(target)} is no longer silenced")
    else:
        print(
            f"{printable(target)} was not silenced; `ingero silence list` shows who is",
            file=sys.stderr,
        )
    return 0 if ended.lifted else 1


def _checked(request: Request) -> Request:
    """Apply the limits that Fleet applies, so that their names appear in the error."""
    try:
        return msgspec.convert(msgspec.to_builtins(request), type(request))
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"{error}; a silence lasts at most 30 days, names are short and printable"
        ) from None


def _show(silences: list[Silence]) -> None:
    if not silences:
        print("nothing is silenced")
        return
    rows = [
        (
            silence.target,
            silence.cluster or "all",
            f"{ago(max(silence.until - time.time(), 0.0))} left",
            silence.why,
        )
        for silence in silences
    ]
    print(render_table(("node or job", "cluster", "ends", "why"), rows))
