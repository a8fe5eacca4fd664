"""Children of an asyncio program that are copies of it: what it has imported is shared memory."""

import asyncio
import contextlib
import gc
import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from ingero.children.capabilities import keep_capabilities
from ingero.children.lifetime import follow_parent
from ingero.children.memory import return_freed_memory

_FORK: Final = multiprocessing.get_context("fork")
_HANDLED: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)


class Copy:
    """A running child, with the names of `asyncio.subprocess.Process`."""

    def __init__(self, process: multiprocessing.process.BaseProcess) -> None:
        assert process.pid is not None
        self.pid: Final = process.pid
        self._process = process
        self._ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(process.sentinel, self._reap)

    @property
    def returncode(self) -> int | None:
        """How it ended: its status, or the negative number of a signal. None while it runs."""
        return self._process.exitcode if self._ended.is_set() else None

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._process.sentinel)
        self._process.join()
        self._ended.set()

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._process.terminate()

    def kill(self) -> None:
        """Send SIGKILL."""
        self._process.kill()

    async def wait(self) -> int:
        """Return how it ended, once it has."""
        await self._ended.wait()
        assert self._process.exitcode is not None
        return self._process.exitcode


def share_memory() -> None:
    """Called once, before the first copy: keep what exists now out of every later collection.

    A collection writes to every object it visits, and memory that is written to is not shared.
    """
    return_freed_memory()
    gc.freeze()


def start_copy(
    run: Callable[[], int], name: str, kept: Sequence[int], capabilities: Sequence[int]
) -> Copy:
    """Start a child that calls `run`, ends with this process and keeps these capabilities.

    It inherits standard streams and the `kept` descriptors; the exit status is what `run` returns.
    """
    given_up = [number for number in _open_descriptors() if number > 2 and number not in kept]
    parent = os.getpid()
    # A signal must not run a handler of this process in the child: it would be taken for ours.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)

    def begin() -> None:
        signal.set_wakeup_fd(-1)
        for number in _HANDLED:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _give_up(given_up)
        with contextlib.suppress(OSError):  # what `top` and `ps -o comm` show
            Path("/proc/self/comm").write_text(f"ingero-{name}")
        follow_parent()
        keep_capabilities(capabilities)
        if os.getppid() != parent:
            raise SystemExit(1)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        raise SystemExit(run())

    process = _FORK.Process(target=begin, name=name, daemon=True)
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return Copy(process)


def _open_descriptors() -> list[int]:
    numbers = [int(path.name) for path in Path("/proc/self/fd").iterdir()]
    return [number for number in numbers if _is_open(number)]


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:  # the one by which the folder was read
        return False
    return True


def _give_up(descriptors: Sequence[int]) -> None:
    """Close descriptors, and keep their numbers taken: objects of the parent may close them yet."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in descriptors:
        os.dup2(null, number, inheritable=False)
    os.close(null)
