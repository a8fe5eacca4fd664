"""F020, F091: three nodes under `ingero load matmul`, from probes to Fleet's quorum and to Echo.

The nodes are three recorders and three agents on this machine. `make e2e-three-nodes` runs the
first test with the interval of production.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.echo_process import BIN
from tests.support.echo_service import TOKEN, RunningEcho
from tests.support.gpu_jobs import require_bpf
from tests.support.waiting import PATIENCE_S, until

import ingero.agent.load
from ingero.agent.load.build import STAND_IN

pytestmark = [pytest.mark.e2e, pytest.mark.root]
CONFIG = Path(__file__).parents[2] / "configs" / "fleet-three-nodes.yaml"
INTERVAL_S = float(os.environ.get("INGERO_TEST_PUSH_INTERVAL_S", "1"))
SAMPLES = 12 if INTERVAL_S > 1 else 4
NODES = ("n1", "n2", "n3")
PORTS = ("http", "grpc", "agent", "admin", "health", "metrics", "prometheus")
# holds half of its blocks: every second one, or the upper half
ALLOCATE = """
import ctypes, sys, time
runtime = ctypes.CDLL(sys.argv[1])
size, kept = ctypes.c_size_t(4 << 20), []
while True:
    blocks = [ctypes.c_void_p() for _ in range(64)]
    for block in blocks:
        runtime.cudaMalloc(ctypes.byref(block), size)
    is_fragmented = sys.argv[2] == "fragmented"
    for block in (blocks[::2] if is_fragmented else blocks[:32]) + kept:
        runtime.cudaFree(block)
    kept = blocks[1::2] if is_fragmented else blocks[32:]
    runtime.cudaLaunchKernel(None, 1, 1, 1, 1, 1, 1, None, ctypes.c_size_t(0), None)
    time.sleep(0.5)
"""


@contextlib.contextmanager
def children(folder: Path) -> Iterator[Any]:
    """Yield a function that starts a child; all of them end with the block."""
    running: list[subprocess.Popen[str]] = []

    def start(name: str, *command: str) -> subprocess.Popen[str]:
        with (folder / f"{name}.log").open("w") as log:
            running.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True))
        return running[-1]

    try:
        yield start
    finally:
        for child in reversed(running):
            child.terminate()
        for child in running:
            child.communicate(timeout=2 * PATIENCE_S)


def fleet_config(folder: Path, echo: RunningEcho) -> Path:
    """Return the shipped configuration with a pipeline to Echo."""
    document = yaml.safe_load(CONFIG.read_text())
    token = folder / "echo.token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    address = f"http://{echo.service.addresses['http']}"
    document["exporters"]["otlphttp"] = {"endpoint": address, "token_file": str(token)}
    document["service"]["pipelines"]["metrics"]["exporters"].append("otlphttp")
    path = folder / "fleet.yaml"
    path.write_text(json.dumps(document))
    return path


def start_node(start: Any, folder: Path, node: str, fleet: str) -> None:
    """Start load, recorder and agent of a node; the load of the last one fragments its memory."""
    load = start(f"load-{node}", str(BIN / "ingero"), "load", "matmul", "--stand-in")
    library, way = str(STAND_IN.path(os.uname().machine)), "compact"
    if node == NODES[-1]:
        way = "fragmented"
    holder = start(f"hold-{node}", sys.executable, "-Ic", ALLOCATE, library, way)
    pids = [text for child in (load, holder) for text in ("--pid", str(child.pid))]
    database = str(folder / f"{node}.db")
    start(f"trace-{node}", str(BIN / "ingero"), "trace", *pids, "--db", database, "--node", node)
    start(
        f"push-{node}", str(BIN / "ingero"), "fleet-push", "--fleet-endpoint", f"http://{fleet}",
        "--fleet-cluster-id", "three", "--fleet-node-id", node, "--signal-db-path", database,
        "--warmup-samples", str(SAMPLES), "--fleet-push-interval", f"{INTERVAL_S:g}s",
        "--fleet-timeout", f"{min(INTERVAL_S, 2):g}s", "--fleet-persist-path", "",
    )  # fmt: skip


def quorum_met(address: str) -> bool:
    url = f"http://{address}/api/v1/threshold?cluster_id=three"
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as reply:
        return bool(json.load(reply)["quorum_met"])


def test_f020_quorum_under_load_and_f091_the_fragmented_node_comes_first(tmp_path: Path) -> None:
    require_bpf()
    assert Path(ingero.agent.load.__file__).parent == STAND_IN.folder
    with (
        RunningEcho(tmp_path, bearer_rate=10_000, bearer_burst=100_000) as echo,
        children(tmp_path) as start,
    ):
        ports = [f"--{name}=127.0.0.1:0" for name in PORTS]
        config = str(fleet_config(tmp_path, echo))
        fleet = start("fleet", str(BIN / "ingero-fleet"), "--json", "--config", config, *ports)
        addresses = json.loads(fleet.stdout.readline())["addresses"]
        began_s = time.monotonic()
        for node in NODES:
            start_node(start, tmp_path, node, addresses["http"])
        while time.monotonic() - began_s < 120 and not quorum_met(addresses["threshold"]):
            time.sleep(0.1)
        took_s = time.monotonic() - began_s
        print(f"quorum of three nodes after {took_s:.0f} s")
        assert took_s <= 120, "F020: also at the interval of production"

        def hot() -> list[dict[str, Any]]:
            return list(echo.answer("memfrag_hotspots", cluster_id="three", window="all")["nodes"])

        until(lambda: len(hot()) == 3 and (hot()[0]["fragmentation"] or 0) > 0.3)
        first, *others = hot()
    assert first["node_id"] == NODES[-1]
    assert first["largest_free_bytes"] == 4 << 20
    assert first["allocated_bytes"] >= 32 * (4 << 20)
    assert first["reserved_bytes"] >= first["allocated_bytes"] + 31 * (4 << 20)
    assert [other["fragmentation"] for other in others] == [0.0, 0.0]
