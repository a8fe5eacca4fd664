"""Unpack gzip files of strangers: the size of the content is bounded by the size of the file."""

import zlib
from pathlib import Path
from typing import Final

from ingero.errors import MalformedInput, TooLarge

# Traces shrink to between a fifth and a fiftieth; zeros shrink to a thousandth.
MAX_RATIO: Final = 100
SMALL_BYTES: Final = 32 << 20  # a content of this size is never too large
MAX_MEMBERS: Final = 100_000
_CHUNK_BYTES: Final = 64 * 1024


def unpack(path: Path, data: bytes, limit: int) -> bytes:
    """Return the content of all members; raise TooLarge when it is out of proportion."""
    limit = min(limit, max(SMALL_BYTES, MAX_RATIO * len(data)))
    plain, at, members = bytearray(), 0, 0
    while at < len(data):
        members += 1
        if members > MAX_MEMBERS:
            raise TooLarge(f"{path}: more than {MAX_MEMBERS} gzip members")
        at = _unpack_member(path, memoryview(data), at, plain, limit)
    return bytes(plain)


def _unpack_member(path: Path, data: memoryview, at: int, plain: bytearray, limit: int) -> int:
    """Append the content of the member at `at`; return where the next one begins."""
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
    while not unpacker.eof:
        packed: bytes | memoryview = unpacker.unconsumed_tail
        if not packed:
            packed = data[at : at + _CHUNK_BYTES]
            at += len(packed)
        if not packed:
            raise MalformedInput(f"{path}: the gzip stream ends early")
        try:
            plain += unpacker.decompress(packed, limit - len(plain) + 1)
        except zlib.error as error:
            raise MalformedInput(f"{path}: broken gzip ({error})") from error
        if len(plain) > limit:
            raise TooLarge(f"{path}: unpacks to more than {limit} bytes")
    return at - len(unpacker.unused_data)
