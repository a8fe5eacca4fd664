"""How long a child process lives: it ends when the process that started it ends."""

import ctypes
import os
import signal
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def end_with_parent(number: int = signal.SIGTERM) -> None:
    """Called in a child: the kernel sends it this signal as soon as its parent has ended."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def follow_parent() -> None:
    """Called in a child: leave Ctrl-C to the parent, which stops its children in order."""
    os.setpgid(0, 0)
    end_with_parent()
