"""A Fleet made by `ingero fleet init`, running on loopback, and nodes that join it."""

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.processes import BIN
from tests.support.waiting import PATIENCE_S

from ingero.config.deploy.fleet_folder import FleetFolder
from ingero.contract.fleet_api import Status
from ingero.transport.bearer import read_token_file
from ingero.transport.fleet_client import FleetClient
from ingero.transport.tls import ClientTls


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command of this checkout."""
    return subprocess.run(
        [str(BIN / command[0]), *command[1:]],
        env=dict(os.environ) | environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@dataclass(frozen=True)
class JoinedFleet:
    """A running Fleet."""

    files: FleetFolder
    addresses: dict[str, str]
    process: subprocess.Popen[str]
    log: Path

    @property
    def url(self) -> str:
        return f"https://{self.addresses['threshold']}"

    def client(self, scope: str = "read") -> FleetClient:
        tls = ClientTls(ca=self.files.enrolment / "authority.crt")
        return FleetClient(url=self.url, tls=tls, token=read_token_file(self.files.token(scope)))

    def nodes(self) -> dict[str, Any]:
        """The nodes that push now."""
        status = self.client().get("/api/v1/status", Status)
        return {
            node["node_id"]: node
            for cluster in status.clusters
            for node in [json.loads(json.dumps(each)) for each in cluster.nodes]
        }

    def code(self, *options: str) -> str:
        made = run("ingero", "fleet", "code", str(self.files.root), "--json", *options)
        assert made.returncode == 0, made.stderr
        code: str = json.loads(made.stdout)["code"]
        return code

    def join(
        self, folder: Path, node: str, code: str, *options: str
    ) -> subprocess.CompletedProcess[str]:
        """Join as a node whose files are in a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        return run(
            "ingero", "join", self.url, "--no-unit", "--node", node, *options,
            "--config", str(folder / "ingero.yaml"), "--state-dir", str(folder / "state"),
            INGERO_JOIN_CODE=code,
        )  # fmt: skip


@contextlib.contextmanager
def joined_fleet(folder: Path, *flags: str) -> Iterator[JoinedFleet]:
    """Make a Fleet and run it until the end of the block."""
    files = FleetFolder(folder)
    if not files.config.exists():
        made = run("ingero", "fleet", "init", str(folder), "--name", "127.0.0.1", *flags)
        assert made.returncode == 0, made.stderr
    log = folder / "fleet.log"
    listeners = ("--http", "--agent", "--admin", "--health", "--metrics", "--prometheus")
    options = [word for each in listeners for word in (each, "127.0.0.1:0")]
    with log.open("ab") as to:
        process = subprocess.Popen(
            [str(BIN / "ingero-fleet"), "--config", str(files.config), "--json", "--grpc", "off",
             *options],
            stdout=subprocess.PIPE, stderr=to, text=True,
        )  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, log.read_text()
        yield JoinedFleet(files, json.loads(line)["addresses"], process, log)
    finally:
        process.terminate()
        process.wait(PATIENCE_S)
        assert process.stdout is not None
        process.stdout.close()
