"""A real Echo for end-to-end tests, in its own process and folder, on ports from the kernel."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import duckdb
from tests.support.cpu_time import cpu_s
from tests.support.waiting import PATIENCE_S

BIN = Path(sys.executable).parent
TOKEN = "e2e-secret-token-0123456789abcdef"


class EchoProcess:
    """`with EchoProcess(folder) as echo:` serves until the end of the block; `kill` is kill -9."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.folder = folder
        self.database = folder / "echo.db"
        self._flags = flags
        self.process: subprocess.Popen[str]
        self.addresses: dict[str, str] = {}

    def start(self) -> None:
        (self.folder / "token").write_text(TOKEN)
        (self.folder / "token").chmod(0o600)
        command = [
            str(BIN / "ingero-echo"),
            "serve",
            "--json",
            "--db-path",
            str(self.database),
            "--log-level",
            "warning",
        ]
        for name in ("otlp", "otlp-http", "mcp", "health"):
            command += [f"--{name}-addr", "127.0.0.1:0"]
        command += ["--auth-token-file", str(self.folder / "token"), *self._flags]
        if "--create-certificate" not in self._flags:
            command.append("--insecure-no-tls")
        with (self.folder / "echo.log").open("a") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self._reap()
            raise AssertionError(
                f"Echo did not start:\n{(self.folder / 'echo.log').read_text()[-3000:]}"
            )
        self.addresses = json.loads(line)["addresses"]

    def store_pid(self) -> int:
        """The store process of this Echo."""
        children = (
            Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        )
        return int(children[-1])

    def cpu_s(self) -> float:
        """Seconds of a CPU that both processes had so far."""
        return cpu_s(self.process.pid) + cpu_s(self.store_pid())

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self._reap()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self._reap()

    def query(self, sql: str) -> list[tuple]:
        """Ask the database file of a stopped Echo."""
        connection = duckdb.connect(str(self.database), read_only=True)
        try:
            return connection.execute(sql).fetchall()
        finally:
            connection.close()

    def _reap(self) -> int:
        status = self.process.wait(2 * PATIENCE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.stop()


def run_stress(endpoint: str, *flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`echo-stress` as a user calls it."""
    return subprocess.run(
        [str(BIN / "echo-stress"), "--endpoint", endpoint, "--json", *flags],
        env={**os.environ, "INGERO_ECHO_TOKEN": TOKEN, **environment},
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
        check=False,
    )
