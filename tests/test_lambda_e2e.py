"""The end-to-end kit: its scripts exist, can be tried dry, and all of them run on loopback."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

KIT = Path(__file__).parents[1] / "examples" / "lambda-e2e"
STEPS = (
    *("provision.sh", "10-bootstrap-k3s.sh", "20-deploy-stack.sh", "30-baseline.sh"),
    *("40-inject-straggler.sh", "50-record-artifacts.sh", "60-teardown.sh"),
)
SCRIPTS = ("00-env.sh", *STEPS, "build-arm64-on-host.sh")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    home = {"HOME": str(tmp_path), "PATH": path, "LANG": "C.UTF-8", "PYTHONFAULTHANDLER": "1"}
    ports = {"LOCAL_PORT": str(free_port()), "LOCAL_API_PORT": str(free_port())}
    work = {"WORK_DIR": str(tmp_path / "work"), "REC_DIR": str(tmp_path / "artifacts")}
    return home | ports | work | {"CLUSTER_ID": "try"} | more


def run(script: str, variables: dict[str, str]) -> str:
    done = subprocess.run(
        [KIT / "scripts" / script], env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("script", SCRIPTS)
def test_f029_scripts_exist_and_are_valid_shell(script: str) -> None:
    subprocess.run(["bash", "-n", KIT / "scripts" / script], check=True)


@pytest.mark.parametrize("mode", ["local", "cloud"])
def test_f029_every_script_can_be_tried_dry(tmp_path: Path, mode: str) -> None:
    variables = environment(tmp_path, DRY_RUN="1", MODE=mode)
    variables |= {"LAMBDA_API_KEY": "none", "DEVICE_PLUGIN_YAML": "plugin.yaml"}
    (tmp_path / "bin").mkdir()
    kubectl = tmp_path / "bin" / "kubectl"
    kubectl.write_text("#!/bin/sh\necho node/gpu-1\n")
    kubectl.chmod(0o755)
    variables["PATH"] = f"{tmp_path / 'bin'}:{variables['PATH']}"
    for script in (*STEPS, "build-arm64-on-host.sh"):
        run(script, variables)
    assert not (tmp_path / "work").exists()
    assert not (tmp_path / "artifacts").exists()


@pytest.mark.e2e
@pytest.mark.slow
def test_f030_f031_the_local_mode_names_the_slow_node_and_leaves_only_artefacts(
    tmp_path: Path,
) -> None:
    variables = environment(tmp_path, MODE="local")
    try:
        for script in STEPS[:-1]:
            run(script, variables)
    finally:
        pids = [int(file.read_text()) for file in (tmp_path / "work" / "pids").glob("*")]
        run(STEPS[-1], variables)
    artefacts = tmp_path / "artifacts"
    summary = json.loads((artefacts / "summary.json").read_text())
    assert [node["node_id"] for node in summary["stragglers"]] == ["node-3"]
    assert summary["quorum_met"] is True
    assert "ingero_fleet_threshold" in (artefacts / "fleet-metrics.txt").read_text()
    assert {file.name for file in artefacts.glob("*.log")} == {
        *("fleet.log", "agent-1.log", "agent-2.log", "agent-3.log")
    }
    assert pids
    assert [pid for pid in pids if Path(f"/proc/{pid}/exe").exists()] == []
    assert not (tmp_path / "work").exists()
