"""An Echo beside a simulated cluster: a process and a folder of its own, on loopback."""

import json
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from ingero.children.process import (
    following_command,
    last_line,
    start_child,
    stop_children,
    wait_for_line,
)
from ingero.config.echo import certificate_beside, token_beside
from ingero.errors import Unavailable
from ingero.transport.bearer import read_token_file
from ingero.transport.echo_client import EchoClient
from ingero.transport.tools.tool import ToolRefused

POLL_S: Final = 0.2
STOP_S: Final = 15.0


@dataclass
class DemoEcho:
    """Runs Echo until the end of the `with` block, then removes its folder."""

    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="ingero-echo-")))
    addresses: dict[str, str] = field(default_factory=dict)
    _process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        echo = "ingero.cli.commands.services.echo"
        command = following_command(echo, "serve", "--json", "--create-certificate")
        command += ["--db-path", str(self._database), "--log-level", "warning"]
        for name in ("otlp", "otlp-http", "mcp", "health"):
            command += [f"--{name}-addr", "127.0.0.1:0"]
        log_file = self.folder / "echo.log"
        self._process = start_child(command, errors=log_file)
        line = wait_for_line(self._process)
        if not line:
            reason = last_line(log_file, "its log is empty")
            self.__exit__()
            raise Unavailable(f"Echo did not start: {reason}")
        self.addresses = json.loads(line)["addresses"]
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            stop_children(self._process, timeout_s=STOP_S)
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def _database(self) -> Path:
        return self.folder / "echo.db"

    @property
    def client(self) -> EchoClient:
        """Return a client with the token and the certificate that Echo made."""
        token = read_token_file(token_beside(self._database))
        return EchoClient(
            f"https://{self.addresses['mcp']}", token, certificate_beside(self._database)
        )

    def exporter(self) -> str:
        """Return the lines of Fleet's configuration that forward everything to this Echo."""
        document = {
            "endpoint": self.addresses["grpc"],
            "tls": {"ca_file": str(certificate_beside(self._database))},
            "token_file": str(token_beside(self._database)),
        }
        return f"  otlp: {json.dumps(document)}\n"

    def stragglers(self, cluster: str, expected: str, within_s: float) -> list[dict[str, Any]]:
        """Ask find_stragglers until `expected` is first or the time is over; return the answer."""
        until = time.monotonic() + within_s
        found: list[dict[str, Any]] = []
        while True:
            try:
                found = self.client.ask("fleet.cluster.find_stragglers", {"cluster_id": cluster})[
                    "stragglers"
                ]
            except (ToolRefused, Unavailable):
                found = []
            if (found and found[0]["node_id"] == expected) or time.monotonic() > until:
                return found
            time.sleep(POLL_S)
