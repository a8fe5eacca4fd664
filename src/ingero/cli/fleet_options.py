"""The Fleet that a command asks, with the certificates and the token of `ingero fleet-push`."""

from pathlib import Path

import click

from ingero.config.ingero import load_ingero
from ingero.contract.names import FLEET_TOKEN_VARIABLE
from ingero.transport.bearer import token_from
from ingero.transport.fleet_client import FleetClient
from ingero.transport.tls import ClientTls

FLEET_URL = click.option(
    "--fleet",
    default="http://127.0.0.1:8080",
    show_default=True,
    metavar="URL",
    help="Address of Fleet's threshold API.",
)
FLEET_CA = click.option(
    "--ca-cert", type=click.Path(path_type=Path), help="Authority that signed Fleet's certificate."
)


def fleet_client(url: str, ca_cert: Path | None) -> FleetClient:
    """Build a client from `fleet.tls`, `fleet.insecure` and `fleet.token_file` of ingero.yaml.

    The token of the environment variable wins over that of the file, as in every command.
    `ca_cert` wins over `fleet.tls.ca`.
    """
    fleet = load_ingero().fleet
    token = token_from(fleet.token_file, FLEET_TOKEN_VARIABLE)
    return FleetClient(
        url=url,
        tls=ClientTls(ca=ca_cert or fleet.tls.ca, cert=fleet.tls.cert, key=fleet.tls.key),
        token=token,
        may_send_plaintext=fleet.insecure,
    )
