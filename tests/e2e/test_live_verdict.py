"""From running processes to a named rank: real plugin rings, real `ingero fleet-push` agents, a real `ingero-fleet`.

Three synchronous jobs of eight processes run side by side, each a cluster of its own, so that one warm-up serves all.
Compute is simulated by calibrated absolute deadlines (see `live_job.py`); barriers, rings, agents, wire and Fleet are
real. What depends on exact wake-ups is asserted where this machine wakes up exactly enough, and printed otherwise.
"""

import contextlib
import json
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ingero.agent.nccl.build import FOLDER, LIBRARY

pytestmark = pytest.mark.e2e
BIN = Path(sys.executable).parent
HERE = Path(__file__).parent
WARM_UP_S = 72.0  # 60 samples of a second behind the five that show the pace, and what it takes to see the pattern
NAMED_WITHIN_S = 20.0
EXACT_MS = 2.5  # wake-up error at which 5 % of 250 ms is still measurable
SKEW_NS = 5_000_000_000
OWN_MS = 250


@dataclass
class Job:
    """One job, its agents and what Fleet said about it."""

    name: str
    ranks: subprocess.Popen[str]
    agents: list[subprocess.Popen[str]]
    seen: list[dict[str, Any]] = field(default_factory=list)  # (s after go, verdict)

    @property
    def stragglers(self) -> set[int]:
        return {verdict["rank"] for verdict in self.seen if verdict["state"] == "straggler"}


@dataclass
class Cluster:
    """Everything that runs."""

    api: str
    metrics: str
    jobs: dict[str, Job]

    def status(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://{self.api}/api/v1/status", timeout=10) as response:
            return {each["cluster_id"]: each for each in json.load(response)["clusters"]}

    def watch(self) -> None:
        for name, cluster in self.status().items():
            if name in self.jobs:
                self.jobs[name].seen += [verdict | {"at": time.monotonic()} for verdict in cluster["verdicts"]]


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wall clock that can be wrong, for preloading."""
    target = tmp_path_factory.mktemp("clock") / "skewed_clock.so"
    command = [sys.executable, "-m", "ziglang", "cc", "-shared", "-fPIC", "-O1", "-fno-sanitize=undefined"]
    subprocess.run([*command, "-o", str(target), str(HERE / "skewed_clock.c")], check=True)
    return target


@pytest.fixture(scope="module")
def cluster(clock: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with contextlib.ExitStack() as running:
        fleet, addresses = start_fleet(running)
        jobs = {
            "plain": start_job(running, "plain", addresses["http"], {"rank": 3, "share": 0.05}, clock, tmp_path_factory),
            "skewed": start_job(
                running, "skewed", addresses["http"], {"rank": 6, "share": 0.05}, clock, tmp_path_factory,
                skews_ns=[-SKEW_NS, SKEW_NS],
            ),
            "stalls": start_job(
                running, "stalls", addresses["http"], {"rank": 5, "every": 14, "late_ms": 290}, clock,
                tmp_path_factory,
            ),
        }  # fmt: skip
        yield Cluster(addresses["threshold"], addresses["metrics"], jobs)


def start_fleet(running: contextlib.ExitStack) -> tuple[subprocess.Popen[str], dict[str, str]]:
    ports = [f"--{name}=127.0.0.1:{free_port()}" for name in ("http", "agent", "admin", "health", "metrics")]
    fleet = start(running, [str(BIN / "ingero-fleet"), *ports, "--grpc=off", "--json", "--log-level=warning"])
    assert fleet.stdout is not None
    return fleet, json.loads(fleet.stdout.readline())["addresses"]


def start_job(
    running: contextlib.ExitStack, name: str, endpoint: str, slow: dict[str, Any], clock: Path,
    folders: pytest.TempPathFactory, skews_ns: list[int] | None = None,
) -> Job:  # fmt: skip
    """Eight ranks on one simulated host, or on two whose clocks differ, with an agent each."""
    hosts = len(skews_ns or [0])
    rings = [
        running.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        for _ in range(hosts)
    ]
    job: dict[str, Any] = {
        "name": name, "folders": rings, "slow": slow, "own_ms": OWN_MS,
        "plugin": str(FOLDER / platform.machine() / LIBRARY),
    }  # fmt: skip
    environment = {}
    if skews_ns:
        job |= {"skews_ns": skews_ns, "clock": str(clock)}
        environment = {"LD_PRELOAD": str(clock)}
    ranks = start(running, [sys.executable, str(HERE / "live_job.py"), json.dumps(job)], environment)
    agents = []
    for host, folder in enumerate(rings):
        skewed = {"LD_PRELOAD": str(clock), "SKEW_NS": str(skews_ns[host])} if skews_ns else {}
        agents.append(
            start(
                running,
                [
                    str(BIN / "ingero"), "fleet-push", "--fleet-endpoint", f"http://{endpoint}", "--fleet-insecure",
                    "--fleet-cluster-id", name, "--fleet-node-id", f"{name}-host{host}", "--fleet-persist-path", "",
                    "--signal-db-path", str(folders.mktemp("db") / "none.db"), "--collectives", "rings",
                ],
                skewed | {"INGERO_NCCL_RING_DIR": folder},
            )
        )  # fmt: skip
    return Job(name, ranks, agents)


def start(
    running: contextlib.ExitStack, command: list[str], environment: dict[str, str] | None = None
) -> subprocess.Popen[str]:
    import os

    process = subprocess.Popen(
        command, env=os.environ | (environment or {}), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip

    def stop() -> None:
        if process.poll() is None:
            process.kill()
        process.communicate()

    running.callback(stop)
    return process


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
