"""`ingero dashboard`: serve this node's page and API."""

import asyncio
import contextlib
import sys
from pathlib import Path

import click

from ingero.agent.api.server import DashboardSettings, serve_until_signal, start_dashboard
from ingero.agent.host.identity import default_node
from ingero.agent.host.machine import read_gpu
from ingero.cli.settings import TRACE_DB
from ingero.cli.show.logs import set_up_logging
from ingero.config.ingero import trace_database
from ingero.errors import ConfigError, IngeroError
from ingero.storage.trace.reading import reading
from ingero.storage.trace.rows import read_nodes
from ingero.transport.bearer import keys_from
from ingero.transport.tls import ServerTls, is_loopback

TOKEN_VARIABLE = "INGERO_DASHBOARD_TOKEN"  # noqa: S105 - the name of a variable, not a token
_FILE = click.Path(path_type=Path)


@click.command()
@click.option(
    "--addr",
    default=":8080",
    show_default=True,
    help="Address to listen on; `:PORT` means every address, IPv4 and IPv6.",
)
@TRACE_DB
@click.option(
    "--node",
    help="Name of this node; without it the name in the database, else the host name.",
)
@click.option(
    "--host-name",
    "host_names",
    multiple=True,
    help="Another name that callers use for this machine; may be repeated.",
)
@click.option("--tls-cert", type=_FILE, help="Your own certificate, together with --tls-key.")
@click.option(
    "--tls-key", type=_FILE, help="Private key of that certificate, readable by its owner only."
)
@click.option(
    "--client-ca",
    type=_FILE,
    help="Answer only clients with a certificate of this authority.",
)
@click.option(
    "--no-tls",
    is_flag=True,
    help="Use plaintext; beyond loopback only together with --trusted-network.",
)
@click.option(
    "--trusted-network",
    is_flag=True,
    help="Allow --no-tls beyond loopback; tokens are refused then.",
)
@click.option(
    "--token-file",
    type=_FILE,
    help=f"File with the bearer token that the API requires; else ${TOKEN_VARIABLE}.",
)
@click.option("--token", hidden=True, help="Refused: arguments are visible to every user.")
def command(
    addr: str, db: Path | None, node: str | None, host_names: tuple[str, ...],
    tls_cert: Path | None, tls_key: Path | None, client_ca: Path | None, no_tls: bool,
    trusted_network: bool,
    token_file: Path | None, token: str | None,
) -> None:  # fmt: skip
    """Serve the page and the API of this node's trace.

    The page at / is for people. The API is what `query`, `explain` and `export` ask with --nodes.

    A certificate for the node's name, host name and addresses is made once and kept in
    ~/.ingero/tls. A new one is made when a name or an address is missing in it, or after a year. It
    keeps the old names, and the command prints what those who trusted the old certificate must do.

    \b
    Examples:
      ingero dashboard
      ingero dashboard --addr 127.0.0.1:8080 --no-tls
      ingero dashboard --token-file /etc/ingero/token --client-ca ca.pem
    """
    if token:
        raise ConfigError(
            "a token on the command line is visible to every user; "
            f"use --token-file or ${TOKEN_VARIABLE}"
        )
    if (tls_cert is None) != (tls_key is None):
        raise click.UsageError("--tls-cert and --tls-key come together; give both or none")
    if no_tls and (tls_cert or client_ca):
        raise click.UsageError("--no-tls and certificates exclude each other; remove one")
    if trusted_network and not no_tls:
        raise click.UsageError("--trusted-network goes with --no-tls; TLS needs no trusted network")
    path = trace_database(db)
    tls = ServerTls(cert=tls_cert, key=tls_key) if tls_cert and tls_key else None
    keys = keys_from(token_file, TOKEN_VARIABLE)
    settings = DashboardSettings(
        address=addr,
        db=path,
        node=node or _node_in(path) or default_node(),
        tls=tls,
        client_ca=client_ca,
        plaintext=no_tls,
        trusted_network=trusted_network,
        keys=None if keys is None else tuple(keys),
        host_names=host_names,
        gpu=read_gpu(),
    )
    set_up_logging("warning")
    asyncio.run(_serve(settings))


async def _serve(settings: DashboardSettings) -> None:
    serving = await start_dashboard(settings)
    print(f"{settings.node}: {serving.url}", flush=True)
    if serving.fingerprint:
        print(f"certificate fingerprint {serving.fingerprint}", flush=True)
    if serving.notice:
        print(serving.notice, file=sys.stderr, flush=True)
    if not is_loopback(settings.address) and not settings.keys and settings.client_ca is None:
        print(
            "WARNING: anybody who can connect to this port can read the trace; require a token "
            "with --token-file or client certificates with --client-ca",
            file=sys.stderr,
        )
    if not settings.db.exists():
        print(
            f"no trace yet at {settings.db}: answers are empty until `ingero trace` records one",
            file=sys.stderr,
        )
    await serve_until_signal(serving)


def _node_in(path: Path) -> str | None:
    """Return the node that a database was recorded on, if it was only one."""
    with contextlib.suppress(IngeroError):
        with reading(path) as connection:
            nodes = [name for name in read_nodes(connection) if name]
        return nodes[0] if len(nodes) == 1 else None
    return None
