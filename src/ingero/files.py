"""Files: atomic and private writes, and reading what others made.

A written file has its old content or all of its new content. A file that another user of the
machine may have made is opened only if it is a regular one, and never waited for.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, BinaryIO, Final

from ingero.errors import ForeignFile, StoreError, TooLarge

PRIVATE = 0o600  # read and written by its owner only
_COPIED_AT_ONCE: Final = 1 << 20
FileId = tuple[int, int, int, int, int]
_CREATE: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READ: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_KINDS: Final = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISLNK, "a link"),
)


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
    temporary = str(path.with_name(f".{path.name}.{os.urandom(8).hex()}"))
    descriptor = os.open(temporary, _CREATE, PRIVATE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            os.fchmod(file.fileno(), mode)
        publish_file(Path(temporary), path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise


@contextlib.contextmanager
def replacing_output(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file that takes the place of a file that a user named; raises OSError.

    It gets the permissions that a program would give it. A link is followed, unless somebody else
    made it in a folder that everybody may write to.
    """
    if path.is_symlink():
        folder, link = path.parent.stat(), path.lstat()
        is_shared = folder.st_mode & stat.S_ISVTX and folder.st_mode & stat.S_IWOTH
        if is_shared and link.st_uid not in (os.geteuid(), folder.st_uid):
            raise PermissionError(errno.EPERM, "it is a link of another user", str(path))
    if path.exists():
        mode = stat.S_IMODE(path.stat().st_mode)
    else:
        mask = os.umask(0)
        os.umask(mask)
        mode = 0o666 & ~mask
    with replacing(Path(os.path.realpath(path)), mode) as file:
        yield file


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


def copy_file(source: Path, target: Path) -> None:
    """Copy a regular file in place of `target`, complete or not at all; raises OSError."""
    with regular_stream(source) as old, replacing(target) as new:
        while part := old.read(_COPIED_AT_ONCE):
            new.write(part)


def open_own(path: Path, *, append: bool = False) -> BinaryIO:
    """Open a file of ours for writing, at its end or emptied; raises OSError.

    In a folder that others may write to, the name may already be a link or a pipe of somebody else,
    or a second name of another file. Such a file is neither opened for writing nor changed.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags | (os.O_APPEND if append else 0), PRIVATE)
    try:
        status = os.fstat(descriptor)
        owners = (os.geteuid(), path.parent.stat().st_uid)
        is_ours = status.st_uid in owners and status.st_nlink == 1
        if not stat.S_ISREG(status.st_mode) or not is_ours:
            raise PermissionError(errno.EPERM, "another file has this name", str(path))
        if not append:
            os.ftruncate(descriptor, 0)
        return os.fdopen(descriptor, "ab" if append else "wb")
    except BaseException:
        os.close(descriptor)
        raise


def sync_directory(directory: Path) -> None:
    """Make renames in `directory` survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def identity_of(status: os.stat_result) -> FileId:
    """Return what identifies the content of a file.

    An inode number alone is not enough: it is reused soon after its file is deleted, and a
    file may be overwritten in place.
    """
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def open_regular(path: str, *, follow: bool = False) -> tuple[int, os.stat_result]:
    """Open a regular file for reading; return its descriptor and status.

    The type is checked before opening too, because opening a device may already have an effect.
    With `follow` the path may be a link, as those in /proc/PID/map_files are. Raises ForeignFile
    for anything but a regular file, and OSError.
    """
    before = os.stat(path, follow_symlinks=follow)  # noqa: PTH116 - one call per file of a job
    if not stat.S_ISREG(before.st_mode):
        kind = next((words for is_kind, words in _KINDS if is_kind(before.st_mode)), "unknown")
        raise ForeignFile(f"{path}: not a regular file, but {kind}")
    descriptor = os.open(path, _READ | (0 if follow else os.O_NOFOLLOW))
    status = os.fstat(descriptor)
    if (status.st_dev, status.st_ino) != (before.st_dev, before.st_ino):
        os.close(descriptor)
        raise ForeignFile(f"{path}: replaced while it was opened")
    return descriptor, status


def regular_stream(path: Path) -> BinaryIO:
    """Open a regular file, or a link to one, as a stream; raises ForeignFile and OSError."""
    return os.fdopen(open_regular(str(path), follow=True)[0], "rb")


def read_regular(path: Path, max_bytes: int) -> bytes:
    """Return the content of a regular file; raise TooLarge when it has more than `max_bytes`."""
    with regular_stream(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise TooLarge(f"{path}: {size} bytes, at most {max_bytes}")
        return file.read(size)
