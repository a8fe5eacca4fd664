"""What the process of one trial may use, measured so that other work on the machine is no limit."""

import ctypes
import os
import resource
import signal
from contextlib import suppress
from pathlib import Path

HUNG = 3  # the exit status of a trial in which nothing happens any more
_MOST_MEMORY = 6 << 30
_LOOK_S = 30.0
_IDLE = 0.02  # of that time; a trial that is busy or waits for a processor does so for more
_CLONE_NEWNS, _MS_REC, _MS_PRIVATE = 0x20000, 1 << 14, 1 << 18


def silence(folder: Path) -> None:
    """Make this process the first of a group that prints nothing and has a limit of memory."""
    os.setsid()
    keep_mounts_private()
    folder.mkdir()
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def keep_mounts_private() -> None:
    """Let what tests mount end with this process, which may end in the middle of a test."""
    libc = ctypes.CDLL(None)
    if os.geteuid() == 0 and libc.unshare(_CLONE_NEWNS) == 0:
        libc.mount(None, b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None)


def limit(usual_s: float, look_s: float = _LOOK_S) -> None:
    """End this process if a test needs far more of a processor than usual, or hangs.

    A test hangs where no process of the trial runs or waits for a processor, from one look to the
    next. A clock alone would take a starved trial for a hanging one.
    """
    most_s = 2 + 5 * usual_s
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, most_s)
    before: dict[str, tuple[float, float]] = {}

    def look(*_: object) -> None:
        nonlocal before
        now, own = _activity(), {path.name for path in Path("/proc/self/task").iterdir()}
        is_idle = now.keys() == before.keys() and all(
            sum(now[thread]) - sum(before[thread]) < _IDLE * look_s for thread in now
        )
        others_s = sum(used_s for thread, (used_s, _) in now.items() if thread not in own)
        if is_idle or others_s > most_s:
            os._exit(HUNG)
        before = now

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, look_s, look_s)


def _activity() -> dict[str, tuple[float, float]]:
    """Return for how long each thread of this session has run, and waited for a processor."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # a process that has just ended
            if os.getsid(int(folder.name)) == os.getpid():
                for file in folder.glob("task/*/schedstat"):
                    used_ns, waited_ns, _ = file.read_text().split()
                    found[file.parent.name] = (int(used_ns) / 1e9, int(waited_ns) / 1e9)
    return found
