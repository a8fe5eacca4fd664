"""One writer per database: a lock file beside it that holds the process id of its owner."""

import contextlib
import fcntl
import os
import stat
from pathlib import Path

from ingero.errors import StoreError, StoreLocked
from ingero.files import PRIVATE


class DatabaseLock:
    """The exclusive right to write one database, until `release` or the end of the process.

    The lock is a file of its own: closing a second handle of a SQLite database would drop SQLite's
    own locks on it.
    """

    def __init__(self, database: Path) -> None:
        self.path = database.with_name(database.name + ".lock")
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            self._fd = os.open(self.path, flags, PRIVATE)
        except OSError as error:
            raise StoreError(f"{database} cannot be written: {error.strerror}") from None
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:  # it is emptied below
            os.close(self._fd)
            raise StoreError(f"{database} cannot be written: {self.path} is another file as well")
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip()
            os.close(self._fd)
            raise StoreLocked(database, int(owner) if owner.isdigit() else None) from None
        with contextlib.suppress(OSError):  # the id is only for the message; the disk may be full
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let another process write the database."""
        os.close(self._fd)
