"""The part that serves the page and API of this node."""

import asyncio
import contextlib
from pathlib import Path

from ingero.agent.api.server import DashboardSettings, serve_until_signal, start_dashboard
from ingero.agent.host.gpu import Gpus
from ingero.agent.host.identity import default_node
from ingero.agent.host.machine import driver_version
from ingero.agent.service.link import BEAT_S, Beat, PartLink
from ingero.children.memory import return_freed_memory
from ingero.config.ingero import IngeroConfig
from ingero.contract.node_api import GpuInfo
from ingero.errors import Unavailable
from ingero.transport.bearer import read_keys
from ingero.transport.tls import ServerTls


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
        gpu=_gpu(),
    )


async def run_api(config: IngeroConfig, database: Path, link: PartLink) -> None:
    """Serve until SIGTERM."""
    serving = await start_dashboard(api_settings(config, database))
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


def _gpu() -> GpuInfo | None:
    """Return the GPU of this machine, if there is one."""
    with contextlib.suppress(Unavailable):
        found = Gpus().info()
        return GpuInfo(found.label, driver_version())
    return None
