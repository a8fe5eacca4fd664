"""How far a long command is, on a terminal only, from its second second on."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

QUIET_S = 1.0  # commands that take less print nothing
EVERY_S = 0.2


@contextlib.contextmanager
def shown_progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that takes what is done and what there is, and prints it now and then."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    due_s = time.monotonic() + QUIET_S
    printed = False

    def show(done: int, total: int) -> None:
        nonlocal due_s, printed
        if time.monotonic() < due_s:
            return
        due_s, printed = time.monotonic() + EVERY_S, True
        share = f"{100 * done // total} %" if total else ""
        line = f"{done:,} of {total:,} {what} {share}" if total else f"{done:,} {what}"
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        if printed:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
