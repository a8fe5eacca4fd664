"""Fleet, agents and a sink as real processes: outage, black hole, quorum, clusters, socket."""

import asyncio
import contextlib
import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.agent_process import agent, connect
from tests.support.fault_proxy import FaultProxy
from tests.support.shared_data import shared
from tests.support.waiting import PATIENCE_S, until

from ingero.contract.straggler import StragglerResolved, StragglerState, decode_line
from ingero.sim.cluster import DemoCluster

pytestmark = pytest.mark.e2e


def in_order(wanted: list[str], seen: list[str]) -> bool:
    """Whether `seen` holds `wanted` in this order, whatever lies between."""
    rest = iter(seen)
    return all(mode in rest for mode in wanted)


def page(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE_S) as response:
        text: str = response.read().decode()
    return text


def test_a_killed_fleet_changes_modes_and_names_no_node_f017_f019_f106(tmp_path: Path) -> None:
    """SIGKILL, an outage longer than the kept threshold, a new process on the same ports."""
    with DemoCluster([], push_interval_s=10, quorum=3) as fleet, contextlib.ExitStack() as running:
        url = f"http://{fleet.addresses['http']}"
        agents = [
            running.enter_context(agent(tmp_path, url, node, "--cached-max-age", "4"))
            for node in ("n1", "n2", "n3")
        ]
        until(
            lambda: all("fleet" in one.modes() for one in agents), "no agent received a threshold"
        )
        fleet.kill_fleet()
        chain = ["fleet", "local-cached", "local-baseline"]
        until(
            lambda: all(in_order(chain, one.modes()) for one in agents),
            "an agent did not fall back",
        )
        fleet.start_fleet()
        until(
            lambda: all(in_order([*chain, "fleet"], one.modes()) for one in agents),
            "an agent did not come back",
        )
        seen = fleet.wait_for(lambda s: s.quorum_met and len(s.nodes) == 3, PATIENCE_S)
        assert seen.stragglers == []
        assert [one.said.count("straggler_raised") for one in agents] == [0, 0, 0]


async def test_a_black_holed_fleet_does_not_delay_a_tick_f018(tmp_path: Path) -> None:
    async with FaultProxy(("127.0.0.1", 1), swallow=True) as hole:
        with agent(tmp_path, f"http://{hole.address}", "n1", "--metrics", "127.0.0.1:0") as one:
            await asyncio.to_thread(
                until, lambda: "agent_started" in one.said, "the agent did not start"
            )
            address = one.said.split("metrics=")[1].split()[0]

            def count(name: str) -> int:
                found = re.search(rf"^{name}(?:{{.*}})? (\d+)$", page(address), re.MULTILINE)
                return int(found[1]) if found else 0

            await asyncio.to_thread(
                until, lambda: count("ingero_agent_ticks_total") >= 8, "ticks stopped"
            )
            # ticks went on while one push waited
            assert count("ingero_agent_skipped_pushes_total") >= 3
            # by this machine
            assert count("ingero_agent_late_ticks_total") <= count("ingero_agent_ticks_total") / 2
            await asyncio.to_thread(
                until, lambda: 'mode="local-baseline"} 1' in page(address), "no fallback"
            )


def test_two_nodes_are_no_quorum_three_are_and_clusters_do_not_mix_f015_f042(
    tmp_path: Path,
) -> None:
    slow = tmp_path / "slow.jsonl"
    line = {"launches": 10, "throughput": 100, "compute": 0.5, "memory": 0.5, "cpu": 0.5}
    slow.write_text(f"{json.dumps(line)}\n" * 500)
    with DemoCluster([], push_interval_s=10, quorum=3) as fleet, contextlib.ExitStack() as running:
        url = f"http://{fleet.addresses['http']}"
        for node in ("n1", "n2"):
            running.enter_context(agent(tmp_path, url, node, cluster="a"))
        running.enter_context(agent(tmp_path, url, "n1", "--replay", str(slow), cluster="b"))

        def are_active(count: int) -> Callable[[object], bool]:
            return lambda seen: (
                [node.state for node in seen.nodes.values()].count("active") == count
            )

        two = fleet.wait_for(are_active(2), PATIENCE_S, "a")
        other = fleet.wait_for(are_active(1), PATIENCE_S, "b")
        assert not two.quorum_met
        running.enter_context(agent(tmp_path, url, "n3", cluster="a"))
        three = fleet.wait_for(lambda seen: seen.quorum_met, PATIENCE_S, "a")
        assert sorted(three.nodes) == ["n1", "n2", "n3"]
        other = fleet.wait_for(are_active(1), PATIENCE_S, "b")
        assert (list(other.nodes), other.quorum_met) == (["n1"], False)
        assert three.nodes["n1"].score == pytest.approx(0.94, abs=0.01)
        assert other.nodes["n1"].score == pytest.approx(0.70, abs=0.01)
        assert three.stragglers == other.stragglers == []


def test_the_sink_receives_23_states_and_one_resolved_from_a_real_agent_f009_f011_f032(
    tmp_path: Path,
) -> None:
    """A recording with 23 slow observations, healthy peers and a real Fleet."""
    usual = {"launches": 10, "throughput": 100, "compute": 0.95, "memory": 0.95, "cpu": 0.95}
    looks = [usual] * 16 + [usual | {"throughput": 30}] * 23 + [usual] * 4
    (tmp_path / "looks.jsonl").write_text("".join(f"{json.dumps(look)}\n" for look in looks))
    socket, baseline = tmp_path / "run" / "agent.sock", tmp_path / "state" / "baseline.json"
    with DemoCluster([], push_interval_s=10, quorum=2) as fleet, contextlib.ExitStack() as running:
        url = f"http://{fleet.addresses['http']}"
        for node in ("n1", "n2"):
            running.enter_context(agent(tmp_path, url, node))
        fleet.wait_for(lambda seen: seen.quorum_met, PATIENCE_S)
        address = start_sink(running, socket)
        options = ("--replay", str(tmp_path / "looks.jsonl"), "--interval", "0.25")
        places = ("--socket", str(socket), "--baseline", str(baseline))
        one = running.enter_context(agent(tmp_path, url, "slow", *options, *places))
        lines = asyncio.run(read_lines(socket))
        assert one.process.wait(PATIENCE_S) == 0, one.said
        until(
            lambda: 'ingero_sink_events_total{type="straggler_resolved"} 1' in page(address),
            "the sink received no end",
        )
        seen = page(address)
    assert 'ingero_sink_events_total{type="straggler_state"} 23' in seen
    assert "ingero_sink_parse_errors_total 0" in seen
    assert "ingero_sink_active_stragglers{" not in seen
    check_against_recording(lines, baseline)


def start_sink(running: contextlib.ExitStack, socket: Path) -> str:
    """Start a sink that reads this socket; return the address of its metrics."""
    main = "from ingero.cli.commands.services.straggler_sink import main; main()"
    options = ("--listen", "127.0.0.1:0", "--reconnect-delay", "100ms")
    command = [sys.executable, "-c", main, "--socket-path", str(socket), *options]
    sink = running.enter_context(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
    running.callback(sink.kill)
    assert sink.stderr is not None
    started = next(line for line in sink.stderr if "metrics=" in line)
    return started.split("metrics=")[1].strip()


async def read_lines(path: Path) -> list[bytes]:
    """Everything a second consumer of the socket hears, until the agent ends."""
    reader, writer = await connect(path)
    text = await asyncio.wait_for(reader.read(), 2 * PATIENCE_S)
    writer.close()
    return text.splitlines()


def check_against_recording(lines: list[bytes], baseline: Path) -> None:
    """Lines and file equal those of the recorded agent: same keys in the same order."""
    episode = [
        line
        for line in map(decode_line, lines)
        if isinstance(line, StragglerState | StragglerResolved)
    ]
    assert len(episode) == 24
    assert len({line.event_id for line in episode}) == 1
    assert [line.sequence for line in episode] == list(range(1, 25))
    received = [list(json.loads(line)) for line in lines]
    for recorded in shared("data/ingero-wire/socket.ndjson").read_text().splitlines():
        keys = list(json.loads(recorded))
        kind = json.loads(recorded)["type"]
        ours = [
            found
            for found, line in zip(received, lines, strict=True)
            if json.loads(line)["type"] == kind
        ]
        assert ours
        assert all([key for key in found if key != "sequence"] == keys for found in ours)
    theirs, saved = (
        json.loads(path.read_text())
        for path in (shared("data/ingero-wire/baseline.json"), baseline)
    )
    assert list(saved) == list(theirs)
    assert {key: list(value) for key, value in saved.items() if isinstance(value, dict)} == {
        key: list(value) for key, value in theirs.items() if isinstance(value, dict)
    }
