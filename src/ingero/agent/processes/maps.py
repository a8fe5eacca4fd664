"""The files that a process has mapped, from /proc/PID/maps, and the identity of each."""

import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from ingero.files import FileId, identity_of

_DELETED: Final = " (deleted)"
# a process may have 65,000 mappings with names of 4096 bytes each
MAX_MAPS_BYTES: Final = 16 << 20
_LINE: Final = re.compile(
    r"(?P<start>[0-9a-f]{1,16})-(?P<end>[0-9a-f]{1,16}) (?P<access>[a-z-]{4}) "
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

    @property
    def key(self) -> tuple[str, int]:
        return self.device, self.inode


class MappedFile(Protocol):
    """A file inside a process; `key` is its device and inode."""

    @property
    def path(self) -> str: ...

    @property
    def file(self) -> str: ...

    @property
    def key(self) -> tuple[str, int]: ...


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
        start, end = int(found["start"], 16), int(found["end"], 16)
        # the kernel pads low addresses with zeros in `maps`, and refuses such names in `map_files`
        file = f"/proc/{pid}/map_files/{start:x}-{end:x}"
        yield Region(
            start, end, "x" in found["access"], int(found["offset"], 16), found["device"],
            int(found["inode"]), found["path"].removesuffix(_DELETED), file,
        )  # fmt: skip


def openable(pid: int, mapped: MappedFile) -> str | None:
    """Return a path that opens exactly the mapped file, or None.

    `map_files` needs CAP_CHECKPOINT_RESTORE; without it the file is opened by its name in the
    process. A name that now holds another file, or anything but a regular file, is never used.
    """
    for path in (mapped.file, f"/proc/{pid}/root{mapped.path}"):
        try:
            status = os.stat(path)  # noqa: PTH116 - one call
        except (OSError, ValueError):
            continue
        is_mapped = path == mapped.file or key_of(status) == mapped.key
        if is_mapped and stat.S_ISREG(status.st_mode):
            return path
    return None


def key_of(status: os.stat_result) -> tuple[str, int]:
    """Return device and inode as /proc/PID/maps shows them."""
    return f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}", status.st_ino


def identify(path: str) -> FileId:
    """Return what identifies the content of a file. Raises OSError."""
    return identity_of(os.stat(path))  # noqa: PTH116 - one call per frame of a stack
