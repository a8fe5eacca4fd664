"""`ingero-fleet serve`: check what a start would read, run until a signal, reload on SIGHUP."""

import asyncio
import signal
from collections.abc import Callable
from functools import partial

from ingero.children.memory import settle_memory
from ingero.config.fleet import FleetConfig
from ingero.config.fleet_exporters import ForwardExporterConfig
from ingero.config.providers import load_providers
from ingero.config.rates import load_rates
from ingero.errors import ConfigError, IngeroError
from ingero.fleet.app import FleetService
from ingero.fleet.exporters import build_backend
from ingero.fleet.listeners import ListenerSecrets
from ingero.stopping import stop_on_signals
from ingero.transport.file_limit import raise_file_limit


def check_files(config: FleetConfig) -> None:
    """Read every file that a start would read; raise ConfigError with the key of a wrong one."""
    verdict, providers = config.processors.ingero.verdict, config.processors.providerlookup.file
    needed: list[tuple[str, Callable[[], object]]] = [
        ("processors.ingero.verdict.rates_file", lambda: load_rates(verdict.rates_file)),
        ("processors.providerlookup.file", lambda: load_providers(providers)),
        *(
            (listener.key, partial(ListenerSecrets.read, listener))
            for listener in config.listeners()
        ),
        *(
            (f"exporters.{name}", partial(build_backend, name, exporter))
            for name, exporter in config.exporters.items()
            if isinstance(exporter, ForwardExporterConfig)
        ),
        *(
            (f"alerts.targets.{name}", target.check)
            for name, target in config.alerts.targets.items()
        ),
    ]
    for key, read in needed:
        try:
            read()
        except IngeroError as error:
            raise ConfigError(f"{key}: {error}") from None


async def serve(
    config: FleetConfig,
    on_started: Callable[[FleetService], None],
    reread: Callable[[], FleetConfig] | None = None,
) -> None:
    """Run until SIGTERM or SIGINT; reload on SIGHUP, with `reread` also the limits."""
    raise_file_limit()
    service = FleetService(config)
    service.reread = reread
    stopping = stop_on_signals()
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, service.reload)
    await service.start()
    settle_memory()
    on_started(service)
    await stopping.wait()
    await service.stop()
