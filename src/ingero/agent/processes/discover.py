"""Processes and the CUDA and NCCL libraries that they have mapped.

Only what a process maps counts, never what a search path offers. Copies in virtual environments and
containers, deleted and replaced files are all opened through /proc/PID/map_files, which is the
mapped file itself.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ingero.agent.processes.maps import key_of, parse_regions, read_maps

_LIBRARIES: Final = re.compile(
    r"/(?:(?P<cudart>libcudart(?:-[0-9a-f]+)?\.so)|(?P<cuda>libcuda\.so)|(?P<nccl>libnccl\.so)"
    r"|(?P<torch>libtorch_cuda\.so))[^/]*$"
)
MAX_LIBRARIES: Final = 16  # files per process: each is read and probed
_SECCOMP_FILTER: Final = re.compile(rb"^Seccomp:\s*2$", re.MULTILINE)
_REAL_UID: Final = re.compile(rb"^Uid:\s*(\d+)", re.MULTILINE)
_RETURN_BY_SYSCALL: Final = re.compile(r"6\.1[123](\D|$)")
# fields of /proc/PID/stat, counted after the closing parenthesis of the name
_START_TIME_FIELD, _STACK_FIELD = (
    19,
    25,
)


class Library(StrEnum):
    """The libraries whose functions are probed."""

    CUDART = "libcudart"
    CUDA = "libcuda"
    NCCL = "libnccl"


@dataclass(frozen=True, slots=True)
class MappedLibrary:
    """A library inside a process.

    `path` is its name in the process; `file` opens exactly the mapped file.
    """

    library: Library
    path: str
    file: str
    device: str
    inode: int

    @property
    def key(self) -> tuple[str, int]:
        return self.device, self.inode


def process_ids(proc: str = "/proc") -> Iterator[int]:
    """Yield every process, without threads."""
    for entry in os.listdir(proc):  # noqa: PTH208 - thousands of names, no Path objects wanted
        if entry.isdecimal():
            yield int(entry)


def start_time(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None when it is gone.

    Pid and start time together identify one process.
    """
    fields = _stat(pid)
    return int(fields[_START_TIME_FIELD]) if fields else None


def running_since(pid: int) -> int | None:
    """Return the start time of a process that runs; None for zombies too."""
    fields = _stat(pid)
    return int(fields[_START_TIME_FIELD]) if fields and fields[0] not in (b"Z", b"X") else None


def program_of(pid: int) -> tuple[int, int] | None:
    """Return what identifies the program of a pid; None when it is gone.

    exec changes where the stack begins, but not when the process started.
    """
    fields = _stat(pid)
    return (int(fields[_START_TIME_FIELD]), int(fields[_STACK_FIELD])) if fields else None


def _stat(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - called for every process
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def parent_of(pid: int) -> int | None:
    """Return the parent of a process; None when it is gone."""
    fields = _stat(pid)
    return int(fields[1]) if fields else None


def mapped_pages(pid: int) -> int | None:
    """Return the mapped pages of a process; None when it is gone.

    The number changes when a library is loaded.
    """
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:  # noqa: PTH123 - called for every process
            return int(file.read().split()[0])
    except (OSError, IndexError):
        return None


def owner_uid(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}").st_uid  # noqa: PTH116 - called for every process
    except OSError:
        return None


def user_of(pid: int) -> int:
    """Return the real user of a process, and root's number when it is gone.

    /proc/PID belongs to root where a process has made itself undumpable.
    """
    try:
        with open(f"/proc/{pid}/status", "rb") as file:  # noqa: PTH123 - a kernel file
            found = _REAL_UID.search(file.read())
    except OSError:
        return 0
    return int(found[1]) if found else 0


def returns_are_safe(pid: int) -> bool:
    """Return whether return probes are safe.

    Kernels 6.11 to 6.13 return through a system call, and a seccomp filter may kill for it.
    """
    if not _RETURN_BY_SYSCALL.match(os.uname().release):
        return True
    try:
        # as bytes: in text, a carriage return in the name of the process would begin a line
        with open(f"/proc/{pid}/status", "rb") as file:  # noqa: PTH123 - a kernel file
            return not _SECCOMP_FILTER.search(file.read())
    except OSError:
        return True


def mapped_libraries(pid: int) -> list[MappedLibrary]:
    """Return the traceable libraries of a process, each file once.

    The list is empty when the process is gone or may not be read.
    """
    return find_libraries(pid, read_maps(pid))


def find_libraries(pid: int, text: str) -> list[MappedLibrary]:
    """Find libraries in the text of /proc/PID/maps, of which only a few lines concern them."""
    if "libcuda" not in text and "libnccl" not in text:
        return []
    wanted = (
        line
        for line in text.split("\n")
        if "/libcuda" in line or "/libnccl" in line or "/libtorch_cuda" in line
    )
    found: dict[tuple[str, int], MappedLibrary] = {}
    for region in parse_regions(pid, wanted):
        match = _LIBRARIES.search(region.path)
        if match is not None and len(found) < MAX_LIBRARIES:
            key = region.device, region.inode
            found.setdefault(
                key, MappedLibrary(_KINDS[match.lastgroup or ""], region.path, region.file, *key)
            )
    return _without_doubles(pid, list(found.values()))


_KINDS: Final = {
    "cudart": Library.CUDART,
    "cuda": Library.CUDA,
    "nccl": Library.NCCL,
    "torch": Library.NCCL,  # some builds contain NCCL
}


def _without_doubles(pid: int, found: list[MappedLibrary]) -> list[MappedLibrary]:
    """Drop duplicates.

    NCCL inside PyTorch counts only where no libnccl is mapped, a static CUDA runtime only where no
    libcudart is.
    """
    if any(one.library is Library.NCCL and "/libnccl" in one.path for one in found):
        found = [one for one in found if "/libtorch_cuda" not in one.path]
    has_driver = any(one.library is Library.CUDA for one in found)
    if has_driver and not any(one.library is Library.CUDART for one in found):
        exe = f"/proc/{pid}/exe"
        try:
            status, path = os.stat(exe), os.readlink(exe)  # noqa: PTH115, PTH116 - one call each
        except OSError:
            return found
        found.append(MappedLibrary(Library.CUDART, path, exe, *key_of(status)))
    return found
