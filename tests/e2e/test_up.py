"""`ingero up` on one machine: Fleet and the agent, found by other commands without options."""

import json
import os
import signal
import subprocess
from pathlib import Path

from tests.support.joined_fleet import run
from tests.support.processes import BIN
from tests.support.waiting import PATIENCE_S, until

from ingero.config.deploy.ports import PORTS
from ingero.storage.runtime import FILE_NAME


def test_up_runs_the_agent_and_commands_find_everything(tmp_path: Path) -> None:
    runtime = tmp_path / "runtime"
    here = {
        "HOME": str(tmp_path),
        "INGERO_RUNTIME_DIR": str(runtime),
        "INGERO_CONFIG": "",
    }
    zero = [word for flag in PORTS for word in (f"--{flag}", "0")]
    command = [str(BIN / "ingero"), "up", "--json", "--no-echo", "--data-dir", str(tmp_path / "up")]
    up = subprocess.Popen(
        [*command, *zero],
        stdout=subprocess.PIPE,
        text=True,
        env=dict(os.environ) | here,
        cwd=tmp_path,
    )
    try:
        assert up.stdout is not None
        where = json.loads(up.stdout.readline())
        assert set(where) == {"fleet", "agent"}
        assert where["agent"]["api"].startswith("https://127.0.0.1:")

        def node_is_there() -> bool:
            found = run("ingero", "status", "--json", **here)
            return '"node_id"' in found.stdout

        until(node_is_there, (tmp_path / "up" / "agent.log").read_text())
        asked = run("ingero", "query", "--json", "SELECT count(*) AS n FROM sessions", **here)
        assert asked.returncode == 0, asked.stderr
        assert '"n"' in asked.stdout, "the database of the running agent"
        health = run("ingero", "agent", "--health", **here)
        assert "pusher    running" in health.stdout, health.stderr
    finally:
        up.send_signal(signal.SIGTERM)
        up.communicate(timeout=2 * PATIENCE_S)
    assert up.returncode == 0
    assert not (runtime / FILE_NAME).exists()
