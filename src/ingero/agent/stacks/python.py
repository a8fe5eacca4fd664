"""Python source frames of a thread, read from outside the process.

Release builds of CPython 3.10 to 3.12 and any 3.13 are supported, current lines included. Nothing
is stopped or injected: memory is read while the interpreter runs. A read that makes no sense ends
the walk, so that a stack is short rather than wrong.
"""

import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ingero.agent.stacks.line_tables import line_of, line_of_310
from ingero.agent.stacks.memory import Memory, NoText, Unreadable

MAX_FRAMES: Final = 64
_MAX_THREADS, _MAX_INTERPRETERS = 256, 4
_MAX_CODES: Final = 4096  # that are remembered
_NUMBERS: Final = re.compile(rb"^NSpid:([\t0-9]+)$", re.MULTILINE)
_SHIM: Final = "<shim>"  # 3.12 marks the border between C and Python with a frame
_GLIBC_TID: Final = 0x2D0  # in struct pthread on x86-64, to which pthread_t points
# inside the collector's state, the same in 3.10 to 3.13: three generations with three counts each
_COLLECTING, _COLLECTIONS, _GENERATION, _GENERATIONS = 200, 128, 24, 3


@dataclass(frozen=True, slots=True)
class PythonFrame:
    """One Python frame.

    `line` is the line being executed, or that of the definition where it could not be read.
    """

    file: str
    function: str
    line: int


@dataclass(frozen=True, slots=True)
class GarbageCollection:
    """Whether an interpreter collects garbage now, and how often it did so far.

    `full` counts collections of the oldest generation, which look at every object.
    """

    is_collecting: bool
    collections: int
    full: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Offsets:
    """Offsets of one CPython version, in bytes.

    `frame_hop` is the extra indirection of 3.11 and 3.12.
    """

    head: int
    threads: int
    next_interpreter: int
    next_thread: int = 8
    thread_id: int
    native_id: int | None
    frame: int
    frame_hop: int | None = None
    code: int
    back: int
    instruction: int
    filename: int = 112
    name: int = 120
    first_line: int = 68
    line_table: int = 136
    bytecode: int | None
    gc: int
    ascii_data: int = 40
    compact_data: int = 56


# from the headers of release builds on 64-bit machines; 3.13 is read from the process itself
OFFSETS: Final = {
    10: Offsets(
        head=32, threads=8, next_interpreter=0, thread_id=176, native_id=None, frame=24, code=32,
        back=24, instruction=96, filename=104, name=112, first_line=40, line_table=120,
        bytecode=None, gc=616, ascii_data=48, compact_data=72,
    ),
    11: Offsets(
        head=40, threads=16, next_interpreter=0, thread_id=152, native_id=160, frame=56,
        frame_hop=8, code=32, back=48, instruction=56, first_line=72, bytecode=184, gc=648,
        ascii_data=48, compact_data=72,
    ),
    12: Offsets(
        head=40, threads=72, next_interpreter=0, thread_id=136, native_id=144, frame=56,
        frame_hop=0, code=0, back=8, instruction=56, bytecode=192, gc=112,
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Code:
    file: str
    function: str
    first: int
    table: bytes


class PythonProcess:
    """A running interpreter. `stack` reads one thread.

    `skipped_names` counts frames that were left out because their file or function name is not
    stored as plain characters.
    """

    def __init__(self, pid: int, minor: int, runtime: int, offsets: Offsets) -> None:
        self.pid, self.minor, self.skipped_names = pid, minor, 0
        self._runtime, self._at = runtime, offsets
        # names and line tables by address; None: read anew for each frame
        self._codes: dict[int, _Code] | None = None
        self._is_inside = len(_numbers(pid, pid)) > 1

    def remember_code(self) -> None:
        """Keep what is read of code objects, for callers that sample stacks for a few seconds.

        It triples the speed. A freed code object whose address is used again would keep its old
        name, so the memory is dropped by calling this again.
        """
        self._codes = {}

    def stack(self, tid: int) -> list[PythonFrame]:
        """Return the frames of a thread, innermost first; empty without Python or if unreadable."""
        try:
            memory = Memory(self.pid)
        except OSError:
            return []
        try:
            state = self._thread(memory, tid)
            return self._walk(memory, state) if state else []
        except Unreadable:
            return []
        finally:
            memory.close()

    def collection(self) -> GarbageCollection | None:
        """Return the state of the garbage collector of the first interpreter."""
        try:
            memory = Memory(self.pid)
        except OSError:
            return None
        try:
            state = memory.pointer(self._runtime + self._at.head) + self._at.gc
            raw = memory.read(state + _COLLECTIONS, _COLLECTING - _COLLECTIONS + 4)
        except Unreadable:
            return None
        finally:
            memory.close()
        counts = [
            struct.unpack_from("<q", raw, _GENERATION * index)[0] for index in range(_GENERATIONS)
        ]
        (flag,) = struct.unpack_from("<i", raw, _COLLECTING - _COLLECTIONS)
        if flag not in (0, 1) or min(counts) < 0:
            return None  # another layout than the offsets say
        return GarbageCollection(bool(flag), sum(counts), counts[-1])

    def _thread(self, memory: Memory, tid: int) -> int | None:
        """Return the thread state of a kernel thread.

        In a container, a thread has another number for itself than for us. Some builds never store
        the owner of a state. Then the state belongs to the main thread if it is the only one, which
        requires having read all of them.
        """
        wanted = self._number_inside(tid)
        states: list[int] = []
        owner: int | None = None
        interpreter = memory.pointer(self._runtime + self._at.head)
        for _ in range(_MAX_INTERPRETERS):
            state = memory.maybe_pointer(interpreter + self._at.threads)
            while state and len(states) < _MAX_THREADS:
                owner = self._owner(memory, state)
                if owner == wanted:
                    return state
                states.append(state)
                state = memory.maybe_pointer(state + self._at.next_thread)
            interpreter = memory.maybe_pointer(interpreter + self._at.next_interpreter)
            if not interpreter:
                is_only = len(states) == 1 and tid == self.pid and not self._has_thread(owner)
                return states[0] if is_only else None
        return None

    def _owner(self, memory: Memory, state: int) -> int | None:
        """Return the kernel thread of a state; None where it cannot be read."""
        try:
            if self._at.native_id is not None:
                return memory.word(state + self._at.native_id)
            return memory.integer(memory.pointer(state + self._at.thread_id) + _GLIBC_TID)
        except Unreadable:
            return None

    def _has_thread(self, owner: int | None) -> bool:
        try:
            tids = [int(each.name) for each in Path(f"/proc/{self.pid}/task").iterdir()]
        except OSError:  # the process has ended
            return False
        return any(self._number_inside(tid) == owner for tid in tids)

    def _number_inside(self, tid: int) -> int:
        return (_numbers(self.pid, tid) or [tid])[-1] if self._is_inside else tid

    def _walk(self, memory: Memory, state: int) -> list[PythonFrame]:
        frame = memory.maybe_pointer(state + self._at.frame)
        if frame and self._at.frame_hop is not None:
            frame = memory.maybe_pointer(frame + self._at.frame_hop)
        frames: list[PythonFrame] = []
        for _ in range(2 * MAX_FRAMES):  # entry stubs between frames are not counted
            if not frame or len(frames) >= MAX_FRAMES:
                break
            try:
                found = self._frame(memory, frame)
                if found.file != _SHIM:
                    frames.append(found)
            except NoText:
                self.skipped_names += 1
            except Unreadable:
                # later versions have a frame without code where C called Python
                if self.minor < 12:
                    break
            try:
                frame = memory.maybe_pointer(frame + self._at.back)
            except Unreadable:
                break
        return frames

    def _frame(self, memory: Memory, frame: int) -> PythonFrame:
        address = memory.pointer(frame + self._at.code)
        code = self._codes.get(address) if self._codes is not None else None
        if code is None:
            code = self._code(memory, address)
            if self._codes is not None and len(self._codes) < _MAX_CODES:
                self._codes[address] = code
        try:
            line = self._line(memory, frame, address, code)
        except (Unreadable, IndexError):
            line = None
        return PythonFrame(code.file, code.function, code.first if line is None else line)

    def _code(self, memory: Memory, code: int) -> "_Code":
        file = memory.text(memory.pointer(code + self._at.filename), self._at)
        function = memory.text(memory.pointer(code + self._at.name), self._at)
        first = memory.integer(code + self._at.first_line)
        if not file or not function or not 0 <= first < 1 << 24:
            raise Unreadable
        try:
            table = memory.byte_string(memory.pointer(code + self._at.line_table))
        except Unreadable:
            table = b""
        return _Code(file, function, first, table)

    def _line(self, memory: Memory, frame: int, address: int, code: "_Code") -> int | None:
        if self._at.bytecode is None:
            offset = 2 * memory.integer(frame + self._at.instruction)
            return line_of_310(code.table, code.first, offset)
        instruction = memory.pointer(frame + self._at.instruction)
        return line_of(code.table, code.first, (instruction - address - self._at.bytecode) // 2)


def _numbers(pid: int, tid: int) -> list[int]:
    """Return the numbers of a thread, from our process namespace to its own."""
    try:
        found = _NUMBERS.search(Path(f"/proc/{pid}/task/{tid}/status").read_bytes())
    except OSError:
        return []
    return [int(number) for number in found[1].split()] if found else []
