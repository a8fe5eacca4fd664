"""The files that a process has mapped, from /proc/PID/maps, and the identity of each."""

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from ingero.files import FileId, identity_of

_DELETED: Final = " (deleted)"
# a process may have 65,000 mappings with names of 4096 bytes each
MAX_MAPS_BYTES: Final = 16 << 20
_LINE: Final = re.compile(
    r"(?P<range>(?P<start>[0-9a-f]{1,16})-(?P<end>[0-9a-f]{1,16})) (?P<access>[a-z-]{4}) "
    r"(?P<offset>[0-9a-f]{1,16}) (?P<device>[0-9a-f]{1,8}:[0-9a-f]{1,8}) (?P<inode>[0-9]{1,20}) +"
    r"(?P<path>/.*)",
    re.DOTALL,
)


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

    Only a newline ends a line: names may hold every other character that Unicode calls a line
    end, and the kernel escapes newlines in them. Bytes that are not UTF-8 are replaced. Mappings
    after the first 16 MiB of text are left out.
    """
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:  # noqa: PTH123 - called often
            return file.read(MAX_MAPS_BYTES).decode(errors="replace")
    except OSError:
        return ""


def find_regions(pid: int) -> Iterator[Region]:
    """Yield the files that a process has mapped, in order of address."""
    return parse_regions(pid, read_maps(pid).split("\n"))


def parse_regions(pid: int, lines: Iterable[str]) -> Iterator[Region]:
    """Yield the mapped files in lines of /proc/PID/maps, in order of address.

    Memory without a file is left out.
    """
    for line in lines:
        found = _LINE.fullmatch(line)
        if found is None:
            continue
        yield Region(
            int(found["start"], 16), int(found["end"], 16), "x" in found["access"],
            int(found["offset"], 16), found["device"], int(found["inode"]),
            found["path"].removesuffix(_DELETED), f"/proc/{pid}/map_files/{found['range']}",
        )  # fmt: skip


def identify(path: str) -> FileId:
    """Return what identifies the content of a file. Raises OSError."""
    return identity_of(os.stat(path))  # noqa: PTH116 - one call per frame of a stack
