"""`ingero up`: Fleet and Echo for one machine, watched over: Fleet forwards what it hears to Echo."""

import asyncio
import json
import signal
from pathlib import Path

import click

from ingero.children.process import module_command
from ingero.children.supervisor import SupervisedService, bound_logs
from ingero.cli.params import AS_JSON, stacked
from ingero.config.echo import certificate_beside, token_beside

DATABASE = "echo.db"
# flag -> (who, the flag of that service, default port)
PORTS = {
    "fleet-grpc": ("fleet", "--grpc", 4317),
    "fleet-http": ("fleet", "--http", 4318),
    "fleet-api": ("fleet", "--agent", 8080),
    "fleet-admin": ("fleet", "--admin", 8081),
    "fleet-health": ("fleet", "--health", 55679),
    "fleet-metrics": ("fleet", "--metrics", 8888),
    "fleet-prometheus": ("fleet", "--prometheus", 9090),
    "echo-otlp": ("echo", "--otlp-addr", 14317),
    "echo-otlp-http": ("echo", "--otlp-http-addr", 14318),
    "echo-api": ("echo", "--mcp-addr", 18081),
    "echo-health": ("echo", "--health-addr", 18080),
}
_MEANINGS = {
    ("fleet", "grpc"): "agents push here (OTLP/gRPC)",
    ("fleet", "http"): "agents push here (OTLP/HTTP)",
    ("fleet", "threshold"): "thresholds and status",
    ("fleet", "admin"): "scores of every node",
    ("fleet", "health"): "health page",
    ("fleet", "metrics"): "Fleet's own metrics",
    ("fleet", "prometheus"): "what agents pushed, for Prometheus",
    ("echo", "grpc"): "OTLP/gRPC, Fleet forwards here",
    ("echo", "http"): "OTLP/HTTP",
    ("echo", "mcp"): "questions: HTTP API and MCP",
    ("echo", "health"): "health page",
}


_port_options = stacked(
    *(
        click.option(
            f"--{flag}",
            type=click.IntRange(0, 65535),
            default=port,
            show_default=True,
            help="Port.",
        )
        for flag, (_, _, port) in PORTS.items()
    )
)


@click.command(
    epilog="""\b
Examples:
  ingero up
  ingero up --data-dir /var/lib/ingero --fleet-http 24318
  ingero fleet-push --fleet-endpoint http://127.0.0.1:4318 --fleet-cluster-id try --stub     an agent to go with it
"""
)
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default="~/.ingero/up",
    show_default=True,
    help="Where Echo keeps its database, certificate and token.",
)
@AS_JSON
@_port_options
def command(data_dir: Path, as_json: bool, **ports: int) -> int:
    """Run Fleet and Echo on this machine; Fleet forwards to Echo. A child that dies is started again; Ctrl-C ends both.

    Everything listens on loopback. Fleet speaks plaintext there; Echo speaks TLS with a certificate and a token
    that are made once and kept in the data folder.
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
        (folder / "fleet-config.yaml").write_text(fleet_config(folder, echo.addresses["grpc"]))
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
        await fleet.stop()  # first: it sends on what it holds
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


def _listen(who: str, ports: dict[str, int]) -> list[str]:
    chosen = [
        (option, ports[flag]) for flag, (service, option, _) in PORTS.items() if service == who
    ]
    return [word for option, port in chosen for word in (option, f"127.0.0.1:{port}")]


def _pin(ports: dict[str, int], child: SupervisedService) -> None:
    """Ports that the kernel chose stay the same when a child starts again."""
    names = {
        "--agent": "threshold",
        "--otlp-addr": "grpc",
        "--otlp-http-addr": "http",
        "--mcp-addr": "mcp",
    }
    names |= {"--health-addr": "health"}
    for flag, (service, option, _) in PORTS.items():
        address = child.addresses.get(names.get(option, option.removeprefix("--")))
        if service == child.name and not ports[flag] and address:
            ports[flag] = int(address.rsplit(":", 1)[1])


def fleet_config(folder: Path, echo_otlp: str) -> str:
    """Fleet's file: everything as usual, and everything it hears also goes to Echo."""
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
        f"\npush:  ingero fleet-push --fleet-endpoint http://{fleet['http']} --fleet-cluster-id try --stub"
    )
    print(f"look:  ingero status --fleet http://{fleet['threshold']}")
    print(
        f"ask:   ingero-echo ask summary --url https://{echo['mcp']} --db-path {folder / DATABASE}",
        flush=True,
    )
