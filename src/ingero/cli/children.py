"""Processes that a command starts beside itself, and that end when it does."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from ingero.errors import Unavailable

STOP_S = 30.0
_PR_SET_PDEATHSIG = 1


def leave_with_parent() -> None:
    """In the child: Ctrl-C at the terminal is for us, we pass it on in order; if we are killed, it ends, too."""
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@contextlib.contextmanager
def dashboard_beside(address: str, db: Path, node: str) -> Iterator[list[str]]:
    """The node API in a process of its own: questions must not delay the taking of events. Yields where it listens and
    its fingerprint; raises Unavailable where it does not start."""
    command = [
        sys.executable,
        "-m",
        "ingero",
        "dashboard",
        "--addr",
        address,
        "--db",
        str(db),
        "--node",
        node,
    ]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=leave_with_parent,  # noqa: PLW1509 - a command has no threads before it begins
    )
    assert process.stdout is not None
    try:
        said = [process.stdout.readline().strip() for _ in range(2)]
        if not said[0]:
            raise Unavailable(
                "the dashboard did not start, as said above; nothing is recorded without it"
            )
        yield said
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
