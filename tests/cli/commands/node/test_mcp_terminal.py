"""`ingero mcp` typed at a terminal: it says what it is for, and one Ctrl-C ends it."""

import os
import pty
import select
import signal
import subprocess
import sys
import time

import pytest
from tests.support.waiting import PATIENCE_S


@pytest.mark.parametrize(
    "command", [["ingero", "mcp"], ["ingero.cli.commands.services.echo", "mcp"]], ids=" ".join
)
def test_it_says_what_it_is_for_and_one_interrupt_ends_it(command: list[str]) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", *command], stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    try:
        said, until_s = b"", time.monotonic() + PATIENCE_S
        while b"Ctrl-C ends" not in said and time.monotonic() < until_s:
            if select.select([ours], [], [], 0.1)[0]:
                said += os.read(ours, 4096)
        assert b"serving MCP" in said
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == -signal.SIGINT
    finally:
        process.kill()
        process.wait()
        os.close(ours)
