"""Replacing a small file: written beside it, synced, renamed; its permissions stay."""

import os
import stat
import tempfile
from pathlib import Path

from ingero.errors import StoreError


def sync_directory(directory: Path) -> None:
    """Make a rename in `directory` survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, data: bytes, new_mode: int = 0o600) -> None:
    """All of `data` or the old content, never a part; a new file is its owner's alone unless `new_mode` says more."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else new_mode
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}") from None
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
        sync_directory(path.parent)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise StoreError(f"cannot write {path}: {error.strerror}") from None
