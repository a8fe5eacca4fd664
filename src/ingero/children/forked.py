"""A child process that begins as a copy of this one, with every module that is already loaded."""

import os
import signal
import traceback
from collections.abc import Callable
from typing import NoReturn

from ingero.children.lifetime import end_with_parent


def start_fork(work: Callable[[], None]) -> int:
    """Start a copy of this process that does `work` and ends; return its id."""
    return os.fork() or _run(work)


def _run(work: Callable[[], None]) -> NoReturn:
    """Be the child, and never return to what the parent does."""
    end_with_parent()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        work()
    except BaseException:  # noqa: BLE001 - this process must end here, whatever happened
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
