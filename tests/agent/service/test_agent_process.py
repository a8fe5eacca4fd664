"""`ingero agent` as a process: parts that run, end, hang and are off (F062)."""

import os
import signal
import socket
from pathlib import Path

import pytest
from tests.support.waiting import until
from tests.support.whole_agent import WholeAgent, whole_agent

from ingero.agent.host.privileges import missing_capabilities

NO_FLEET = "http://127.0.0.1:9"


def config(folder: Path, *, record: bool = False, api: str = "", fleet: str = NO_FLEET) -> str:
    listen = f'{{listen: "{api}"}}' if api else "{}"
    return (
        f"agent: {{node: gpu-1, record: {str(record).lower()}, api: {listen}}}\n"
        f"store: {{path: {folder / 'trace.db'}}}\n"
        f"fleet: {{endpoint: '{fleet}', cluster_id: try}}\n"
        f"health: {{persistence: {{path: {folder / 'baseline.json'}}}}}\n"
    )


def listening_ports(pid: int) -> set[int]:
    """The TCP ports that a process listens on."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(link.readlink())
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


def pids(agent: WholeAgent) -> list[int]:
    health = agent.wait_until_healthy()
    return [agent.process.pid, *(part.pid for part in health.parts if part.pid)]


def permitted(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("CapPrm:")).split()[1], 16)


def test_without_an_address_for_the_api_no_port_is_opened(tmp_path: Path) -> None:
    with whole_agent(tmp_path, config(tmp_path)) as agent:
        assert [listening_ports(pid) for pid in pids(agent)] == [set(), set()]
        assert "opened" in agent.part("api").why


def test_a_part_that_is_killed_is_started_again_and_counted(tmp_path: Path) -> None:
    with whole_agent(tmp_path, config(tmp_path, api="127.0.0.1:0")) as agent:
        agent.wait_until_healthy()
        first = agent.part("pusher").pid
        assert first is not None
        api = agent.part("api").pid
        os.kill(first, signal.SIGKILL)
        until(lambda: agent.part("pusher").state == "waiting", agent.said)
        health = agent.health()
        assert health is not None
        assert not health.healthy
        until(lambda: agent.part("pusher").state == "running", agent.said)
        again = agent.part("pusher")
        assert again.restarts == 1
        assert again.pid != first
        assert "SIGKILL" in again.why
        assert agent.part("api").pid == api, "the others are left alone"
        assert 'ingero_agent_part_restarts_total{part="pusher"} 1' in agent.metrics()
        assert 'ingero_agent_part_up{part="pusher"} 1' in agent.metrics()


def test_the_parts_end_with_the_agent_even_when_it_is_killed(tmp_path: Path) -> None:
    with whole_agent(tmp_path, config(tmp_path, api="127.0.0.1:0")) as agent:
        children = pids(agent)[1:]
        assert len(children) >= 2
        agent.process.kill()
        agent.process.wait()
        for pid in children:
            until(lambda pid=pid: not Path(f"/proc/{pid}").exists() or is_zombie(pid))
        agent.process.returncode = 0


def is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_only_the_recorder_keeps_capabilities(tmp_path: Path) -> None:
    if os.geteuid() != 0 or missing_capabilities():
        pytest.skip("needs root with CAP_BPF and CAP_PERFMON")
    with whole_agent(tmp_path, config(tmp_path, record=True, api="127.0.0.1:0")) as agent:
        health = agent.wait_until_healthy()
        held = {part.name: permitted(part.pid or 0) for part in health.parts}
        assert held["pusher"] == held["api"] == 0
        assert held["recorder"] & 1 << 39, "CAP_BPF"
        assert not held["recorder"] & 1 << 12, "CAP_NET_ADMIN"
        notes = agent.part("recorder").notes
        assert not [note for note in notes if note.startswith("probes:")], "probes are on"
        assert "waiting for" not in agent.said, "the database exists before it is read"


def test_without_capabilities_the_recorder_runs_without_probes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingero.agent.service.recorder.missing_capabilities", lambda: ["CAP_BPF"])
    from ingero.agent.service.recorder import open_feed
    from ingero.config.ingero import IngeroConfig

    feed = open_feed(IngeroConfig(), "gpu-1")
    try:
        assert feed.notes()[0] == "probes: off, because this process lacks CAP_BPF"
        assert len(feed.poll().columns) == 0
    finally:
        feed.close()


def test_sighup_starts_parts_whose_settings_changed(tmp_path: Path) -> None:
    with whole_agent(tmp_path, config(tmp_path)) as agent:
        agent.wait_until_healthy()
        pusher = agent.part("pusher").pid
        text = config(tmp_path, api="127.0.0.1:0")
        (tmp_path / "ingero.yaml").write_text(text)
        agent.process.send_signal(signal.SIGHUP)
        until(lambda: agent.part("api").state == "running", agent.said)
        address = agent.part("api").addresses["api"].removeprefix("https://")
        host, _, port = address.rpartition(":")
        socket.create_connection((host, int(port)), 5).close()
        assert agent.part("pusher").pid != pusher, "the agent block is read by every part"
        (tmp_path / "ingero.yaml").write_text("agent: {misspelt: 1}\n")
        agent.process.send_signal(signal.SIGHUP)
        until(lambda: "reload_failed" in agent.said)
        assert agent.part("api").state == "running"


def test_the_service_manager_is_told_about_start_and_stop(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        told = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "400000"}
        with whole_agent(tmp_path, config(tmp_path), told) as agent:
            said: list[str] = []
            while not any(line.startswith("READY=1") for line in said):
                said.append(manager.recv(4096).decode())
            assert "WATCHDOG=1" in said
            assert "pusher running" in said[-1]
            agent.process.send_signal(signal.SIGTERM)
            while said[-1] != "STOPPING=1":
                said.append(manager.recv(4096).decode())
