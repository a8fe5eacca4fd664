"""The file that keeps join codes and enrolled nodes, shared by Fleet, replicas and commands.

Every change is made under a lock on what the file holds at that moment, and replaces the file at
once. Readers see that the file is another one, so that a change holds everywhere after a second.
"""

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from ingero.core.enrolment import Enrolment
from ingero.errors import StoreDamaged, StoreError
from ingero.files import FileId, create_private, identity_of, read_regular, replace_file

FILE_NAME: Final = "enrolment.json"
AUDIT_NAME: Final = "audit.log"
MAX_BYTES: Final = 32 << 20
MAX_AUDIT_BYTES: Final = 16 << 20


class EnrolmentFile:
    """The file in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / FILE_NAME
        self._lock = folder / f".{FILE_NAME}.lock"

    def read(self) -> Enrolment:
        """Return what the file holds; raise StoreError or StoreDamaged."""
        try:
            data = read_regular(self.path, MAX_BYTES)
        except FileNotFoundError:
            return Enrolment()
        except OSError as error:
            raise StoreError(f"cannot read {self.path}: {error.strerror}") from None
        try:
            return msgspec.json.decode(data, type=Enrolment)
        except msgspec.DecodeError as error:
            raise StoreDamaged(f"{self.path} cannot be read: {error}") from None

    def identity(self) -> FileId | None:
        """Return what changes with every change of the file."""
        try:
            return identity_of(self.path.stat())
        except OSError:
            return None

    def change(self, decide: Callable[[Enrolment], Enrolment]) -> Enrolment:
        """Replace the file by what `decide` makes of it; nothing changes where it raises."""
        with self._locked():
            before = self.read()
            after = decide(before)
            if after is not before:
                replace_file(self.path, msgspec.json.format(msgspec.json.encode(after), indent=1))
        return after

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            lock = os.open(self._lock, flags, 0o600)
        except OSError as error:
            raise StoreError(f"cannot write to {self.folder}: {error.strerror}") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


class AuditFile:
    """Who was enrolled, refused, revoked or has left: one JSON object per line."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / AUDIT_NAME
        self.failed = 0

    def add(self, entry: dict[str, object]) -> None:
        """Append an entry; a file that cannot be written is counted."""
        try:
            with contextlib.suppress(FileExistsError):
                create_private(self.path)
            if self.path.stat().st_size > MAX_AUDIT_BYTES:
                self.path.replace(self.path.with_name(f"{AUDIT_NAME}.1"))
                create_private(self.path)
            flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(self.path, flags), "ab") as file:
                file.write(msgspec.json.encode(entry) + b"\n")
        except OSError:
            self.failed += 1
