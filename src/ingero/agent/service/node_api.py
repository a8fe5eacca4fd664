"""The part that serves the page and API of this node."""

import asyncio
import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from ingero.agent.api.server import DashboardSettings, serve_until_signal, start_dashboard
from ingero.agent.host.identity import default_node
from ingero.agent.host.machine import read_gpu
from ingero.agent.service.link import BEAT_S, Beat, PartLink
from ingero.children.memory import return_freed_memory
from ingero.children.output import output_of
from ingero.children.process import module_command
from ingero.config.ingero import IngeroConfig
from ingero.errors import AuthError
from ingero.transport.bearer import read_keys
from ingero.transport.tls import ServerTls

_CERTIFICATE: Final = "ingero.cli.node_certificate"
_CERTIFICATE_S: Final = 60.0
_MAX_SAID_BYTES: Final = 1 << 20


def api_settings(config: IngeroConfig, database: Path) -> DashboardSettings:
    """Return how the API is served; raises AuthError for files that cannot be used."""
    api = config.agent.api
    assert api.listen is not None
    tls = (
        ServerTls(cert=api.cert_file, key=api.key_file) if api.cert_file and api.key_file else None
    )
    return DashboardSettings(
        address=api.listen,
        db=database,
        node=config.agent.node or default_node(),
        tls=tls,
        client_ca=api.client_ca,
        keys=tuple(read_keys(api.token_file)) if api.token_file else None,
        gpu=read_gpu(),
    )


class CertificateOrder(msgspec.Struct):
    """What the process that finds or makes the certificate is started with."""

    address: str
    node: str
    cert: str | None = None
    key: str | None = None


class NodeCertificate(msgspec.Struct):
    """What that process prints."""

    cert: str = ""
    key: str = ""
    names: tuple[str, ...] = ()
    problem: str = ""


def with_certificate(settings: DashboardSettings) -> DashboardSettings:
    """Return the settings with a certificate and its names; raises AuthError.

    Another process reads it: what reads certificates would add 10 MB to this one for good.
    """
    order = CertificateOrder(settings.address, settings.node)
    if settings.tls is not None:
        order.cert, order.key = str(settings.tls.cert), str(settings.tls.key)
    command = module_command(_CERTIFICATE, msgspec.json.encode(order).decode())
    said = output_of(command, _MAX_SAID_BYTES, _CERTIFICATE_S)
    try:
        found = msgspec.json.decode(said, type=NodeCertificate)
    except msgspec.DecodeError:
        found = NodeCertificate(problem="the certificate of this node could not be made")
    if not found.cert:
        raise AuthError(found.problem)
    tls = ServerTls(cert=Path(found.cert), key=Path(found.key))
    return replace(settings, tls=tls, certificate_names=found.names)


async def run_api(config: IngeroConfig, database: Path, link: PartLink) -> None:
    """Serve until SIGTERM."""
    settings = await asyncio.to_thread(with_certificate, api_settings(config, database))
    serving = await start_dashboard(settings)
    beating = asyncio.create_task(_beat(serving.url, link))
    try:
        await serve_until_signal(serving)
    finally:
        beating.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await beating


async def _beat(url: str, link: PartLink) -> None:
    return_freed_memory()
    while True:
        link.beat(Beat(addresses={"api": url}))
        await asyncio.sleep(BEAT_S)
