"""Python source frames of a thread, read from outside the process.

Release builds of CPython 3.10 to 3.12 and any 3.13 are supported, current lines included. Nothing
is stopped or injected: memory is read while the interpreter runs. A read that makes no sense ends
the walk, so that a stack is short rather than wrong.
"""

import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ingero.agent.ebpf.loader.elf import ElfFile
from ingero.agent.processes.maps import Region, find_regions, openable
from ingero.agent.stacks.line_tables import line_of, line_of_310
from ingero.errors import IngeroError

MAX_FRAMES: Final = 64
_MAX_THREADS, _MAX_INTERPRETERS, _MAX_TEXT, _MAX_TABLE = 256, 4, 4096, 1 << 16
_MAX_CODES: Final = 4096  # that are remembered
_MAX_FILES: Final = 4  # that are named like an interpreter
_LOWEST, _HIGHEST = 0x10000, 1 << 47
_PYTHON: Final = re.compile(r"/(?:lib)?python3\.([0-9]{1,4})(t?)[^/]*$")
# a variable that only debug builds have, whatever their file name
_DEBUG_BUILD: Final = "_Py_RefTotal"
_SHIM: Final = "<shim>"  # 3.12 marks the border between C and Python with a frame
_DEBUG_COOKIE: Final = b"xdebugpy"
_GLIBC_TID: Final = 0x2D0  # in struct pthread on x86-64, to which pthread_t points
# inside the collector's state, the same in 3.10 to 3.13: three generations with three counts each
_COLLECTING, _COLLECTIONS, _GENERATION, _GENERATIONS = 200, 128, 24, 3
_COMPACT, _ASCII = 1 << 5, 1 << 6


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
_DEBUG_OFFSETS_MINOR: Final = 13


@dataclass(frozen=True, slots=True)
class _Code:
    file: str
    function: str
    first: int
    table: bytes


class _Unreadable(Exception):
    """A read outside the memory of the process, or a value that cannot be right."""


class _NoText(_Unreadable):
    """A name stored in a form that is not supported."""


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

    def remember_code(self) -> None:
        """Keep what is read of code objects, for callers that sample stacks for a few seconds.

        It triples the speed. A freed code object whose address is used again would keep its old
        name, so the memory is dropped by calling this again.
        """
        self._codes = {}

    def stack(self, tid: int) -> list[PythonFrame]:
        """Return the frames of a thread, innermost first; empty without Python or if unreadable."""
        try:
            memory = _Memory(self.pid)
        except OSError:
            return []
        try:
            state = self._thread(memory, tid)
            return self._walk(memory, state) if state else []
        except _Unreadable:
            return []
        finally:
            memory.close()

    def collection(self) -> GarbageCollection | None:
        """Return the state of the garbage collector of the first interpreter."""
        try:
            memory = _Memory(self.pid)
        except OSError:
            return None
        try:
            state = memory.pointer(self._runtime + self._at.head) + self._at.gc
            raw = memory.read(state + _COLLECTIONS, _COLLECTING - _COLLECTIONS + 4)
        except _Unreadable:
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

    def _thread(self, memory: "_Memory", tid: int) -> int | None:
        """Return the thread state of a kernel thread.

        Some builds never store the owner of a state. Then the state belongs to the main thread if
        it is the only one, which requires having read all of them.
        """
        states: list[int] = []
        owner: int | None = None
        interpreter = memory.pointer(self._runtime + self._at.head)
        for _ in range(_MAX_INTERPRETERS):
            state = memory.maybe_pointer(interpreter + self._at.threads)
            while state and len(states) < _MAX_THREADS:
                owner = self._owner(memory, state)
                if owner == tid:
                    return state
                states.append(state)
                state = memory.maybe_pointer(state + self._at.next_thread)
            interpreter = memory.maybe_pointer(interpreter + self._at.next_interpreter)
            if not interpreter:
                is_only = len(states) == 1 and tid == self.pid and not self._has_thread(owner)
                return states[0] if is_only else None
        return None

    def _owner(self, memory: "_Memory", state: int) -> int | None:
        """Return the kernel thread of a state; None where it cannot be read."""
        try:
            if self._at.native_id is not None:
                return memory.word(state + self._at.native_id)
            return memory.integer(memory.pointer(state + self._at.thread_id) + _GLIBC_TID)
        except _Unreadable:
            return None

    def _has_thread(self, tid: int | None) -> bool:
        return bool(tid) and Path(f"/proc/{self.pid}/task/{tid}").exists()

    def _walk(self, memory: "_Memory", state: int) -> list[PythonFrame]:
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
            except _NoText:
                self.skipped_names += 1
            except _Unreadable:
                if (
                    self.minor < 12
                ):  # later versions have a frame without code where C called Python
                    break
            try:
                frame = memory.maybe_pointer(frame + self._at.back)
            except _Unreadable:
                break
        return frames

    def _frame(self, memory: "_Memory", frame: int) -> PythonFrame:
        address = memory.pointer(frame + self._at.code)
        code = self._codes.get(address) if self._codes is not None else None
        if code is None:
            code = self._code(memory, address)
            if self._codes is not None and len(self._codes) < _MAX_CODES:
                self._codes[address] = code
        try:
            line = self._line(memory, frame, address, code)
        except (_Unreadable, IndexError):
            line = None
        return PythonFrame(code.file, code.function, code.first if line is None else line)

    def _code(self, memory: "_Memory", code: int) -> "_Code":
        file = memory.text(memory.pointer(code + self._at.filename), self._at)
        function = memory.text(memory.pointer(code + self._at.name), self._at)
        first = memory.integer(code + self._at.first_line)
        if not file or not function or not 0 <= first < 1 << 24:
            raise _Unreadable
        try:
            table = memory.byte_string(memory.pointer(code + self._at.line_table))
        except _Unreadable:
            table = b""
        return _Code(file, function, first, table)

    def _line(self, memory: "_Memory", frame: int, address: int, code: "_Code") -> int | None:
        if self._at.bytecode is None:
            offset = 2 * memory.integer(frame + self._at.instruction)
            return line_of_310(code.table, code.first, offset)
        instruction = memory.pointer(frame + self._at.instruction)
        return line_of(code.table, code.first, (instruction - address - self._at.bytecode) // 2)


class _Memory:
    """Memory of another process, read in small pieces."""

    def __init__(self, pid: int) -> None:
        self._file = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        os.close(self._file)

    def read(self, address: int, size: int) -> bytes:
        try:
            data = os.pread(self._file, size, address)
        except (OSError, OverflowError, ValueError):
            raise _Unreadable from None
        if len(data) != size:
            raise _Unreadable
        return data

    def word(self, address: int) -> int:
        return int(struct.unpack("<Q", self.read(address, 8))[0])

    def integer(self, address: int) -> int:
        return int(struct.unpack("<i", self.read(address, 4))[0])

    def maybe_pointer(self, address: int) -> int:
        """Return a pointer that may be null."""
        value = self.word(address)
        if value and not _LOWEST <= value < _HIGHEST:
            raise _Unreadable
        return value

    def pointer(self, address: int) -> int:
        value = self.maybe_pointer(address)
        if not value:
            raise _Unreadable
        return value

    def text(self, address: int, at: Offsets) -> str:
        """Return a str object stored in any of its compact forms."""
        header = self.read(address, 40)
        (length,) = struct.unpack_from("<q", header, 16)
        (state,) = struct.unpack_from("<I", header, 32)
        width = state >> 2 & 7
        if width not in (0, 1, 2, 4) or not 0 <= length <= _MAX_TEXT:
            raise _Unreadable
        if not state & _COMPACT or not width:
            raise _NoText
        data = self.read(
            address + (at.ascii_data if state & _ASCII else at.compact_data), length * width
        )
        return data.decode({1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}[width], "replace")

    def byte_string(self, address: int) -> bytes:
        (size,) = struct.unpack("<q", self.read(address + 16, 8))
        if not 0 <= size <= _MAX_TABLE:
            raise _Unreadable
        return self.read(address + 32, size)


def find_python(pid: int) -> PythonProcess | None:
    """Find the interpreter inside a process.

    None without CPython, for an unknown version, and where the process may not be read.
    """
    found: dict[tuple[str, int], tuple[re.Match[str], Region]] = {}  # the first part of each file
    for region in find_regions(pid):
        match = _PYTHON.search(region.path)
        if match is not None and len(found) < _MAX_FILES:
            found.setdefault((region.device, region.inode), (match, region))
    for match, region in sorted(found.values(), key=lambda one: "/libpython" not in one[1].path):
        if match[2]:
            continue  # free-threaded builds have other layouts
        path = openable(pid, region)
        if path is None:
            continue
        try:
            elf = ElfFile(path)
            try:
                symbol = elf.data_symbol("_PyRuntime")
                is_debug = elf.data_symbol(_DEBUG_BUILD) is not None
                base = elf.load_base(region.start, region.offset)
            finally:
                elf.close()
        except (OSError, IngeroError):
            continue
        if symbol is not None and is_debug and int(match[1]) in OFFSETS:
            return None  # the offsets are those of release builds
        if symbol is not None:
            return _open_python(pid, int(match[1]), base + symbol)
    return None


def _open_python(pid: int, minor: int, runtime: int) -> PythonProcess | None:
    offsets = OFFSETS.get(minor)
    if minor == _DEBUG_OFFSETS_MINOR:
        try:
            memory = _Memory(pid)
        except OSError:
            return None
        try:
            offsets = _debug_offsets(memory, runtime)
        except _Unreadable:
            return None
        finally:
            memory.close()
    return PythonProcess(pid, minor, runtime, offsets) if offsets else None


def _debug_offsets(memory: _Memory, runtime: int) -> Offsets | None:
    """Read the offsets that 3.13 stores at the start of its runtime state.

    None when the description is not valid.
    """
    words = struct.unpack("<8s75Q", memory.read(runtime, 8 * 76))
    if words[0] != _DEBUG_COOKIE or words[1] >> 16 != 0x030D or words[2]:
        return None
    return Offsets(
        head=words[5], next_interpreter=words[8], threads=words[9], next_thread=words[21],
        frame=words[23], thread_id=words[24], native_id=words[25], back=words[29], code=words[30],
        instruction=words[31], filename=words[35], name=words[36], line_table=words[38],
        first_line=words[39], bytecode=words[43], gc=words[10],
    )  # fmt: skip
