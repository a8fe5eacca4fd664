"""Checks the folders of databases: SQLite and DuckDB open files by name, and follow links.

In a folder that others may write to, such a name can become a link to any file that this process
may write. `claim_names` takes the names before SQLite opens them. DuckDB makes and removes files as
it goes, so `require_own_folder` refuses the folder.
"""

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ingero.errors import StoreError
from ingero.files import create_private
from ingero.storage.caller import caller

SQLITE_SUFFIXES: Final = ("", "-wal", "-shm", "-journal")
DUCKDB_SUFFIXES: Final = ("", ".wal")


def claim_names(database: Path) -> None:
    """Take the names that SQLite opens for a database; raise StoreError if others hold them.

    A folder that nobody else may write to is left alone. In one with the sticky bit, as /tmp has,
    nobody can exchange a file once it is ours; an empty file is as good as none to SQLite.
    """
    real = _followed(database)
    if not is_shared(real.parent):
        return
    if _is_open_to_all(real.parent):
        raise StoreError(
            f"{database} cannot be written: everybody may exchange files in {real.parent}"
        )
    free = _free_names(real, SQLITE_SUFFIXES)
    for path in free:
        create_private(path)


def require_own_folder(database: Path) -> None:
    """Raise StoreError for a DuckDB database where everybody may make links, or others have."""
    if not database.parent.exists():
        return  # DuckDB says so
    real = _followed(database)
    for folder in (database.parent, real.parent):
        if _is_like_tmp(folder) or _is_open_to_all(folder):
            raise StoreError(
                f"{database} cannot be written: everybody may make links in {folder}; "
                "name a path in a folder of its own"
            )
    if is_shared(real.parent):
        _free_names(real, DUCKDB_SUFFIXES)


def _followed(database: Path) -> Path:
    if database.is_symlink() and is_shared(database.parent):
        _require(database, is_fine=database.lstat().st_uid in _owners())
    return Path(os.path.realpath(database))


def _free_names(database: Path, suffixes: Sequence[str]) -> list[Path]:
    """Return the names that nobody holds; raise StoreError where others hold one."""
    names = [database.with_name(database.name + suffix) for suffix in suffixes]
    taken = [path for path in names if path.is_symlink() or path.exists()]
    for path in taken:
        status = path.lstat()
        is_single = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
        _require(path, is_fine=is_single and status.st_uid in _owners())
    return [path for path in names if path not in taken]


def _is_like_tmp(folder: Path) -> bool:
    mode = folder.stat().st_mode
    return bool(mode & stat.S_ISVTX) and bool(mode & (stat.S_IWOTH | stat.S_IWGRP))


def _is_open_to_all(folder: Path) -> bool:
    """Return whether everybody may exchange files; volumes of containers only look like it."""
    mode = folder.stat().st_mode
    is_open = mode & stat.S_IWOTH and not mode & stat.S_ISVTX
    return bool(is_open) and not folder.is_mount()


def make_own_folder(folder: Path) -> None:
    """Make a folder for secrets, for its owner only; raise StoreError where others may write to it.

    Who may write to a folder can exchange what is in it, whatever the permissions of its files.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status, link = folder.stat(), folder.lstat()
    except OSError as error:
        raise StoreError(f"cannot use {folder}: {error.strerror}; name another path") from None
    is_ours = {status.st_uid, link.st_uid} <= _owners()
    is_open = status.st_mode & (stat.S_IWOTH | stat.S_IWGRP) and not folder.is_mount()
    if not is_ours or is_open:
        raise StoreError(
            f"{folder} cannot be used: it belongs to another user, or others may write to it; "
            "name a new folder, or take their right away (chmod go-w)"
        )


def is_shared(folder: Path) -> bool:
    """Return whether others than us, root and the person who called may write to a folder."""
    status = folder.stat()
    is_open = status.st_mode & (stat.S_IWOTH | stat.S_IWGRP)
    return bool(is_open) or status.st_uid not in _owners()


def _owners() -> set[int]:
    return {0, os.geteuid(), caller().pw_uid}


def _require(path: Path, *, is_fine: bool) -> None:
    if not is_fine:
        raise StoreError(
            f"{path} cannot be written: it is a link or a file of another user, in a folder that "
            "others may write to"
        )
