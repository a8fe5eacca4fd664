"""Stacks for people: native addresses and the Python frames of the same thread, merged where Python called C.

Python frames are read when the record is drained, about 10 ms after the call: of a thread that has
moved on since then, they show where it is now.
"""

from collections.abc import Sequence
from typing import Final

from ingero.agent.processes.discover import program_of
from ingero.agent.stacks.python import PythonFrame, PythonProcess, find_python
from ingero.agent.stacks.symbols import NativeFrame, Symbolizer
from ingero.core.recording.stacks import Frame

_KNOWN_PROCESSES: Final = 256
_INTERPRETER: Final = ("libpython", "python3.")


class StackResolver:
    """Called as `resolver(pid, tid, addresses)`; keeps what it learned about files and interpreters."""

    def __init__(self) -> None:
        self._symbols = Symbolizer()
        self._interpreters: dict[tuple[int, tuple[int, int] | None], PythonProcess | None] = {}
        self._skipped_before = 0  # names, by interpreters forgotten since

    @property
    def skipped_names(self) -> int:
        """Python frames left out because their names could not be read."""
        # at once: a scrape asks from a thread of its own
        interpreters = list(self._interpreters.values())
        return self._skipped_before + sum(one.skipped_names for one in interpreters if one)

    def __call__(self, pid: int, tid: int, addresses: tuple[int, ...]) -> list[Frame]:
        interpreter = self._interpreter(pid)
        native = self._symbols.resolve(pid, addresses)
        return merge_frames(native, interpreter.stack(tid) if interpreter else [])

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
            self._interpreters[key] = find_python(pid)
        return self._interpreters[key]


def merge_frames(native: Sequence[NativeFrame], python: Sequence[PythonFrame]) -> list[Frame]:
    """Python frames stand where the interpreter's own frames begin; at the top where those were not unwound."""
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
