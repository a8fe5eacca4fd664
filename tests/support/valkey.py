"""A real Valkey or Redis on loopback, where one is installed (`make peers-valkey`)."""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
from tests.support.peers import FOLDER, free_port


def server_program() -> str:
    """Return the program of the engine, or skip the test."""
    kept = FOLDER / "valkey" / "valkey-server"
    for found in (
        shutil.which("valkey-server"),
        str(kept) if kept.exists() else None,
        shutil.which("redis-server"),
    ):
        if found is not None:
            return found
    pytest.skip("needs valkey-server or redis-server, which `make peers-valkey` installs")


class Engine:
    """One server process; it can be killed and started again on the same port."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        port: int = 0,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.port = port or free_port()
        self._folder, self._options = folder, options
        self._environment = environment
        folder.mkdir(parents=True, exist_ok=True)
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        address = () if "--port" in self._options else ("--port", str(self.port))
        process = subprocess.Popen(
            [server_program(), "--bind", "127.0.0.1", *address, "--save", "", *self._options],
            cwd=self._folder,
            env=os.environ | self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until_s = time.monotonic() + 10
        while time.monotonic() < until_s:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return process
            time.sleep(0.02)
        process.kill()
        raise AssertionError("the engine did not start")

    def kill(self) -> None:
        """End the process at once, as a crash does."""
        self.process.kill()
        self.process.wait()

    def start_again(self) -> None:
        """Start an engine that has lost everything."""
        self.process = self._start()


@contextlib.contextmanager
def engine(
    folder: Path,
    *options: str,
    port: int = 0,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Engine]:
    """Run an engine for the time of a test."""
    running = Engine(folder, *options, port=port, environment=environment)
    try:
        yield running
    finally:
        running.kill()


SENTINEL = """\
port {port}
bind 127.0.0.1
dir {folder}
sentinel monitor fleet 127.0.0.1 {primary} 2
sentinel down-after-milliseconds fleet 1000
sentinel failover-timeout fleet 5000
"""


@contextlib.contextmanager
def watched_pair(folder: Path) -> Iterator[tuple[Engine, Engine, list[int]]]:
    """Run a primary, its copy and three Sentinels; the ports are those of the Sentinels."""
    processes, ports = [], []
    with contextlib.ExitStack() as stack:
        primary = stack.enter_context(engine(folder / "primary"))
        copy_of = ("--replicaof", "127.0.0.1", str(primary.port))
        copy = stack.enter_context(engine(folder / "copy", *copy_of))
        for number in range(3):
            port, own = free_port(), folder / f"sentinel{number}"
            own.mkdir()
            config = own / "sentinel.conf"
            config.write_text(SENTINEL.format(port=port, folder=own, primary=primary.port))
            command = [server_program(), str(config), "--sentinel"]
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            processes.append(subprocess.Popen(command, cwd=own, **quiet))  # type: ignore[call-overload]
            ports.append(port)
        try:
            yield primary, copy, ports
        finally:
            for process in processes:
                process.kill()
                process.wait()
