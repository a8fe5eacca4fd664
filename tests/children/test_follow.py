"""A child that follows its parent ends even when the parent is killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.support.waiting import PATIENCE_S

from ingero.children.process import following_command, start_child, stop_children, wait_for_line

PARENT = """
import sys
from ingero.children.process import following_command, start_child
child = start_child(following_command("http.server", "--bind", "127.0.0.1", "0"))
print(child.pid, flush=True)
sys.stdin.read()
"""


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_a_child_ends_with_a_parent_that_is_killed() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    os.kill(parent.pid, signal.SIGKILL)
    parent.communicate()
    until = time.monotonic() + PATIENCE_S
    while _is_running(child):
        assert time.monotonic() < until, "the child outlived its parent"
        time.sleep(0.01)


def test_a_child_of_a_parent_that_is_gone_does_not_start() -> None:
    words = following_command("http.server", "0")
    words[words.index(str(os.getpid()))] = "1"
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "the process that started this one has ended\n")


def test_the_module_gets_its_own_arguments() -> None:
    child = start_child(following_command("base64", "-h"))
    assert "usage" in wait_for_line(child)
    stop_children(child)
