"""Shows the progress of a long command: on a terminal only, after its first second."""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator

QUIET_S = 1.0  # commands that take less print nothing
EVERY_S = 0.2
Show = Callable[[int, int], None]  # what is done, and what there is; 0 where that is not known


class Shown:
    """The progress line; phases of the command set it, and a thread prints it.

    So the line appears in time even while a phase is busy and reports nothing.
    """

    def __init__(self) -> None:
        self._line = ""

    def phase(self, what: str) -> Show:
        """Return the function that a phase reports to; the line is about the last who did."""

        def show(done: int, total: int) -> None:
            share = f"{100 * done // total} %" if total else ""
            self._line = f"{done:,} of {total:,} {what} {share}" if total else f"{done:,} {what}"

        if not self._line:
            show(0, 0)
        return show

    def print_until(self, stop: threading.Event) -> None:
        """Print the line now and then, and remove it at the end."""
        if stop.wait(QUIET_S):
            return
        while True:
            print(f"\r\x1b[K{self._line}", end="", file=sys.stderr, flush=True)
            if stop.wait(EVERY_S):
                break
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


@contextlib.contextmanager
def shown_progress() -> Iterator[Shown]:
    """Yield what the phases of a command report to; nothing is printed without a terminal."""
    shown = Shown()
    if not sys.stderr.isatty():
        yield shown
        return
    stop = threading.Event()
    printer = threading.Thread(target=shown.print_until, args=(stop,), daemon=True)
    printer.start()
    try:
        yield shown
    finally:
        stop.set()
        printer.join()
