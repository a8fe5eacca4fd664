"""Replacing a small file: written beside it, synced, renamed; its permissions stay, a new one is its owner's alone."""

import os
import stat
import tempfile
from pathlib import Path

from ingero.errors import StoreError


def replace_file(path: Path, data: bytes) -> None:
    """All of `data` or the old content, never a part."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o600
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
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise StoreError(f"cannot write {path}: {error.strerror}") from None
