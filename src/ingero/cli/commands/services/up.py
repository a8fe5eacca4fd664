"""`ingero up`: Fleet and Echo for one machine, watched over: Fleet forwards what it hears to Echo."""

import asyncio
import contextlib
import json
import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click

from ingero.cli.children import STOP_S, leave_with_parent
from ingero.cli.params import AS_JSON, stacked
from ingero.config.echo import certificate_beside, token_beside
from ingero.errors import Unavailable

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
HEALTHY_S = 60.0  # a child that lived this long starts again without a long pause
DATABASE = "echo.db"
MAX_LINE_BYTES = 64 * 1024
MAX_LOG_BYTES = 64 << 20
LOG_CHECK_S = 60.0
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
log = logging.getLogger(__name__)


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


@dataclass
class Child:
    """One service: how it is started, and the process it is now."""

    name: str
    command: Callable[[], list[str]]
    log_file: Path
    process: asyncio.subprocess.Process | None = None
    addresses: dict[str, str] | None = None
    restarts: int = 0

    async def start(self) -> None:
        """Start it and wait until it says where it listens; raises Unavailable with the end of its log."""
        with self.log_file.open("ab") as errors:
            self.process = await asyncio.create_subprocess_exec(
                *self.command(),
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                limit=MAX_LINE_BYTES,
                preexec_fn=leave_with_parent,
            )
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        if not line:
            status = await self.process.wait()
            said = self.log_file.read_text(errors="replace").strip().splitlines()[-1:] or [
                f"status {status}"
            ]
            raise Unavailable(f"{self.name} did not start: {said[0]}; its log is {self.log_file}")
        self.addresses = json.loads(line)["addresses"]

    async def watch(self) -> None:
        """Start it again whenever it ends, with growing pauses."""
        pause_s = FIRST_PAUSE_S
        loop = asyncio.get_running_loop()
        while True:
            assert self.process is not None
            began_s = loop.time()
            status = await self.process.wait()
            pause_s = FIRST_PAUSE_S if loop.time() - began_s > HEALTHY_S else pause_s
            self.restarts += 1
            log.warning(
                "child_ended", extra={"child": self.name, "status": status, "again_in_s": pause_s}
            )
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            try:
                await self.start()
                log.warning(
                    "child_started_again", extra={"child": self.name, "restarts": self.restarts}
                )
            except Unavailable as error:
                log.error("child_did_not_start", extra={"child": self.name, "why": str(error)})

    async def stop(self) -> None:
        """Ask it to end; kill it when it does not."""
        if self.process is None or self.process.returncode is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self.process.wait(), STOP_S)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()


async def _up(folder: Path, ports: dict[str, int], as_json: bool) -> int:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    echo = Child("echo", lambda: _echo_command(folder, ports), folder / "echo.log")
    fleet = Child("fleet", lambda: _fleet_command(folder, ports), folder / "fleet.log")
    watchers: list[asyncio.Task[None]] = []
    if not as_json:
        print(f"starting Echo and Fleet; data and logs: {folder}", flush=True)
    try:
        await echo.start()
        assert echo.addresses is not None
        _pin(ports, echo)
        (folder / "fleet-config.yaml").write_text(fleet_config(folder, echo.addresses["grpc"]))
        await fleet.start()
        _pin(ports, fleet)
        _announce(folder, [fleet, echo], as_json)
        watchers = [asyncio.create_task(child.watch()) for child in (echo, fleet)]
        watchers.append(asyncio.create_task(_bound_logs([echo.log_file, fleet.log_file])))
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


async def _bound_logs(files: list[Path]) -> None:
    while True:
        await asyncio.sleep(LOG_CHECK_S)
        for file in files:
            with contextlib.suppress(OSError):  # a full disk: the next look may find room
                bound_log(file, MAX_LOG_BYTES)


def bound_log(file: Path, most_bytes: int) -> None:
    """A log that has grown too large becomes `.1`; whoever appends to it goes on at its beginning."""
    if file.stat().st_size > most_bytes:
        shutil.copyfile(file, file.with_name(f"{file.name}.1"))
        os.truncate(file, 0)


def _echo_command(folder: Path, ports: dict[str, int]) -> list[str]:
    start = [
        sys.executable,
        "-m",
        "ingero.cli.commands.services.echo",
        "serve",
        "--json",
        "--create-certificate",
    ]
    return [*start, "--db-path", str(folder / DATABASE), *_listen("echo", ports)]


def _fleet_command(folder: Path, ports: dict[str, int]) -> list[str]:
    start = [sys.executable, "-m", "ingero.cli.commands.services.fleet", "--json"]
    return [*start, "--config", str(folder / "fleet-config.yaml"), *_listen("fleet", ports)]


def _listen(who: str, ports: dict[str, int]) -> list[str]:
    chosen = [
        (option, ports[flag]) for flag, (service, option, _) in PORTS.items() if service == who
    ]
    return [word for option, port in chosen for word in (option, f"127.0.0.1:{port}")]


def _pin(ports: dict[str, int], child: Child) -> None:
    """Ports that the kernel chose stay the same when a child starts again."""
    assert child.addresses is not None
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


def _announce(folder: Path, children: list[Child], as_json: bool) -> None:
    if as_json:
        print(json.dumps({child.name: child.addresses for child in children}), flush=True)
        return
    for child in children:
        for name, address in (child.addresses or {}).items():
            print(f"{child.name:5}  {address:21}  {_MEANINGS.get((child.name, name), name)}")
    fleet, echo = ((child.addresses or {}) for child in children)
    print(
        f"\npush:  ingero fleet-push --fleet-endpoint http://{fleet['http']} --fleet-cluster-id try --stub"
    )
    print(f"look:  ingero status --fleet http://{fleet['threshold']}")
    print(
        f"ask:   ingero-echo ask summary --url https://{echo['mcp']} --db-path {folder / DATABASE}",
        flush=True,
    )
