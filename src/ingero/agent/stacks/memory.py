"""Memory of another Python process, read in small pieces while it runs."""

import os
import struct
from typing import Protocol

_MAX_TEXT, _MAX_TABLE = 4096, 1 << 16
_LOWEST, _HIGHEST = 0x10000, 1 << 47
_COMPACT, _ASCII = 1 << 5, 1 << 6


class TextOffsets(Protocol):
    """Where the characters of a str object begin."""

    @property
    def ascii_data(self) -> int: ...

    @property
    def compact_data(self) -> int: ...


class Unreadable(Exception):
    """A read outside the memory of the process, or a value that cannot be right."""


class NoText(Unreadable):
    """A name stored in a form that is not supported."""


class Memory:
    """Memory of another process, read in small pieces."""

    def __init__(self, pid: int) -> None:
        self._file = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        os.close(self._file)

    def read(self, address: int, size: int) -> bytes:
        try:
            data = os.pread(self._file, size, address)
        except (OSError, OverflowError, ValueError):
            raise Unreadable from None
        if len(data) != size:
            raise Unreadable
        return data

    def word(self, address: int) -> int:
        return int(struct.unpack("<Q", self.read(address, 8))[0])

    def integer(self, address: int) -> int:
        return int(struct.unpack("<i", self.read(address, 4))[0])

    def maybe_pointer(self, address: int) -> int:
        """Return a pointer that may be null."""
        value = self.word(address)
        if value and not _LOWEST <= value < _HIGHEST:
            raise Unreadable
        return value

    def pointer(self, address: int) -> int:
        value = self.maybe_pointer(address)
        if not value:
            raise Unreadable
        return value

    def text(self, address: int, at: TextOffsets) -> str:
        """Return a str object stored in any of its compact forms."""
        header = self.read(address, 40)
        (length,) = struct.unpack_from("<q", header, 16)
        (state,) = struct.unpack_from("<I", header, 32)
        width = state >> 2 & 7
        if width not in (0, 1, 2, 4) or not 0 <= length <= _MAX_TEXT:
            raise Unreadable
        if not state & _COMPACT or not width:
            raise NoText
        data = self.read(
            address + (at.ascii_data if state & _ASCII else at.compact_data), length * width
        )
        return data.decode({1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}[width], "replace")

    def byte_string(self, address: int) -> bytes:
        (size,) = struct.unpack("<q", self.read(address + 16, 8))
        if not 0 <= size <= _MAX_TABLE:
            raise Unreadable
        return self.read(address + 32, size)
