"""The files that a process has mapped, from /proc/PID/maps, and the identity of each."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

_DELETED: Final = " (deleted)"
FileId = tuple[int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class Region:
    """A part of a file that is mapped into a process.

    `path` is its name in the process; `file` opens exactly the mapped file.
    """

    start: int
    end: int
    is_code: bool
    offset: int
    device: str
    inode: int
    path: str
    file: str


def read_maps(pid: int) -> str:
    """Return the text of /proc/PID/maps; empty when the process is gone or may not be read.

    Bytes that are not UTF-8 are replaced: the paths are only displayed.
    """
    try:
        with open(f"/proc/{pid}/maps", errors="replace") as file:  # noqa: PTH123 - called often
            return file.read()
    except OSError:
        return ""


def parse_regions(pid: int, lines: Iterable[str]) -> Iterator[Region]:
    """Yield the mapped files in lines of /proc/PID/maps, in order of address.

    Memory without a file is left out.
    """
    for line in lines:
        fields = line.split(maxsplit=5)
        if len(fields) < 6 or not fields[5].startswith("/"):
            continue
        start, _, end = fields[0].partition("-")
        yield Region(
            int(start, 16), int(end, 16), "x" in fields[1], int(fields[2], 16), fields[3],
            int(fields[4]),
            fields[5].removesuffix(_DELETED), f"/proc/{pid}/map_files/{fields[0]}",
        )  # fmt: skip


def identify(path: str) -> FileId:
    """Return what identifies the content of a file. Raises OSError.

    An inode number alone is not enough: it is reused soon after its file is deleted, and a
    file may be overwritten in place.
    """
    status = os.stat(path)  # noqa: PTH116 - one call per frame of a stack
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
