"""The services under test, each a process of its own that can be killed and started again."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.soak.agents import CLUSTER
from tests.soak.watch import buffer_bytes
from tests.support.echo_process import BIN, EchoProcess
from tests.support.fault_proxy import FaultProxy
from tests.support.gpu_jobs import FAKES, compile_library

from ingero.sim.cluster import DemoCluster

ROOT = Path(__file__).parents[2]
MAX_TRACE = "64m"
STOP_S = 60.0
STORE_MEMORY_MIB = 4096  # DuckDB may use half of it
JOB = """
import ctypes, sys, time
runtime = ctypes.CDLL(sys.argv[1])
while True:
    for _ in range(20):
        runtime.cudaLaunchKernel(ctypes.c_void_p(1), 1, 1, 1, 1, 1, 1, None, 0, None)
    runtime.cudaStreamSynchronize(None)
    time.sleep(0.02)
"""


class Child:
    """A command with a log of its own."""

    def __init__(self, log: Path, *command: str) -> None:
        self._log = log
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        running = self._process is not None and self._process.poll() is None
        return self._process.pid if running and self._process else None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=subprocess.DEVNULL, stderr=log, cwd=ROOT
            )

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """Stop it as a supervisor does; kill it if it does not end."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()


@dataclass(frozen=True)
class Service:
    """How to kill and start a service, which process it is now, and where its data is."""

    name: str
    pid: Callable[[], int | None]
    start: Callable[[], None]
    kill: Callable[[], None]
    disk: Path | None = None
    buffer_bytes: Callable[[], int | None] = lambda: 0  # None while that is unknown


@dataclass
class Services:
    """All services of a run, in `folder`; Echo's data is in a folder of its own."""

    folder: Path
    echo_folder: Path
    to_echo: FaultProxy
    to_fleet: FaultProxy
    agents: int
    interval_s: float
    with_recorder: bool
    _children: dict[str, Child] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.echo = EchoProcess(self.echo_folder, "--store-memory", f"{STORE_MEMORY_MIB}m")
        token = self.echo_folder / "token"
        exporter = (
            f"  otlphttp: {{endpoint: 'http://{self.to_echo.address}', token_file: {token}, "
            "tls: {insecure: true}}\n"
        )
        self.fleet = DemoCluster(
            [],
            push_interval_s=self.interval_s,
            quorum=5,
            exporters=exporter,
            pipeline="prometheus, otlphttp",
            folder=self.folder / "fleet",
        )
        self.fleet.folder.mkdir()

    @contextlib.contextmanager
    def running(self) -> Iterator[dict[str, Service]]:
        """Start all services; stop every process that was started at the end of the block."""
        with contextlib.ExitStack() as opened:
            self._start_echo()
            opened.callback(self.stop_echo)
            opened.callback(self.fleet.stop)
            self._start_fleet()
            self._add_children(opened)
            for child in self._children.values():
                child.start()
            yield {service.name: service for service in self._list()}

    def _list(self) -> list[Service]:
        children = [
            Service(name, lambda c=child: c.pid, child.start, child.kill, disk)  # type: ignore[misc]  # a default argument binds the loop's value
            for name, child in self._children.items()
            for disk in [self.folder / "trace.db" if name == "recorder" else None]
            if name != "job"
        ]
        return [
            Service("fleet", self._fleet_pid, self._start_fleet, self.fleet.kill_fleet),
            Service("echo", self._echo_pid, self._start_echo, self.echo.kill, self.echo_folder),
            Service(
                "store", self._store_pid, lambda: None, self._kill_store, None, self._store_buffers
            ),
            *children,
        ]

    def _add_children(self, opened: contextlib.ExitStack) -> None:
        half = self.agents * 3 // 4
        for name, first, count in (("agents", 0, half), ("agents-2", half, self.agents - half)):
            self._add_child(
                opened, name, sys.executable, "-m", "tests.soak.agents",
                "--fleet", self.to_fleet.address, "--folder", str(self.folder),
                "--first", str(first), "--count", str(count), "--interval", str(self.interval_s),
            )  # fmt: skip
        if not self.with_recorder:
            return
        library = compile_library(
            FAKES / "fakegpu.c", self.folder / "libcudart.so.12", "-DLIBRARY=1", "-lpthread"
        )
        job = self._add_child(opened, "job", sys.executable, "-I", "-c", JOB, str(library))
        job.start()
        self._add_child(
            opened, "recorder", str(BIN / "ingero"), "trace", "--pid", str(job.pid), "--json",
            "--db", str(self.folder / "trace.db"), "--max-db", MAX_TRACE,
        )  # fmt: skip

    def _add_child(self, opened: contextlib.ExitStack, name: str, *command: str) -> Child:
        child = Child(self.folder / f"{name}.log", *command)
        self._children[name] = child
        opened.callback(child.stop)
        return child

    def _start_fleet(self) -> None:
        self.fleet.start_fleet()
        self.to_fleet.target = _host_and_port(self.fleet.addresses["http"])

    def _fleet_pid(self) -> int | None:
        process = self.fleet._fleet
        return process.pid if process is not None and process.poll() is None else None

    def _start_echo(self) -> None:
        self.echo.start()
        self.to_echo.target = _host_and_port(self.echo.addresses["http"])

    def stop_echo(self) -> None:
        """Stop Echo, which first loads everything that it acknowledged."""
        if self.echo.process.poll() is None:
            self.echo.stop()

    def _echo_pid(self) -> int | None:
        return self.echo.process.pid if self.echo.process.poll() is None else None

    def _store_pid(self) -> int | None:
        try:
            return self.echo.store_pid()
        except (OSError, IndexError):  # it is being replaced
            return None

    def _kill_store(self) -> None:
        pid = self._store_pid()
        if pid is not None:
            os.kill(pid, signal.SIGKILL)

    def _store_buffers(self) -> int | None:
        return buffer_bytes(self.echo.addresses["health"])

    def status_url(self) -> str:
        """Return where Fleet shows the nodes and verdicts of the cluster."""
        return f"http://{self.fleet.addresses['threshold']}/api/v1/status?cluster_id={CLUSTER}"


def _host_and_port(address: str) -> tuple[str, int]:
    host, port = address.rsplit(":", 1)
    return host, int(port)
