"""Atomic and private writes: a file has its old content or all of its new content."""

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from ingero.errors import StoreError

PRIVATE = 0o600  # read and written by its owner only


def replace_file(path: Path, data: bytes, new_mode: int = PRIVATE) -> None:
    """Write `data` to `path` atomically; raise StoreError on failure.

    An existing file keeps its permissions, a new one gets `new_mode`.
    """
    try:
        mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else new_mode
        with replacing(path, mode) as file:
            file.write(data)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}") from None


@contextlib.contextmanager
def replacing(path: Path, mode: int = PRIVATE) -> Iterator[IO[bytes]]:
    """Yield a file beside `path` that takes its place at the end of the block.

    When the block or the disk fails (OSError), `path` keeps its content and nothing else is left.
    """
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            os.fchmod(file.fileno(), mode)
        publish_file(Path(temporary), path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise


def publish_file(temporary: Path, path: Path) -> None:
    """Give a complete file its name, so that content and name survive a power cut."""
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(path.parent)


def create_private(path: Path, data: bytes = b"") -> None:
    """Create `path` for its owner only; raise FileExistsError for a file or a link of that name."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, PRIVATE), "wb") as file:
        file.write(data)


def sync_directory(directory: Path) -> None:
    """Make renames in `directory` survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
