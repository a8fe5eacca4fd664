"""Child processes of a command: how they are started and stopped."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ingero.children.lifetime import follow_parent
from ingero.files import open_own

STOP_TIMEOUT_S: Final = 30.0


def module_command(module: str, *arguments: str) -> list[str]:
    """The command line that runs a module with the Python of this process.

    With -P, a module in the working folder, which may be a stranger's, is not imported.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


def following_command(module: str, *arguments: str) -> list[str]:
    """The same, for a child that must not outlive this process, even if this one is killed.

    The kernel ends such a child together with the thread that started it.
    """
    return module_command("ingero.children.follow", str(os.getpid()), module, *arguments)


def start_child(
    command: list[str],
    *,
    output: Path | None = None,
    errors: Path | None = None,
    takes_input: bool = False,
    follows_parent: bool = False,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[str]:
    """Start a child that appends its output and errors to these files.

    Without a file for the output, the caller reads it from `stdout`; without a file for the errors,
    they go where those of this process go. With `takes_input` the caller writes to `stdin`.
    `follows_parent` must not be used once this process has threads.
    """
    log = open_own(errors, append=True) if errors else None
    out = open_own(output, append=True) if output else None
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE if takes_input else None,
            stdout=out or subprocess.PIPE,
            stderr=log,
            env=environment,
            text=True,
            preexec_fn=follow_parent if follows_parent else None,  # noqa: PLW1509 - see docstring
        )
    finally:
        for file in (log, out):
            if file is not None:
                file.close()


def stop_children(*processes: subprocess.Popen[str], timeout_s: float = STOP_TIMEOUT_S) -> None:
    """Send SIGTERM to all, wait for each, and kill those that have not ended after the timeout."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    for process in processes:
        try:
            process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def wait_for_line(process: subprocess.Popen[str]) -> str:
    """The next line that a child prints, without its end; empty when the child has ended."""
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def last_line(log_file: Path, otherwise: str) -> str:
    """The last line of a child's log, which is usually the reason why it ended."""
    lines = log_file.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else otherwise
