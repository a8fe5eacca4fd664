"""Archives of recordings: tar files, plain or compressed, read in memory and never unpacked."""

import io
import lzma
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ingero.errors import MalformedInput, TooLarge
from ingero.importers.gzip_file import MAX_RATIO, SMALL_BYTES

XZ_MAGIC: Final = b"\xfd7zXZ\x00"
_XZ_MEMORY_BYTES: Final = 80 << 20  # what `xz -9` asks of who unpacks it, and a little more
_TAR_MAGIC_AT: Final = 257
_MAX_MEMBERS: Final = 10_000


def unpack_xz(path: Path, data: bytes, limit: int) -> bytes:
    """Return the content of an xz file; raise TooLarge when it is out of proportion."""
    limit = min(limit, max(SMALL_BYTES, MAX_RATIO * len(data)))
    plain = bytearray()
    while data:
        unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES)
        try:
            plain += unpacker.decompress(data, limit - len(plain) + 1)
        except lzma.LZMAError as error:
            raise MalformedInput(f"{path}: broken xz ({error})") from error
        if len(plain) > limit:
            raise TooLarge(f"{path}: unpacks to more than {limit} bytes")
        if not unpacker.eof:
            raise MalformedInput(f"{path}: the xz stream ends early")
        data = unpacker.unused_data.lstrip(b"\x00")
    return bytes(plain)


def is_tar(data: bytes) -> bool:
    """Tell whether this is a tar file."""
    return data[_TAR_MAGIC_AT : _TAR_MAGIC_AT + 5] == b"ustar"


def read_members(path: Path, data: bytes) -> Iterator[tuple[Path, bytes]]:
    """Yield a path below the archive and the content of each regular file in a tar file.

    Links, devices and sparse files are passed over.
    """
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            for count, member in enumerate(archive):
                if count >= _MAX_MEMBERS:
                    raise TooLarge(f"{path}: more than {_MAX_MEMBERS} files in the archive")
                if not member.isreg() or member.issparse() or member.size > len(data):
                    continue
                content = archive.extractfile(member)
                if content is not None:
                    yield path / (Path(member.name).name or "unnamed"), content.read()
    except (tarfile.TarError, ArithmeticError, ValueError, EOFError) as error:
        raise MalformedInput(f"{path}: broken tar ({error})") from error
