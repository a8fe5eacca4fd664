"""Finds the Python interpreter inside a process, or says why its frames cannot be read.

The interpreter is a library or the program itself, whatever its name: what counts is the symbol
of its runtime state. Its version is read from the process, else from the name of the file.
"""

import os
import re
import struct
from typing import Final

from ingero.agent.ebpf.loader.elf import ElfFile
from ingero.agent.processes.maps import Region, openable, parse_regions, read_maps
from ingero.agent.stacks.memory import Memory, Unreadable
from ingero.agent.stacks.python import OFFSETS, Offsets, PythonProcess
from ingero.errors import IngeroError, Unavailable

_PYTHON: Final = re.compile(r"/(?:lib)?python3\.([0-9]{1,4})(t?)[^/]*$")
_MAX_FILES: Final = 4  # that are named like an interpreter
_RUNTIME, _VERSION = "_PyRuntime", "Py_Version"
# a variable that only debug builds have, whatever their file name
_DEBUG_BUILD: Final = "_Py_RefTotal"
_DEBUG_COOKIE: Final = b"xdebugpy"
_DEBUG_OFFSETS_MINOR: Final = 13
_SUPPORTED: Final = "CPython 3.10 to 3.13 can be read"


def find_python(pid: int) -> PythonProcess | None:
    """Find the interpreter inside a process; None where there is none that can be read."""
    try:
        return read_python(pid)
    except Unavailable:
        return None


def read_python(pid: int) -> PythonProcess:
    """Find the interpreter inside a process. Raises Unavailable with the reason."""
    maps = read_maps(pid)
    if not maps:
        raise Unavailable("its memory map may not be read: this needs root or CAP_SYS_PTRACE")
    problem = "it maps no Python interpreter with symbols"
    for region in _candidates(pid, maps):
        path = openable(pid, region)
        if path is None:
            problem = "its interpreter's file may not be opened"
            continue
        try:
            elf = ElfFile(path)
        except (OSError, IngeroError):
            continue
        try:
            runtime, version = elf.data_symbol(_RUNTIME), elf.data_symbol(_VERSION)
            is_debug = elf.data_symbol(_DEBUG_BUILD) is not None
            base = elf.load_base(region.start, region.offset)
        except (OSError, IngeroError):
            continue
        finally:
            elf.close()
        if runtime is not None:
            at = None if version is None else base + version
            return _open_python(pid, region, base + runtime, at, is_debug=is_debug)
    raise Unavailable(problem)


def _candidates(pid: int, maps: str) -> list[Region]:
    """Return the first part of each file that may be an interpreter: libraries first."""
    try:
        program = os.readlink(f"/proc/{pid}/exe")  # noqa: PTH115 - one call
    except OSError:
        program = ""
    found: dict[tuple[str, int], Region] = {}
    for region in parse_regions(pid, maps.split("\n")):
        is_named = _PYTHON.search(region.path) is not None
        if (is_named and len(found) < _MAX_FILES) or region.path == program:
            found.setdefault(region.key, region)
    return sorted(found.values(), key=lambda one: "/libpython" not in one.path)


def _open_python(
    pid: int, region: Region, runtime: int, version: int | None, *, is_debug: bool
) -> PythonProcess:
    name = _PYTHON.search(region.path)
    if name is not None and name[2]:
        raise Unavailable("its interpreter is a free-threaded build, which has other layouts")
    try:
        memory = Memory(pid)
    except OSError:
        raise Unavailable("its memory may not be read: this needs root or CAP_SYS_PTRACE") from None
    try:
        minor = _minor(memory, version) or (int(name[1]) if name else None)
        is_told = minor == _DEBUG_OFFSETS_MINOR
        offsets = _debug_offsets(memory, runtime) if is_told else OFFSETS.get(minor or 0)
    except Unreadable:
        raise Unavailable("the state of its interpreter cannot be read") from None
    finally:
        memory.close()
    if minor is not None and is_debug and minor in OFFSETS:
        raise Unavailable("its interpreter is a debug build, which has other layouts")
    if minor is None or offsets is None:
        raise Unavailable(f"its interpreter is of another version: {_SUPPORTED}")
    return PythonProcess(pid, minor, runtime, offsets)


def _minor(memory: Memory, version: int | None) -> int | None:
    """Return the minor version as the interpreter itself says it, from 3.11 on."""
    if version is None:
        return None
    number = memory.word(version)
    return number >> 16 & 0xFF if number >> 24 == 3 else None


def _debug_offsets(memory: Memory, runtime: int) -> Offsets | None:
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
