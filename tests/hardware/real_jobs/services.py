"""Fleet and the agent of this node, started as a user would, and what they say."""

import json
import os
import platform
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import IO, Any

from tests.hardware.real_jobs.machine import free_ports
from tests.hardware.real_jobs.processes import children_of, cpu_s

START_S = 30.0
LISTENERS = ("http", "agent", "admin", "health", "metrics", "prometheus")
CLUSTER = "real-jobs"


class Services:
    """A Fleet and an agent for the jobs of this node, each with a log in `folder`."""

    def __init__(self, rings: Path, folder: Path) -> None:
        self.folder = folder
        self.logs: list[IO[bytes]] = []
        self.screens: list[subprocess.Popen[bytes]] = []
        ports = dict(zip(LISTENERS, free_ports(len(LISTENERS)), strict=True))
        self.api = f"http://127.0.0.1:{ports['agent']}"
        listeners = [f"--{name}=127.0.0.1:{port}" for name, port in ports.items()]
        self.fleet = self._start(
            "fleet", ["ingero.cli.commands.services.fleet", "--grpc=off", *listeners], {}
        )
        push = ["ingero", "fleet-push", "--fleet-insecure", "--fleet-persist-path", ""]
        push += ["--fleet-endpoint", f"http://127.0.0.1:{ports['http']}"]
        push += ["--fleet-cluster-id", CLUSTER, "--fleet-node-id", platform.node() or "node"]
        push += ["--signal-db-path", str(folder / "none.db")]
        self.agent = self._start("agent", push, {"INGERO_NCCL_RING_DIR": str(rings)})

    def require_answers(self) -> None:
        """Raise if Fleet does not answer within START_S: without it, a run measures nothing."""
        last_s = time.monotonic() + START_S
        while True:
            try:
                with urllib.request.urlopen(f"{self.api}/api/v1/status", timeout=10):
                    return
            except OSError as error:
                if time.monotonic() > last_s or self.fleet.poll() is not None:
                    log = (self.folder / "fleet.log").read_text(errors="replace")[-1500:]
                    raise RuntimeError(f"Fleet does not answer ({error}):\n{log}") from error
            time.sleep(0.5)

    def _start(
        self, name: str, command: list[str], more: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        log = (self.folder / f"{name}.log").open("wb")
        self.logs.append(log)
        return subprocess.Popen(
            [sys.executable, "-m", *command], env=os.environ | more, stdout=log, stderr=log
        )

    def status(self, job: str) -> tuple[list[dict[str, Any]], dict[str, int]]:
        """Return the verdicts about a job, and how many ranks of all jobs are judged.

        Both are empty while Fleet starts.
        """
        try:
            with urllib.request.urlopen(f"{self.api}/api/v1/status", timeout=10) as response:
                clusters = json.load(response)["clusters"]
        except (OSError, ValueError):
            return [], {}
        verdicts = [verdict for each in clusters for verdict in each["verdicts"]]
        verdicts = [each for each in verdicts if each.get("job") in (job, None)]
        return verdicts, clusters[0]["ranks"] if clusters else {}

    def start_screen(self, path: Path) -> None:
        """Write what `ingero status` prints to a file, without waiting for it."""
        command = [sys.executable, "-m", "ingero", "status", "--fleet", self.api]
        with path.open("wb") as screen:
            self.screens.append(subprocess.Popen(command, stdout=screen, stderr=screen))

    def agent_cpu_s(self) -> float:
        """Return the CPU time of the agent and its children so far."""
        return sum(cpu_s(pid) for pid in [self.agent.pid, *children_of(self.agent.pid)])

    def close(self) -> None:
        for process in (*self.screens, self.agent, self.fleet):
            process.terminate()
        for process in (*self.screens, self.agent, self.fleet):
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for log in self.logs:
            log.close()
