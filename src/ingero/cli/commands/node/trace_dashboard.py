"""`ingero trace --dashboard`: the dashboard of a recording, in a process of its own."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from ingero.children.process import module_command, start_child, stop_children, wait_for_line
from ingero.errors import Unavailable


@contextlib.contextmanager
def dashboard_beside(address: str, db: Path, node: str) -> Iterator[list[str]]:
    """Run `ingero dashboard` as a child process, so that its queries do not delay the recording.

    Yields the two lines it prints: its address and its certificate fingerprint. Raises Unavailable
    when it does not start.
    """
    options = ["--addr", address, "--db", str(db), "--node", node]
    process = start_child(module_command("ingero", "dashboard", *options), follows_parent=True)
    try:
        printed = [wait_for_line(process).strip() for _ in range(2)]
        if not printed[0]:
            raise Unavailable(
                "the dashboard did not start, for the reason above; nothing is recorded without it"
            )
        yield printed
    finally:
        stop_children(process)
