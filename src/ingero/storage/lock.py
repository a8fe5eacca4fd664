"""One owner per database: a lock file beside it, held as long as the owner lives, with the owner's pid inside."""

import fcntl
import os
from pathlib import Path

from ingero.errors import StoreError, StoreLocked


class Ownership:
    """Held until `release` or the end of the process; a crash releases it too."""

    def __init__(self, database: Path) -> None:
        path = database.with_name(database.name + ".lock")
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error.strerror}") from None
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip()
            os.close(self._fd)
            raise StoreLocked(database, int(owner) if owner.isdigit() else None) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let the next owner in."""
        os.close(self._fd)
