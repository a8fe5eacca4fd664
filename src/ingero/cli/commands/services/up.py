"""`ingero up`: run Fleet, Echo and the agent on one machine; Fleet forwards everything to Echo."""

import asyncio
import importlib.util
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import click

from ingero.children.process import module_command
from ingero.children.supervisor import SupervisedService, bound_logs
from ingero.cli.params import AS_JSON, stacked
from ingero.compiled import install_command
from ingero.config.deploy.ports import AGENT, ECHO, FLEET, PORTS
from ingero.config.echo import certificate_beside, token_beside
from ingero.files import replace_file
from ingero.stopping import stop_on_signals
from ingero.storage.runtime import RunningService, forget_services, note_services

DATABASE = "echo.db"
CLUSTER = "local"
_TITLES = {FLEET: "Fleet", ECHO: "Echo", AGENT: "the agent"}
_MEANINGS = {(port.service, port.name): port.meaning for port in PORTS.values()}


_port_options = stacked(
    *(
        click.option(
            f"--{flag}",
            type=click.IntRange(0, 65535),
            default=port.moved,
            show_default=True,
            help=f"Port of {_TITLES[port.service]}: {port.meaning}.",
        )
        for flag, port in PORTS.items()
    )
)


@click.command()
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default="~/.ingero/up",
    show_default=True,
    help="Folder of databases, certificate, token and logs.",
)
@click.option("--no-agent", is_flag=True, help="Do not run the agent of this machine.")
@click.option("--no-echo", is_flag=True, help="Do not run Echo.")
@AS_JSON
@_port_options
def command(data_dir: Path, no_agent: bool, no_echo: bool, as_json: bool, **ports: int) -> int:
    """Run Fleet, Echo and the agent on this machine.

    Everything listens on loopback. Fleet uses plaintext there; Echo and the agent use TLS, with
    certificates that are made once and kept. A port of 0 lets the kernel choose. Echo is left out
    where it is not installed. With sudo the agent also traces; without, it records collectives and
    annotations.

    Other commands find these services by themselves: `ingero status`, `query`, `explain` and
    `ingero-echo ask` need no option.

    A service that ends is started again after 1 s, then with growing pauses of up to 30 s. Ctrl-C
    and SIGTERM stop the agent and Fleet first, so that everything they hold still reaches Echo.
    Each log is kept up to 64 MiB, with one older file.

    \b
    Examples:
      sudo ingero up
      ingero up --data-dir /var/lib/ingero --fleet-http 24318
      ingero up --no-agent
    """
    from ingero.cli.show.logs import set_up_logging
    from ingero.storage.place import make_own_folder

    set_up_logging("warning")
    folder = data_dir.expanduser().absolute()
    make_own_folder(folder)
    if not no_echo and importlib.util.find_spec("duckdb") is None:
        no_echo = True
        print(f"Echo is not installed and left out: {install_command('echo')}", file=sys.stderr)
    chosen = {flag.replace("_", "-"): port for flag, port in ports.items()}
    options = UpOptions(folder, chosen, with_echo=not no_echo, with_agent=not no_agent)
    return asyncio.run(_up(options, as_json))


@dataclass
class UpOptions:
    """The options of `ingero up`; `ports` holds ports by flag."""

    folder: Path
    ports: dict[str, int]
    with_echo: bool
    with_agent: bool


async def _up(options: UpOptions, as_json: bool) -> int:
    stopping = stop_on_signals()
    folder, ports = options.folder, options.ports
    echo = SupervisedService(ECHO, lambda: _echo_command(folder, ports), folder / "echo.log")
    fleet = SupervisedService(FLEET, lambda: _fleet_command(folder, ports), folder / "fleet.log")
    agent = SupervisedService(AGENT, lambda: _agent_command(folder), folder / "agent.log")
    children = [
        *([echo] if options.with_echo else []),
        fleet,
        *([agent] if options.with_agent else []),
    ]
    watchers: list[asyncio.Task[None]] = []
    if not as_json:
        names = ", ".join(_TITLES[child.name] for child in children)
        print(f"starting {names}; data and logs: {folder}", flush=True)
    try:
        for child in children:
            if child is fleet:
                text = fleet_config(folder, echo.addresses.get("grpc"))
                replace_file(folder / "fleet-config.yaml", text.encode())
            if child is agent:
                _write_agent_config(options, fleet.addresses["http"])
            await child.start()
            _pin(ports, child)
        _note(options, children)
        _announce(children, as_json)
        watchers = [asyncio.create_task(child.watch()) for child in children]
        watchers.append(asyncio.create_task(bound_logs([child.log_file for child in children])))
        await stopping.wait()
    finally:
        for watcher in watchers:
            watcher.cancel()
        await asyncio.gather(*watchers, return_exceptions=True)
        for child in reversed(children):  # what one holds is still sent to the one before
            await child.stop()
        forget_services()
    if not as_json:
        print("everything has stopped")
    return 0


def _note(options: UpOptions, children: list[SupervisedService]) -> None:
    """Note where the services are, so that other commands find them until this process ends."""
    databases = {AGENT: str(options.folder / "trace.db"), ECHO: str(options.folder / DATABASE)}
    sockets = {AGENT: str(_health_socket(options.folder))}
    note_services(
        {
            name: RunningService(os.getpid(), addresses, databases.get(name), sockets.get(name))
            for name, addresses in ((child.name, child.addresses) for child in children)
        }
    )


def _health_socket(folder: Path) -> Path:
    """Return the agent's socket, another one if an agent already uses the usual place."""
    return folder / "run" / "agent.sock"


def _write_agent_config(options: UpOptions, fleet_http: str) -> None:
    document = {
        "agent": {"api": {"listen": f"127.0.0.1:{options.ports['agent-api']}"}},
        "store": {"path": str(options.folder / "trace.db")},
        "fleet": {"endpoint": f"http://{fleet_http}", "cluster_id": CLUSTER},
        "health": {"persistence": {"path": str(options.folder / "health-baseline.json")}},
    }
    replace_file(options.folder / "agent.yaml", f"{json.dumps(document, indent=2)}\n".encode())


def _agent_command(folder: Path) -> list[str]:
    start = module_command("ingero", "agent", "--json", "--config", str(folder / "agent.yaml"))
    return [*start, "--socket", str(_health_socket(folder))]


def _echo_command(folder: Path, ports: dict[str, int]) -> list[str]:
    echo = "ingero.cli.commands.services.echo"
    start = module_command(echo, "serve", "--json", "--create-certificate")
    return [*start, "--db-path", str(folder / DATABASE), *_listen("echo", ports)]


def _fleet_command(folder: Path, ports: dict[str, int]) -> list[str]:
    start = module_command("ingero.cli.commands.services.fleet", "--json")
    return [*start, "--config", str(folder / "fleet-config.yaml"), *_listen("fleet", ports)]


def _listen(service: str, ports: dict[str, int]) -> list[str]:
    chosen = [(each, ports[flag]) for flag, each in PORTS.items() if each.service == service]
    return [word for each, port in chosen for word in (each.option, f"127.0.0.1:{port}")]


def _pin(ports: dict[str, int], child: SupervisedService) -> None:
    """Keep the ports that the kernel chose, for when the service is started again."""
    for flag, each in PORTS.items():
        if each.service == child.name and not ports[flag] and each.name in child.addresses:
            ports[flag] = int(child.addresses[each.name].rsplit(":", 1)[1])


def fleet_config(folder: Path, echo_otlp: str | None) -> str:
    """Return Fleet's configuration: the defaults, and everything it receives also goes to Echo."""
    if echo_otlp is None:
        return "{}\n"
    exporter = {
        "endpoint": echo_otlp,
        "tls": {"ca_file": str(certificate_beside(folder / DATABASE))},
        "token_file": str(token_beside(folder / DATABASE)),
    }
    pipeline = {"receivers": ["otlp"], "exporters": ["otlp"]}
    metrics = {"receivers": ["otlp"], "processors": ["ingero"], "exporters": ["prometheus", "otlp"]}
    document = {
        "exporters": {"prometheus": {}, "otlp": exporter},
        "service": {"pipelines": {"metrics": metrics, "traces": pipeline, "logs": pipeline}},
    }
    return json.dumps(document, indent=2) + "\n"  # JSON is YAML


def _announce(children: list[SupervisedService], as_json: bool) -> None:
    if as_json:
        print(json.dumps({child.name: child.addresses for child in children}), flush=True)
        return
    for child in children:
        for name, address in child.addresses.items():
            shown = address.partition("://")[2] or address
            print(f"{child.name:5}  {shown:21}  {_MEANINGS.get((child.name, name), name)}")
    by_name = {child.name: child.addresses for child in children}
    if ECHO in by_name:
        print("\nask:   ingero-echo ask summary")
    if AGENT not in by_name:
        print(
            f"push:  ingero fleet-push --fleet-endpoint http://{by_name[FLEET]['http']} "
            "--fleet-cluster-id try --stub"
        )
    print("look:  ingero status")
    print(f"\nopen http://{by_name[FLEET]['threshold']}/", flush=True)
