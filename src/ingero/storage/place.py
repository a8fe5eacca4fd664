"""Where databases may lie: SQLite and DuckDB open files by name, and follow links.

In a folder that others may write to, such a name can become a link to any file that this process
may write. `claim_names` takes the names before SQLite opens them. DuckDB makes and removes files as
it goes, so `require_own_folder` refuses the folder.
"""

import os
import stat
from pathlib import Path
from typing import Final

from ingero.errors import StoreError
from ingero.files import create_private
from ingero.storage.caller import caller

SQLITE_SUFFIXES: Final = ("", "-wal", "-shm", "-journal")


def claim_names(database: Path) -> None:
    """Take the names that SQLite opens for a database; raise StoreError if others hold them.

    A folder that nobody else may write to is left alone. In one with the sticky bit, as /tmp has,
    nobody can exchange a file once it is ours; an empty file is as good as none to SQLite.
    """
    if database.is_symlink() and is_shared(database.parent):
        _require(database, is_fine=database.lstat().st_uid in _owners())
    real = Path(os.path.realpath(database))
    if not is_shared(real.parent):
        return
    mode = real.parent.stat().st_mode
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise StoreError(
            f"{database} cannot be written: everybody may exchange files in {real.parent}"
        )
    names = [real.with_name(real.name + suffix) for suffix in SQLITE_SUFFIXES]
    taken = [path for path in names if path.is_symlink() or path.exists()]
    for path in taken:
        _require_own_file(path)
    for path in names:
        if path not in taken:
            create_private(path)


def require_own_folder(database: Path) -> None:
    """Raise StoreError for a database in a folder that everybody may write to."""
    for folder in (database.parent, Path(os.path.realpath(database)).parent):
        if folder.exists() and folder.stat().st_mode & stat.S_IWOTH:
            raise StoreError(
                f"cannot open {database}: everybody may make links in {folder}; "
                "name a path in a folder of its own"
            )


def is_shared(folder: Path) -> bool:
    """Return whether others than us, root and the person who called may write to a folder."""
    status = folder.stat()
    is_open = status.st_mode & (stat.S_IWOTH | stat.S_IWGRP)
    return bool(is_open) or status.st_uid not in _owners()


def _owners() -> set[int]:
    return {0, os.geteuid(), caller().pw_uid}


def _require_own_file(path: Path) -> None:
    status = path.lstat()
    is_single = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
    _require(path, is_fine=is_single and status.st_uid in _owners())


def _require(path: Path, *, is_fine: bool) -> None:
    if not is_fine:
        raise StoreError(
            f"{path} cannot be written: it is a link or a file of another user, in a folder that "
            "others may write to"
        )
