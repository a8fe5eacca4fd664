"""One version of skew: agents, Fleet, Echo and commands work with those of the version before.

`make test-compat` runs it. A table of what it shows is in docs/reference/versions.md.
"""

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.compat.previous import previous_python
from tests.support.echo_process import TOKEN
from tests.support.echo_samples import metrics_body

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        os.environ.get("INGERO_TEST_COMPAT") != "1",
        reason="installs the previous version: `make test-compat`",
    ),
]
NODES, RANKS, SLOW = 4, 4, 6
NOT_SURE = 3  # exit status of `ingero status` with one node
POINTS = 20
PATIENCE_S = 420.0  # to learn 20 samples of each rank, and to name one, on a busy machine
FLEET = "ingero.cli.commands.services.fleet"
ECHO = "ingero.cli.commands.services.echo"
NAMES = Path(__file__).parent / "nodes.py"


@pytest.fixture(scope="module")
def previous() -> str:
    return previous_python()


@pytest.fixture(params=["this", "previous"])
def sides(request: pytest.FixtureRequest, previous: str) -> tuple[str, str]:
    """Two Pythons: that of the receiver, and the other version's for those who talk to it."""
    pair = (sys.executable, previous)
    return pair if request.param == "this" else pair[::-1]


@contextmanager
def serving(command: list[str], log: Path) -> Iterator[dict[str, str]]:
    """Run a service; yield the addresses that it prints."""
    with (
        log.open("w") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, log.read_text()[-3000:]
        try:
            yield json.loads(line)["addresses"]
        finally:
            process.terminate()
            process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, log.read_text()[-3000:]


def fleet_command(python: str, folder: Path, echo: dict[str, str] | None = None) -> list[str]:
    exporters = {"prometheus": {"endpoint": "127.0.0.1:0"}}
    if echo is not None:
        endpoint = {"endpoint": f"http://{echo['http']}", "token_file": str(folder / "token")}
        exporters["otlphttp"] = endpoint
    pipeline = {"receivers": ["otlp"], "processors": ["ingero"], "exporters": [*exporters]}
    document = {
        "processors": {
            "ingero": {
                "push_interval": "1s",
                "quorum": {"statistical_min": 3},
                "verdict": {"warmup_samples": 20},
            }
        },
        "exporters": exporters,
        "service": {"extensions": ["ingero_threshold"], "pipelines": {"metrics": pipeline}},
    }
    config = folder / "fleet.yaml"
    config.write_text(json.dumps(document))
    names = ("grpc", "http", "admin", "health", "metrics", "prometheus", "agent")
    ports = [f"--{name}=127.0.0.1:0" for name in names]
    return [python, "-m", FLEET, "--config", str(config), "--json", *ports]


def echo_command(python: str, folder: Path) -> list[str]:
    (folder / "token").write_text(TOKEN)
    (folder / "token").chmod(0o600)
    command = [python, "-m", ECHO, "serve", "--json", "--insecure-no-tls"]
    command += ["--db-path", str(folder / "echo.db"), "--auth-token-file", str(folder / "token")]
    names = ("otlp", "otlp-http", "mcp", "health")
    return [*command, *(f"--{name}-addr=127.0.0.1:0" for name in names)]


@contextmanager
def nodes(python: str, fleet: str, log: Path) -> Iterator[subprocess.Popen[str]]:
    command = [python, str(NAMES), fleet, str(NODES), str(RANKS)]
    with (
        log.open("w") as output,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=output, stderr=output, text=True
        ) as process,
    ):
        try:
            yield process
        finally:
            process.communicate(timeout=PATIENCE_S)


def status(python: str, fleet: str) -> dict[str, Any]:
    """Return what `ingero status` of one version says about a Fleet."""
    command = [python, "-m", "ingero", "status", "--fleet", f"http://{fleet}", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    clusters = json.loads(done.stdout)["clusters"]
    return clusters[0] if clusters else {"nodes": [], "verdicts": [], "ranks": {"judged": 0}}


def until(python: str, fleet: str, condition: Any) -> dict[str, Any]:
    end_s = time.monotonic() + PATIENCE_S
    while not condition(seen := status(python, fleet)):
        assert time.monotonic() < end_s, json.dumps(seen)[:3000]
        time.sleep(3.0)  # a command costs more than what it watches
    return seen


def named(seen: dict[str, Any]) -> set[int]:
    return {each["rank"] for each in seen["verdicts"] if each["state"] == "straggler"}


def test_agents_and_commands_of_one_version_work_with_fleet_of_the_other(
    sides: tuple[str, str], tmp_path: Path
) -> None:
    """Scores and thresholds, own times, a verdict with what the job loses, and `ingero status`."""
    fleet_python, other = sides
    with serving(fleet_command(fleet_python, tmp_path), tmp_path / "fleet.log") as addresses:
        api = addresses["threshold"]
        with nodes(other, addresses["http"], tmp_path / "nodes.log") as driver:
            until(other, api, lambda seen: seen["ranks"]["judged"] >= NODES * RANKS)
            assert driver.stdin is not None
            driver.stdin.write(f"{SLOW}\n")
            driver.stdin.flush()
            seen = until(other, api, lambda seen: SLOW in named(seen))
    assert named(seen) == {SLOW}
    (verdict,) = (each for each in seen["verdicts"] if each["rank"] == SLOW)
    assert (verdict["node"], verdict["class"]) == ("node-1", "compute")
    assert verdict["loss"] == pytest.approx(0.1, abs=0.04)
    assert len(seen["nodes"]) == NODES
    assert seen["quorum_met"] is True


def test_a_node_of_one_version_joins_a_fleet_of_the_other_and_leaves(
    sides: tuple[str, str], tmp_path: Path
) -> None:
    """The other version also makes the folder of that Fleet, as before an upgrade of Fleet."""
    fleet_python, other = sides
    folder = tmp_path / "fleet"
    made = ingero(other, "fleet", "init", str(folder), "--name", "127.0.0.1", "--json")
    code = json.loads(made)["code"]
    config = str(folder / "fleet-config.yaml")
    names = ("http", "admin", "health", "metrics", "prometheus", "agent")
    ports = [f"--{name}=127.0.0.1:0" for name in names]
    command = [fleet_python, "-m", FLEET, "--config", config, "--json", "--grpc=off", *ports]
    with serving(command, tmp_path / "fleet.log") as addresses:
        url = f"https://{addresses['threshold']}"
        place = ("--config", str(tmp_path / "ingero.yaml"), "--state-dir", str(tmp_path / "node"))
        ingero(other, "join", url, code, "--no-unit", "--node", "gpu-1", *place)
        operator = str(folder / "operator" / "ingero.yaml")
        with pushing(other, str(tmp_path / "ingero.yaml")) as pusher:
            end_s = time.monotonic() + PATIENCE_S
            question = ("status", "--json", "--fleet", url)
            while '"gpu-1"' not in ingero(
                other, *question, status=(0, NOT_SURE), INGERO_CONFIG=operator
            ):
                assert pusher.poll() is None, "the pusher ended"
                assert time.monotonic() < end_s
        ingero(fleet_python, "leave", *place)
    assert "gpu-1" not in ingero(other, "fleet", "nodes", str(folder))


@contextmanager
def pushing(python: str, config: str) -> Iterator[subprocess.Popen[bytes]]:
    """Push as the node of a configuration."""
    command = [python, "-m", "ingero", "fleet-push", "--stub", "--fleet-push-interval", "3s"]
    with subprocess.Popen(command, env=dict(os.environ) | {"INGERO_CONFIG": config}) as process:
        try:
            yield process
        finally:
            process.terminate()


def ingero(python: str, *words: str, status: tuple[int, ...] = (0,), **variables: str) -> str:
    """Run a command of one version; return what it printed."""
    done = subprocess.run(
        [python, "-m", "ingero", *words],
        env=dict(os.environ) | variables, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode in status, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


def test_fleet_of_one_version_forwards_to_echo_of_the_other(
    sides: tuple[str, str], tmp_path: Path
) -> None:
    echo_python, other = sides
    with serving(echo_command(echo_python, tmp_path), tmp_path / "echo.log") as echo:
        command = fleet_command(other, tmp_path, echo)
        with (
            serving(command, tmp_path / "fleet.log") as addresses,
            nodes(other, addresses["http"], tmp_path / "nodes.log"),
        ):
            until(other, addresses["threshold"], lambda seen: len(seen["nodes"]) == NODES)
        found = {row[0] for row in ask(other, echo, tmp_path)}
    assert found == {f"node-{number}" for number in range(NODES)}


def ask(python: str, echo: dict[str, str], folder: Path) -> list[list[Any]]:
    """Ask Echo with the command of one version until something is stored."""
    text = "SELECT DISTINCT node_id FROM events WHERE node_id IS NOT NULL"
    end_s = time.monotonic() + PATIENCE_S
    while len(rows := sql(python, echo, folder, text)) < NODES:
        assert time.monotonic() < end_s, rows
    return rows


def test_echo_upgrades_a_database_of_the_previous_version(previous: str, tmp_path: Path) -> None:
    """The same rows before and after, and new ones are added; there is no way back."""
    with serving(echo_command(previous, tmp_path), tmp_path / "before.log") as echo:
        before = stored(previous, echo, tmp_path, first=0)
    with serving(echo_command(sys.executable, tmp_path), tmp_path / "after.log") as echo:
        after = stored(sys.executable, echo, tmp_path, first=POINTS)
        assert sql(sys.executable, echo, tmp_path, "SELECT count(engine) FROM verdicts") == [[0]]
    assert len(before) == POINTS
    assert after[:POINTS] == before
    assert len(after) == 2 * POINTS
    if database_version(previous) == database_version(sys.executable):
        with serving(echo_command(previous, tmp_path), tmp_path / "back.log") as echo:
            assert stored(previous, echo, tmp_path, first=2 * POINTS)[: 2 * POINTS] == after
        return
    refused = subprocess.run(
        echo_command(previous, tmp_path), capture_output=True, text=True, check=False, timeout=60
    )
    assert refused.returncode != 0, "the previous version must refuse what it does not know"


def database_version(python: str) -> str | None:
    """Return the version of Echo's database; None where `--version` did not tell it yet."""
    command = [python, "-m", "ingero", "--version"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"Echo's database (\S+?),", said)
    return found and found[1]


def stored(python: str, echo: dict[str, str], folder: Path, first: int) -> list[list[Any]]:
    """Send points; return all events once they are stored."""
    body = metrics_body(points=POINTS, first=first)
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/x-protobuf"}
    request = urllib.request.Request(f"http://{echo['http']}/v1/metrics", body, headers)
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
        assert reply.status == 200
    text = "SELECT node_id, metric_name, ts, value_double FROM events ORDER BY ts"
    end_s = time.monotonic() + PATIENCE_S
    while len(rows := sql(python, echo, folder, text)) < first + POINTS:
        assert time.monotonic() < end_s, rows
    return rows


def sql(python: str, echo: dict[str, str], folder: Path, text: str) -> list[list[Any]]:
    command = [python, "-m", ECHO, "ask", "--json", "--url", f"http://{echo['mcp']}"]
    command += ["--token-file", str(folder / "token"), "run_analysis", f"sql={text}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows: list[list[Any]] = json.loads(done.stdout)["rows"]
    return rows
