"""Resolved stacks: native frames and the Python frames of the same thread, merged.

Python frames are read when the record is drained, about 10 ms after the call. If the thread has
moved on, they show where it is now.
"""

import time
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from ingero.agent.processes.discover import program_of, user_of
from ingero.agent.processes.patience import Patience
from ingero.agent.stacks.interpreters import find_python
from ingero.agent.stacks.python import PythonFrame, PythonProcess
from ingero.agent.stacks.symbols import NativeFrame, Symbolizer
from ingero.core.recording.stacks import Frame
from ingero.errors import Unavailable

_KNOWN_PROCESSES: Final = 256
T = TypeVar("T")
_INTERPRETER: Final = ("libpython", "python3.")


class StackResolver:
    """Called as `resolver(pid, tid, addresses)`; caches files and interpreters."""

    def __init__(self) -> None:
        self._symbols = Symbolizer()
        self._patience = Patience()
        self._interpreters: dict[tuple[int, tuple[int, int] | None], PythonProcess | None] = {}
        self._skipped_before = 0  # names skipped by interpreters that were evicted

    @property
    def skipped_names(self) -> int:
        """Python frames left out because their names could not be read."""
        # copied at once: a scrape runs in its own thread
        interpreters = list(self._interpreters.values())
        return self._skipped_before + sum(one.skipped_names for one in interpreters if one)

    @property
    def refused(self) -> dict[str, int]:
        """What was not read of processes, by reason.

        `file` are damaged or oversized files, `cpu` is CPU time used up, and `memory` is memory
        that did not answer.
        """
        return {
            "file": self._symbols.refused_files,
            "cpu": self._symbols.cpu.refusals,
            "memory": self._patience.unanswered + self._patience.refusals,
        }

    def __call__(self, pid: int, tid: int, addresses: tuple[int, ...]) -> list[Frame]:
        interpreter = self._interpreter(pid)
        native = self._symbols.resolve(pid, addresses)
        return merge_frames(native, self._frames(interpreter, tid) if interpreter else [])

    def _frames(self, interpreter: PythonProcess, tid: int) -> list[PythonFrame]:
        return self._ask(interpreter.pid, lambda: interpreter.stack(tid)) or []

    def _ask(self, pid: int, work: Callable[[], T]) -> T | None:
        """Return what `work` reads of a process, at the expense of its user; None if refused."""
        uid, now_s = user_of(pid), time.monotonic()
        if not self._symbols.cpu.allows(uid, now_s):
            return None
        try:
            found, cpu_s = self._patience.call(uid, work)
        except Unavailable:
            return None
        self._symbols.cpu.spend(uid, cpu_s, now_s)
        return found

    def _interpreter(self, pid: int) -> PythonProcess | None:
        # a pid alone may be another process by now, or run another program
        key = (
            pid,
            program_of(pid),
        )
        if key not in self._interpreters:
            if len(self._interpreters) >= _KNOWN_PROCESSES:
                self._skipped_before = self.skipped_names
                self._interpreters.clear()
            self._symbols.forget(pid)
            # one that was refused is looked for again by the next stack
            found = self._ask(pid, lambda: (find_python(pid),))
            if found is None:
                return None
            self._interpreters[key] = found[0]
        return self._interpreters[key]


def merge_frames(native: Sequence[NativeFrame], python: Sequence[PythonFrame]) -> list[Frame]:
    """Insert Python frames where the frames of the interpreter begin.

    They come first where the interpreter was not unwound.
    """
    source = [
        Frame(py_file=frame.file, py_func=frame.function, py_line=frame.line) for frame in python
    ]
    machine = [
        Frame(ip=frame.address, symbol=frame.text if frame.symbol else "", file=frame.file or "")
        for frame in native
    ]
    border = next((index for index, frame in enumerate(machine) if _is_interpreter(frame)), None)
    if border is None:
        return [*source, *machine]
    return [*machine[:border], *source, *machine[border:]]


def _is_interpreter(frame: Frame) -> bool:
    name = frame.file.rsplit("/", 1)[-1]
    return any(part in name for part in _INTERPRETER)
