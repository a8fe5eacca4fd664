"""No command waits for a file: pipes without a writer and files of the kernel get a sentence."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.waiting import PATIENCE_S

COMMANDS = {
    "blame": ["blame", "FILE"],
    "whatif": ["whatif", "FILE"],
    "import": ["import", "FILE", "--to", "new.db"],
    "replay": ["replay", "."],
    "query": ["query", "-d", "FILE", "SELECT 1"],
    "explain": ["explain", "-d", "FILE"],
    "merge": ["merge", "FILE", "FILE", "-o", "merged.db"],
    "export": ["export", "--format", "perfetto", "-d", "FILE", "-o", "out.json"],
    "ask": ["ask", "get_trace_stats", "--db", "FILE"],
    "rates": ["rates", "check", "FILE"],
    "push": "fleet-push --fleet-endpoint http://[::1]:9 --fleet-cluster-id c --replay FILE".split(),
}


def run(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ingero", *arguments],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=os.environ | {"HOME": str(folder)},
        check=False,
    )


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS.keys())
def test_a_pipe_is_refused(command: list[str], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "inputs-00000001.rec")
    words = [word.replace("FILE", "inputs-00000001.rec") for word in command]
    done = run(words, tmp_path)
    assert done.returncode == (3 if words[0] in ("explain", "blame") else 1), done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("name", ["blame", "replay", "query", "merge", "export", "rates"])
def test_a_regular_file_that_never_ends_its_read_is_refused(name: str, tmp_path: Path) -> None:
    """The log of the kernel looks like an empty regular file, and lets its reader wait."""
    log = Path("/proc/kmsg")
    if not log.exists() or not os.access(log, os.R_OK):
        pytest.skip("needs root and /proc/kmsg")
    (tmp_path / "inputs-00000001.rec").symlink_to(log)
    words = [word.replace("FILE", "inputs-00000001.rec") for word in COMMANDS[name]]
    done = run(words, tmp_path)
    assert done.returncode == (3 if words[0] in ("explain", "blame") else 1), done.stderr
    assert "Traceback" not in done.stderr


def test_a_configuration_in_the_folder_that_never_ends_its_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ingero.yaml")
    assert "Traceback" not in run(["status"], tmp_path).stderr
