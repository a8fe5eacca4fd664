"""`ingero silence`: no alerts about a node or a job for a while; it is measured and judged as before."""

import sys
import time
from pathlib import Path
from typing import Any

import click
import msgspec

from ingero.cli.commands.status import DEFAULT_FLEET
from ingero.cli.fleet_http import fleet_json
from ingero.cli.params import AS_JSON, Duration
from ingero.cli.show.table import print_json, printable, render_table
from ingero.cli.show.verdicts import ago
from ingero.contract.api_paths import FLEET_SILENCES, FLEET_SILENCES_LIFT
from ingero.contract.silence import LiftRequest, SilenceRequest
from ingero.errors import ConfigError


@click.command()
@click.argument("target", metavar="NODE|JOB|list|lift")
@click.argument("lifted", required=False, metavar="[NODE|JOB]")
@click.option("--for", "how_long", type=Duration(), help="How long: 30m, 2h, 1d.")
@click.option("--why", help="The reason; others will read it.")
@click.option("--cluster", help="Only in this cluster; otherwise in all.")
@click.option(
    "--fleet",
    default=DEFAULT_FLEET,
    show_default=True,
    metavar="URL",
    help="Fleet's threshold API.",
)
@AS_JSON
@click.option(
    "--ca-cert", type=click.Path(path_type=Path), help="Authority that signed Fleet's certificate."
)
def command(
    target: str,
    lifted: str | None,
    how_long: float | None,
    why: str | None,
    cluster: str | None,
    fleet: str,
    as_json: bool,
    ca_cert: Path | None,
) -> int:
    """Mute alerts about a node or a job you know about; verdicts, series and prices go on and say so.

    A token comes from $INGERO_FLEET_TOKEN; without one Fleet takes silences from its own machine only.

    \b
    Examples:
      ingero silence gpu-node-17 --for 2h --why "fan is being replaced"
      ingero silence list
      ingero silence lift gpu-node-17
    """
    if target == "list":
        answer = fleet_json(fleet, FLEET_SILENCES, ca_cert)
        print_json(answer) if as_json else _show(answer["silences"])
        return 0
    if target == "lift":
        if not lifted:
            raise click.UsageError("say whose silence ends: `ingero silence lift NODE|JOB`")
        answer = _post(
            fleet, FLEET_SILENCES_LIFT, ca_cert, LiftRequest(target=lifted, cluster=cluster)
        )
        if as_json:
            print_json(answer)
        elif answer["lifted"]:
            print(f"{printable(lifted)} is no longer silenced")
        else:
            print(
                f"{printable(lifted)} was not silenced; `ingero silence list` shows who is",
                file=sys.stderr,
            )
        return 0 if answer["lifted"] else 1
    if lifted or not how_long or not why:
        raise click.UsageError(
            'say how long and why: `ingero silence NODE|JOB --for 2h --why "..."`'
        )
    asked = SilenceRequest(target=target, for_s=how_long, why=why, cluster=cluster)
    answer = _post(fleet, FLEET_SILENCES, ca_cert, asked)
    print_json(answer) if as_json else _show([answer])
    return 0


def _post(fleet: str, path: str, ca_cert: Path | None, asked: SilenceRequest | LiftRequest) -> Any:
    body = msgspec.json.encode(asked)
    try:
        msgspec.json.decode(body, type=type(asked))
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"{error}; a silence lasts at most 30 days, names are short and printable"
        ) from None
    return fleet_json(fleet, path, ca_cert, body)


def _show(silences: list[dict[str, Any]]) -> None:
    if not silences:
        print("nothing is silenced")
        return
    rows = [
        (
            s["target"],
            s.get("cluster") or "all",
            f"{ago(max(s['until'] - time.time(), 0.0))} left",
            s["why"],
        )
        for s in silences
    ]
    print(render_table(("node or job", "cluster", "ends", "why"), rows))
