"""The Fleet that a command asks: its address, certificates, token and cluster."""

import shlex
from pathlib import Path

import click

from ingero.cli.params import stacked
from ingero.config.contexts import Context, find_context
from ingero.contract.names import FLEET_TOKEN_VARIABLE
from ingero.transport.bearer import token_from
from ingero.transport.fleet_client import FleetClient
from ingero.transport.tls import ClientTls

FLEET = stacked(
    click.option(
        "--fleet",
        metavar="URL",
        show_default="that of ingero.yaml, else http://127.0.0.1:8080",
        help="Address of Fleet's API.",
    ),
    click.option(
        "--context",
        metavar="NAME",
        show_default="the one in use",
        help="Context of ingero.yaml to take address, token and cluster from.",
    ),
    click.option(
        "--ca-cert",
        type=click.Path(path_type=Path),
        help="Authority that signed Fleet's certificate.",
    ),
)
CLUSTER = stacked(
    click.option(
        "--cluster",
        metavar="NAME",
        show_default="that of ingero.yaml, else all",
        help="Cluster to ask about.",
    ),
    click.option("--all-clusters", is_flag=True, help="Ask about all clusters."),
)


def fleet_client(
    url: str | None, ca_cert: Path | None, context: str | Context | None = None
) -> FleetClient:
    """Build a client from a context of ingero.yaml; `url` and `ca_cert` win over it."""
    chosen = context if isinstance(context, Context) else find_context(context)
    settings, tls = chosen.settings, chosen.settings.tls
    return FleetClient(
        url=url or chosen.url,
        tls=ClientTls(ca=ca_cert or tls.ca, cert=tls.cert, key=tls.key),
        token=token_from(settings.token_file, FLEET_TOKEN_VARIABLE),
        may_send_plaintext=settings.insecure,
    )


def same_fleet(url: str | None, ca_cert: Path | None, context: str | None) -> str:
    """Return the options with which another command asks the same Fleet."""
    given = {"--fleet": url, "--context": context, "--ca-cert": ca_cert}
    return "".join(f" {name} {shlex.quote(str(value))}" for name, value in given.items() if value)


def chosen_cluster(cluster: str | None, all_clusters: bool, context: str | None) -> str | None:
    """Return the cluster that a command is about; None for all of them."""
    if cluster is not None and all_clusters:
        raise click.UsageError("--cluster and --all-clusters exclude each other")
    return None if all_clusters else cluster or find_context(context).settings.cluster_id
