"""Samples of the late thread of a rank: its state, its Python frames and the threads beside it.

Nothing is stopped or signalled: states come from /proc, and frames are read from memory while the
interpreter runs.
"""

from dataclasses import dataclass
from typing import Final

from ingero.agent.causes.threads import children_of, comm_of, see_thread, thread_ids
from ingero.agent.stacks.interpreters import find_python, read_python
from ingero.agent.stacks.python import GarbageCollection, PythonProcess
from ingero.core.causes.profile import Doing, Frame, Other, Sample
from ingero.errors import Unavailable

MAX_OTHERS: Final = 6  # threads and workers that are seen beside the late thread
MAX_WORKERS: Final = 3


@dataclass(frozen=True, slots=True)
class _Beside:
    process: PythonProcess
    tid: int
    name: str


class ThreadSampler:
    """Samples the main thread of one process."""

    def __init__(self, pid: int, *, with_others: bool) -> None:
        self.pid = pid
        self.problem = ""  # why no Python frames are seen
        self._python: PythonProcess | None = None
        try:
            self._python = read_python(pid)
        except Unavailable as error:
            self.problem = str(error)
        self._beside: list[_Beside] = []
        if self._python is not None:
            self._python.remember_code()
            if with_others:
                self._beside = self._threads(self._python) + self._workers()

    def collection(self) -> GarbageCollection | None:
        """Return the state of the garbage collector; None where it cannot be read."""
        return self._python.collection() if self._python else None

    def sample(self) -> Sample | None:
        """Return what the thread does now; None when the process is gone."""
        seen = see_thread(self.pid, self.pid)
        if seen is None:
            return None
        frames = self._frames(self._python, self.pid)
        collection = self.collection()
        doing = seen.doing
        # Waits for the interpreter lock end by themselves after 5 ms; those for a lock with a
        # timeout are in a module of the standard library.
        if doing is Doing.LOCK and seen.is_timed and frames and not frames[0].is_standard:
            doing = Doing.INTERPRETER
        others = () if doing is Doing.RUNS else tuple(self._others())
        return Sample(doing, frames, bool(collection and collection.is_collecting), others)

    def _others(self) -> list[Other]:
        found = []
        for one in self._beside:
            seen = see_thread(one.process.pid, one.tid)
            frames = self._frames(one.process, one.tid) if seen else ()
            if seen is not None and frames:
                found.append(Other(one.name, seen.doing, frames))
        return found

    def _threads(self, python: PythonProcess) -> list[_Beside]:
        """Return the other threads of the process that run Python."""
        own = comm_of(self.pid)
        found: list[_Beside] = []
        for tid in thread_ids(self.pid):
            if tid != self.pid and len(found) < MAX_OTHERS and python.stack(tid):
                name = comm_of(self.pid, tid)
                text = f"thread `{name}`" if name and name != own else "another thread"
                found.append(_Beside(python, tid, text))
        return found

    def _workers(self) -> list[_Beside]:
        found = []
        for pid in children_of(self.pid)[:MAX_WORKERS]:
            python = find_python(pid)
            if python is not None:
                python.remember_code()
                found.append(_Beside(python, pid, "a worker process"))
        return found

    @staticmethod
    def _frames(python: PythonProcess | None, tid: int) -> tuple[Frame, ...]:
        if python is None:
            return ()
        return tuple(Frame(one.file, one.function, one.line) for one in python.stack(tid))
