"""`ingero agent`: everything a GPU node needs, in one supervised service."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ingero.cli.params import AS_JSON
from ingero.cli.show.table import coloured, print_json, printable
from ingero.errors import ConfigError

if TYPE_CHECKING:
    from ingero.agent.service.health import AgentHealth

_COLOURS = {"running": "32", "off": "33", "starting": "33"}


@click.command()
@click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path),
    help="Configuration file; if omitted, the first ingero.yaml that is found.",
)
@click.option("--health", is_flag=True, help="Show how the agent of this machine is, and exit.")
@click.option(
    "--socket",
    "socket_path",
    type=click.Path(path_type=Path),
    help="Path of the health socket; if omitted, agent.sock in the run directory.",
)
@AS_JSON
def command(config_path: Path | None, health: bool, socket_path: Path | None, as_json: bool) -> int:
    """Run everything that this node needs as one service.

    The parts are the recorder (probes, collectives, annotations), the pusher (health, own times,
    causes, inference engines and the remediation socket) and, where agent.api.listen is set, the
    page and API of the node. Each is a process of its own. A part that ends is started again after
    1 s, then with growing pauses of up to 30 s. Only the recorder keeps capabilities.

    What cannot run here is off, and the log and --health say why: without root there are no probes,
    without a Fleet nothing is pushed. No TCP port is opened unless agent.api.listen is set.

    Health and metrics are served on a Unix socket. --health asks it and exits with status 1 while a
    part is not running, so that it can be the probe of a container.

    SIGTERM stops every part in order; SIGHUP reads the configuration again. Under systemd the
    service has Type=notify, and its watchdog is answered.

    \b
    Examples:
      sudo ingero agent
      ingero agent --config /etc/ingero/ingero.yaml
      ingero agent --health
    """
    from ingero.agent.host.sockets import find_health_socket, own_socket
    from ingero.agent.service.health import SOCKET_NAME

    if health:
        return _show_health(socket_path or find_health_socket(SOCKET_NAME), as_json)
    return _run(config_path, socket_path or own_socket(SOCKET_NAME), as_json)


def _show_health(path: Path, as_json: bool) -> int:
    import msgspec

    from ingero.agent.service.health import agent_health

    found = agent_health(path)
    if as_json:
        print_json(msgspec.to_builtins(found))
    else:
        print(f"agent {found.version} of {printable(found.node)}, process {found.pid}")
        _print_parts(found)
    return 0 if found.healthy else 1


def _print_parts(health: "AgentHealth") -> None:
    for part in health.parts:
        state = coloured(part.state.ljust(8), _COLOURS.get(part.state, "31"))
        again = f"  restarts: {part.restarts}" if part.restarts else ""
        where = "".join(f"  {printable(address)}" for address in part.addresses.values())
        why = f"  {printable(part.why)}" if part.why and part.state != "running" else ""
        print(f"  {part.name:<9} {state}{where}{again}{why}")
        for note in part.notes:
            print(f"            note: {printable(note)}")


def _run(config_path: Path | None, socket_path: Path, as_json: bool) -> int:
    from ingero.agent.service.supervisor import AgentService
    from ingero.cli.part import run_part
    from ingero.cli.show.logs import set_up_logging
    from ingero.config.ingero import find_config, load_ingero

    path = config_path or find_config()
    if path is not None and not path.exists():
        raise ConfigError(f"{path} does not exist; `ingero join` writes one")
    config = load_ingero(path)
    set_up_logging(config.agent.log_level)

    def started(health: "AgentHealth") -> None:
        if as_json:
            import msgspec

            print(msgspec.json.encode(health).decode(), flush=True)
            return
        print(f"agent of {printable(health.node)}, health at {socket_path}", flush=True)
        _print_parts(health)

    async def serve() -> None:
        service = AgentService(config, path, lambda: load_ingero(path), run_part)
        await service.run(socket_path, started)

    asyncio.run(serve())
    return 0
