"""Why a file is not read: it is empty, packed in a way that is not read, or of an unknown kind."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ingero.files import regular_stream

MAX_LOOKED_AT: Final = 100  # files whose common reason is looked for
ZIP_MAGIC: Final = b"PK\x03\x04"
PACKED: Final = (
    (b"\x28\xb5\x2f\xfd", "zstd", "zstd -d"),
    (b"BZh", "bzip2", "bunzip2"),
    (b"\x04\x22\x4d\x18", "lz4", "lz4 -d"),
)


def packed_files(paths: Sequence[Path]) -> list[str]:
    """Return a sentence about files in folders that are packed in a way that is not read.

    Zip files are not meant: they are mostly models that PyTorch saved.
    """
    found = [(path, why) for path in paths if (why := _packed(_head(path))) is not None]
    if not found:
        return []
    (path, why), more = found[0], len(found) - 1
    return [f"{path}: {why}" + (f"; {more:,} more, too" if more else "")]


def why_unknown(path: Path) -> str:
    """Return why a file that was asked for is not read."""
    return _reason(path) or "unknown format (see `ingero blame --help`)"


def why_all_unknown(paths: Sequence[Path]) -> str:
    """Return why none of the files in folders is read."""
    if not paths:
        return "there are no files"
    reasons = {_reason(path) for path in paths[:MAX_LOOKED_AT]}
    common = reasons.pop() if len(reasons) == 1 and len(paths) <= MAX_LOOKED_AT else None
    if common is not None:
        return f"{paths[0]}: {common}" + (f"; {len(paths) - 1} more, too" if paths[1:] else "")
    none = "the only file has no" if len(paths) == 1 else f"none of the {len(paths):,} files has a"
    found = f"{none} known format (see `ingero blame --help`)"
    databases = [path for path in paths if path.suffix == ".db"]
    return f"{found}; name a trace database itself: {databases[0]}" if databases else found


def _reason(path: Path) -> str | None:
    head = _head(path)
    if not head:
        return "it is empty"
    if head.startswith(ZIP_MAGIC):
        return "a zip file, which is not read: unpack it first (`unzip`)"
    return _packed(head)


def _packed(head: bytes) -> str | None:
    for magic, name, command in PACKED:
        if head.startswith(magic):
            return f"packed with {name}, which is not read: unpack it first (`{command}`)"
    return None


def _head(path: Path) -> bytes:
    with regular_stream(path) as file:
        return file.read(4)
