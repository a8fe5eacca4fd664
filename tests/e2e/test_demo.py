"""The demo as a newcomer runs it, and `ingero status` and `ingero check --fleet` beside it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.waiting import PATIENCE_S, until

from ingero.sim.cluster import DemoCluster

INGERO = [sys.executable, "-m", "ingero"]
pytestmark = pytest.mark.e2e


def ingero(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*INGERO, *arguments], check=False, capture_output=True, text=True, timeout=4 * PATIENCE_S
    )


def descendants(pid: int) -> list[int]:
    """Return the children of a process, and theirs."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *descendants(int(child))]
    return found


@pytest.mark.parametrize("scenario", ["sudden", "fleet-outage"])
def test_f021_the_slowed_node_is_named_and_nobody_else(scenario: str) -> None:
    result = ingero(
        "demo", "--json", "--nodes", "4", "--straggler", "gpu-node-02", "--scenario", scenario
    )
    assert result.returncode == 0, result.stderr
    story = json.loads(result.stdout)
    assert story["ok"]
    assert (story["straggler"], story["wrongly_named"]) == ("gpu-node-02", [])
    assert story["mode"] in (
        "fleet",
        "fleet-cached",
    )  # a late reply makes a threshold old, not wrong
    assert story["score"] < story["threshold"]
    assert story["named_after_s"] <= PATIENCE_S  # about 7 s on an idle machine


def test_a_hanging_engine_and_a_slow_replica_are_named_and_nobody_else() -> None:
    """F159 and F161: simulated engines, found, read and judged by the real agent and Fleet."""
    result = ingero("demo", "--json", "--scenario", "inference")
    assert result.returncode == 0, result.stdout + result.stderr
    story = json.loads(result.stdout)
    assert (story["ok"], story["simulated"], story["wrongly_named"]) == (True, True, [])
    assert "is stopped by a signal" in story["waits"]
    assert story["health"].endswith("although /health says 200")
    assert story["stalled_after_s"] <= PATIENCE_S  # about 7 s on an idle machine
    assert "stalled" in result.stderr


def test_f022_the_seconds_until_detection_are_printed_and_at_most_thirty() -> None:
    """At the usual push interval of 5 s; about 16 s on an idle machine."""
    result = ingero(
        "demo",
        "--scenario",
        "sudden",
        "--nodes",
        "4",
        "--straggler",
        "gpu-node-02",
        "--push-interval",
        "5",
    )
    assert result.returncode == 0, result.stderr
    (shown,) = re.findall(r"T\+ *([\d.]+) s  straggler: gpu-node-02 ", result.stdout)
    assert 0 < float(shown) <= 30
    assert f"gpu-node-02 was named {shown} s after it slowed down." in result.stdout


def test_f021_the_slow_rank_of_a_job_is_named_with_loss_price_and_next_step() -> None:
    """Nobody else is named in the whole run; the GPU of the rank takes 15 % longer."""
    result = ingero("demo", "--nodes", "3", "--json")
    assert result.returncode == 0, result.stderr
    story = json.loads(result.stdout)
    named = {key: story[key] for key in ("ok", "node", "rank", "ranks", "class", "wrongly_named")}
    assert named == {
        "ok": True,
        "node": "gpu-node-03",
        "rank": 19,
        "ranks": 24,
        "class": "compute",
        "wrongly_named": [],
    }
    assert story["loss"] == pytest.approx(0.105, abs=0.025)  # 4 x 15 ms of a step of 0.51 s
    # 24 GPUs at the price of an H100 at the provider that the simulated nodes name
    assert story["usd_per_hour"] == pytest.approx(story["loss"] * 24 * 2.49, rel=0.01)
    assert "clocks" in story["next"]
    assert story["collective"].startswith("AllReduce of ")
    assert story["took_s"] < 8 * PATIENCE_S  # about 16 s on an idle machine
    assert "its page: http://127.0.0.1:" in result.stderr


def test_no_child_outlives_a_demo_that_is_killed() -> None:
    demo = subprocess.Popen(
        [*INGERO, "demo", "--nodes", "3"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    with demo:
        assert demo.stdout is not None
        while b"agents push" not in (line := demo.stdout.readline()):
            assert line, "the demo ended too early"
        children = descendants(demo.pid)
        assert len(children) >= 5, "Fleet, the nodes and what starts them"
        demo.kill()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children), "a child lives on")


def test_status_and_check_beside_a_running_cluster() -> None:
    """F020: three nodes under simulated load reach quorum well within two minutes."""
    with DemoCluster(["n1", "n2", "n3"]) as cluster:
        url = f"http://{cluster.addresses['threshold']}"
        cluster.wait_for(lambda s: s.quorum_met and len(s.nodes) == 3, PATIENCE_S)
        calm = ingero("status", "--fleet", url)
        assert calm.returncode == 0, calm.stderr
        assert "demo: 3 active; threshold 0.900" in calm.stdout
        assert "nobody is slow" in calm.stdout
        cluster.slow("n2", 0.3)
        cluster.wait_for(lambda s: s.stragglers == ["n2"], PATIENCE_S)
        slow = ingero("status", "--fleet", url)
        assert slow.returncode == 1
        (line,) = [row for row in slow.stdout.splitlines() if row.startswith("n2")]
        assert "SLOW" in line
        listed = json.loads(ingero("status", "--fleet", url, "--json").stdout)
        assert [n["node_id"] for n in listed["clusters"][0]["nodes"] if n["straggler"]] == ["n2"]
        checked = ingero(
            "check", "--fleet", f"http://{cluster.addresses['http']}", "--cluster", "demo", "--json"
        )
        report = {row["name"]: row["pass"] for row in json.loads(checked.stdout)["checks"]}
        assert report == {"reach": True, "push": True, "clock": True, "quorum": True}


def test_a_fleet_that_is_not_there_is_a_sentence() -> None:
    result = ingero("status", "--fleet", "http://127.0.0.1:1")
    assert result.returncode == 3  # it cannot tell
    assert "Fleet does not answer at http://127.0.0.1:1" in result.stderr
    checked = ingero("check", "--fleet", "http://127.0.0.1:1")
    assert checked.returncode == 1
    assert "FAIL  reach" in checked.stdout


def test_samples_and_single_node_scenarios(tmp_path: Path) -> None:
    written = json.loads(ingero("demo", "--write-samples", str(tmp_path), "--json").stdout)
    assert len(written) == 4
    explained = ingero("explain", "-d", written[-1])
    assert "Root cause:" in explained.stdout
    listed = ingero("demo", "--no-gpu", "list").stdout
    for name in (
        "incident",
        "cold-start",
        "memcpy-bottleneck",
        "periodic-spike",
        "cpu-contention",
        "gpu-steal",
    ):
        assert name in listed
    told = ingero("demo", "--no-gpu", "incident")
    assert told.returncode == 0, told.stderr
    assert "simulated" in told.stdout
