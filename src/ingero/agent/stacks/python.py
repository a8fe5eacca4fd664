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
from ingero.agent.processes.maps import Region, find_regions
from ingero.errors import IngeroError

MAX_FRAMES: Final = 64
_MAX_THREADS, _MAX_INTERPRETERS, _MAX_TEXT, _MAX_TABLE = 256, 4, 4096, 1 << 16
_MAX_FILES: Final = 4  # that are named like an interpreter
_LOWEST, _HIGHEST = 0x10000, 1 << 47
_PYTHON: Final = re.compile(r"/(?:lib)?python3\.([0-9]{1,4})(t?)[^/]*$")
# a variable that only debug builds have, whatever their file name
_DEBUG_BUILD: Final = "_Py_RefTotal"
_SHIM: Final = "<shim>"  # 3.12 marks the border between C and Python with a frame
_DEBUG_COOKIE: Final = b"xdebugpy"
_GLIBC_TID: Final = 0x2D0  # in struct pthread on x86-64, to which pthread_t points
_COMPACT, _ASCII = 1 << 5, 1 << 6
_NO_LINE, _LONG, _NO_COLUMN, _ONE_LINE = 15, 14, 13, 10


@dataclass(frozen=True, slots=True)
class PythonFrame:
    """One Python frame.

    `line` is the line being executed, or that of the definition where it could not be read.
    """

    file: str
    function: str
    line: int


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
    ascii_data: int = 40
    compact_data: int = 56


# from the headers of release builds on 64-bit machines; 3.13 is read from the process itself
OFFSETS: Final = {
    10: Offsets(
        head=32, threads=8, next_interpreter=0, thread_id=176, native_id=None, frame=24, code=32,
        back=24, instruction=96, filename=104, name=112, first_line=40, line_table=120,
        bytecode=None, ascii_data=48, compact_data=72,
    ),
    11: Offsets(
        head=40, threads=16, next_interpreter=0, thread_id=152, native_id=160, frame=56,
        frame_hop=8, code=32, back=48, instruction=56, first_line=72, bytecode=184, ascii_data=48,
        compact_data=72,
    ),
    12: Offsets(
        head=40, threads=72, next_interpreter=0, thread_id=136, native_id=144, frame=56,
        frame_hop=0, code=0, back=8, instruction=56, bytecode=192,
    ),
}  # fmt: skip
_DEBUG_OFFSETS_MINOR: Final = 13


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
        code = memory.pointer(frame + self._at.code)
        file = memory.text(memory.pointer(code + self._at.filename), self._at)
        function = memory.text(memory.pointer(code + self._at.name), self._at)
        first = memory.integer(code + self._at.first_line)
        if not file or not function or not 0 <= first < 1 << 24:
            raise _Unreadable
        try:
            line = self._line(memory, frame, code, first)
        except (_Unreadable, IndexError):
            line = None
        return PythonFrame(file, function, first if line is None else line)

    def _line(self, memory: "_Memory", frame: int, code: int, first: int) -> int | None:
        table = memory.byte_string(memory.pointer(code + self._at.line_table))
        if self._at.bytecode is None:
            return line_of_310(table, first, 2 * memory.integer(frame + self._at.instruction))
        instruction = memory.pointer(frame + self._at.instruction)
        return line_of(table, first, (instruction - code - self._at.bytecode) // 2)


def line_of(table: bytes, first: int, unit: int) -> int | None:
    """Return the line of a code unit in the location table of 3.11 and later."""
    line, at, position = first, 0, 0
    while position < len(table):
        head = table[position]
        kind, length = head >> 3 & 15, (head & 7) + 1
        has_line = kind != _NO_LINE
        if kind in (_LONG, _NO_COLUMN):
            line += _signed(table, position + 1)
        elif _ONE_LINE <= kind < _NO_COLUMN:
            line += kind - _ONE_LINE
        if at <= unit < at + length:
            return line if has_line else None
        at += length
        position += 1
        while position < len(table) and not table[position] & 0x80:
            position += 1
    return None


def _signed(table: bytes, at: int) -> int:
    value, shift = 0, 0
    while True:
        byte = table[at]
        value |= (byte & 63) << shift
        shift += 6
        at += 1
        if not byte & 64:
            break
    return -(value >> 1) if value & 1 else value >> 1


def line_of_310(table: bytes, first: int, offset: int) -> int | None:
    """Return the line of a byte offset in the line table of 3.10."""
    line, end = first, 0
    for index in range(0, len(table) - 1, 2):
        start, delta = end, table[index + 1]
        end += table[index]
        known = delta != 0x80
        if known:
            line += delta - 256 if delta > 127 else delta
        if start <= offset < end:
            return line if known else None
    return None


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
        try:
            elf = ElfFile(region.file)
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
        first_line=words[39], bytecode=words[43],
    )  # fmt: skip
