"""What fuzz targets share: files in memory, patches of a sound file, texts made of words."""

import atexit
import shutil
import struct
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

_PATCH = struct.Struct("<HB")  # position, number of bytes


@cache
def folder() -> Path:
    """Return a folder in memory that is removed at the end of the process."""
    where = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
    path = Path(tempfile.mkdtemp(prefix="ingero-fuzz-", dir=where))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def file_with(data: bytes, name: str = "file") -> Path:
    """Return a file with this content; the next call with the name replaces it."""
    path = folder() / name
    path.write_bytes(data)
    return path


def patched(base: bytes, data: bytes) -> bytes:
    """Return `base` with some bytes replaced: position, number of bytes and the new bytes each."""
    changed = bytearray(base)
    at = 0
    while at + _PATCH.size <= len(data):
        position, size = _PATCH.unpack_from(data, at)
        at += _PATCH.size
        new = data[at : at + size % 17]
        at += size % 17
        position %= max(len(changed), 1)
        changed[position : position + len(new)] = new[: len(changed) - position]
    return bytes(changed)


def worded(data: bytes, words: Sequence[str]) -> str:
    """Return a text in which each byte stands for a word; 255 begins eight bytes taken as text."""
    parts = []
    at = 0
    while at < len(data):
        if data[at] == 255:
            parts.append(data[at + 1 : at + 9].decode("utf-8", "replace"))
            at += 9
        else:
            parts.append(words[data[at] % len(words)])
            at += 1
    return " ".join(parts)
