"""`ingero up`: run Fleet and Echo on one machine; Fleet forwards everything to Echo."""

import asyncio
import json
import signal
from pathlib import Path
from typing import NamedTuple

import click

from ingero.children.process import module_command
from ingero.children.supervisor import SupervisedService, bound_logs
from ingero.cli.params import AS_JSON, stacked
from ingero.config.echo import certificate_beside, token_beside
from ingero.files import replace_file

DATABASE = "echo.db"


class Listener(NamedTuple):
    """One port of a service: its flag there, the name it is reported under, and its use."""

    service: str
    option: str
    name: str
    port: int
    meaning: str


LISTENERS = {  # by the flag of `ingero up`
    "fleet-grpc": Listener("fleet", "--grpc", "grpc", 4317, "agents push here (OTLP/gRPC)"),
    "fleet-http": Listener("fleet", "--http", "http", 4318, "agents push here (OTLP/HTTP)"),
    "fleet-api": Listener("fleet", "--agent", "threshold", 8080, "thresholds and status"),
    "fleet-admin": Listener("fleet", "--admin", "admin", 8081, "scores of every node"),
    "fleet-health": Listener("fleet", "--health", "health", 55679, "health page"),
    "fleet-metrics": Listener("fleet", "--metrics", "metrics", 8888, "Fleet's own metrics"),
    "fleet-prometheus": Listener(
        "fleet", "--prometheus", "prometheus", 9090, "what agents pushed, for Prometheus"
    ),
    "echo-otlp": Listener("echo", "--otlp-addr", "grpc", 14317, "OTLP/gRPC, Fleet forwards here"),
    "echo-otlp-http": Listener("echo", "--otlp-http-addr", "http", 14318, "OTLP/HTTP"),
    "echo-api": Listener("echo", "--mcp-addr", "mcp", 18081, "HTTP API and MCP, for questions"),
    "echo-health": Listener("echo", "--health-addr", "health", 18080, "health page"),
}
_MEANINGS = {(each.service, each.name): each.meaning for each in LISTENERS.values()}


_port_options = stacked(
    *(
        click.option(
            f"--{flag}",
            type=click.IntRange(0, 65535),
            default=each.port,
            show_default=True,
            help=f"Port of {each.service.title()}: {each.meaning}.",
        )
        for flag, each in LISTENERS.items()
    )
)


@click.command()
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default="~/.ingero/up",
    show_default=True,
    help="Folder of the database, certificate and token of Echo, and of both logs.",
)
@AS_JSON
@_port_options
def command(data_dir: Path, as_json: bool, **ports: int) -> int:
    """Run Fleet and Echo on this machine; Fleet forwards to Echo.

    Everything listens on loopback. Fleet uses plaintext there; Echo uses TLS, with a certificate
    and a token that are made once and kept in the data folder. A port of 0 lets the kernel choose.

    A service that ends is started again after 1 s, then with growing pauses of up to 30 s. Ctrl-C
    and SIGTERM stop Fleet first, so that everything it holds still reaches Echo. Each log is kept
    up to 64 MiB, with one older file.

    The last example starts an agent on the same machine that pushes to this Fleet.

    \b
    Examples:
      ingero up
      ingero up --data-dir /var/lib/ingero --fleet-http 24318
      ingero fleet-push --fleet-endpoint http://127.0.0.1:4318 --fleet-cluster-id try --stub
    """
    from ingero.cli.show.logs import set_up_logging

    set_up_logging("warning")
    folder = data_dir.expanduser()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return asyncio.run(
        _up(folder, {flag.replace("_", "-"): port for flag, port in ports.items()}, as_json)
    )


async def _up(folder: Path, ports: dict[str, int], as_json: bool) -> int:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    echo = SupervisedService("echo", lambda: _echo_command(folder, ports), folder / "echo.log")
    fleet = SupervisedService("fleet", lambda: _fleet_command(folder, ports), folder / "fleet.log")
    watchers: list[asyncio.Task[None]] = []
    if not as_json:
        print(f"starting Echo and Fleet; data and logs: {folder}", flush=True)
    try:
        await echo.start()
        _pin(ports, echo)
        written = fleet_config(folder, echo.addresses["grpc"])
        replace_file(folder / "fleet-config.yaml", written.encode())
        await fleet.start()
        _pin(ports, fleet)
        _announce(folder, [fleet, echo], as_json)
        watchers = [asyncio.create_task(child.watch()) for child in (echo, fleet)]
        watchers.append(asyncio.create_task(bound_logs([echo.log_file, fleet.log_file])))
        await stopping.wait()
    finally:
        for watcher in watchers:
            watcher.cancel()
        await asyncio.gather(*watchers, return_exceptions=True)
        await fleet.stop()  # first, so that what it holds is still forwarded
        await echo.stop()
    if not as_json:
        print("Fleet and Echo have stopped")
    return 0


def _echo_command(folder: Path, ports: dict[str, int]) -> list[str]:
    echo = "ingero.cli.commands.services.echo"
    start = module_command(echo, "serve", "--json", "--create-certificate")
    return [*start, "--db-path", str(folder / DATABASE), *_listen("echo", ports)]


def _fleet_command(folder: Path, ports: dict[str, int]) -> list[str]:
    start = module_command("ingero.cli.commands.services.fleet", "--json")
    return [*start, "--config", str(folder / "fleet-config.yaml"), *_listen("fleet", ports)]


def _listen(service: str, ports: dict[str, int]) -> list[str]:
    chosen = [(each, ports[flag]) for flag, each in LISTENERS.items() if each.service == service]
    return [word for each, port in chosen for word in (each.option, f"127.0.0.1:{port}")]


def _pin(ports: dict[str, int], child: SupervisedService) -> None:
    """Keep the ports that the kernel chose, for when the service is started again."""
    for flag, each in LISTENERS.items():
        if each.service == child.name and not ports[flag] and each.name in child.addresses:
            ports[flag] = int(child.addresses[each.name].rsplit(":", 1)[1])


def fleet_config(folder: Path, echo_otlp: str) -> str:
    """Return Fleet's configuration: the defaults, and everything it receives also goes to Echo."""
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


def _announce(folder: Path, children: list[SupervisedService], as_json: bool) -> None:
    if as_json:
        print(json.dumps({child.name: child.addresses for child in children}), flush=True)
        return
    for child in children:
        for name, address in child.addresses.items():
            print(f"{child.name:5}  {address:21}  {_MEANINGS.get((child.name, name), name)}")
    fleet, echo = (child.addresses for child in children)
    print(
        f"\npush:  ingero fleet-push --fleet-endpoint http://{fleet['http']} "
        "--fleet-cluster-id try --stub"
    )
    print(f"look:  ingero status --fleet http://{fleet['threshold']}")
    print(
        f"ask:   ingero-echo ask summary --url https://{echo['mcp']} --db-path {folder / DATABASE}",
        flush=True,
    )
