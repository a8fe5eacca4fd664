"""One source of a merge: opening it, comparing it with the others, checking its content.

A source is never written to, and no file is created beside it: it may be on read-only media, or be
recorded to at this moment.
"""

import filecmp
import os
import shutil
import sqlite3
import tempfile
from contextlib import closing, suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

from ingero.errors import ForeignFile, StoreError
from ingero.storage.merge.statements import needs_force_node
from ingero.storage.trace.database import sibling_files
from ingero.storage.trace.reading import (
    connect_readonly,
    require_content,
    require_regular_siblings,
)

ENDING_BYTES: Final = 16 * 1024
LOG_HEADER_BYTES: Final = 32  # changes when the log is restarted


def readable_copy(path: Path, folder: Path) -> Path:
    """Return the source, or a copy in `folder` if it has a write-ahead log.

    Reading a write-ahead log would create files beside the source.
    """
    require_regular_siblings(path)
    require_content(path)
    database, log, _ = sibling_files(path)
    if not (log.exists() and log.stat().st_size):
        return database
    copy = Path(tempfile.mkdtemp(dir=folder)) / path.name
    with suppress(FileNotFoundError):  # its recorder stopped and removed the log
        before = _state(path)
        shutil.copyfile(database, copy)
        shutil.copyfile(log, sibling_files(copy)[1])
        if _state(path) == before:
            return copy
    _snapshot(path, copy)
    return copy


def _state(path: Path) -> tuple[int, int, bytes]:
    """Return a value that changes when the log is merged into the file or restarted.

    Rows appended to the log do not change it.
    """
    database, log, _ = sibling_files(path)
    status = database.stat()
    with log.open("rb") as content:
        return status.st_mtime_ns, status.st_size, content.read(LOG_HEADER_BYTES)


def _snapshot(path: Path, copy: Path) -> None:
    """Let SQLite copy a database that is being recorded to."""
    for file in sibling_files(copy):
        file.unlink(missing_ok=True)
    with (
        closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as recorded,
        closing(sqlite3.connect(copy)) as copied,
    ):
        recorded.backup(copied)


def ending(path: Path) -> tuple[tuple[int, bytes], ...]:
    """Return the size and last bytes of a source: enough to tell two recordings apart."""
    endings = []
    for file in sibling_files(path)[:2]:
        if file.exists():
            with file.open("rb") as content:
                size = content.seek(0, os.SEEK_END)
                content.seek(max(0, size - ENDING_BYTES))
                endings.append((size, content.read()))
    return tuple(endings)


def same_content(one: Path, other: Path) -> bool:
    """Return whether two files are copies of each other."""
    pairs = zip(sibling_files(one)[:2], sibling_files(other)[:2], strict=True)
    return all(filecmp.cmp(ours, theirs, shallow=False) for ours, theirs in pairs if ours.exists())


def check_content(path: Path, readable: Path, force_node: str | None, *, to_the_end: bool) -> None:
    """Refuse a source that cannot be merged.

    Deep damage is searched for only when the merge must go on without the source. Otherwise damage
    stops the copy, and with it the merge, anyway.
    """
    try:
        connection = connect_readonly(readable)
    except (ForeignFile, StoreError) as error:
        raise type(error)(str(error).replace(str(readable), str(path))) from None
    try:
        problem = connection.execute("PRAGMA quick_check(1)").fetchone()[0] if to_the_end else "ok"
        if problem != "ok":
            raise damaged(path, problem)
        if force_node is None and needs_force_node(connection):
            raise ForeignFile(
                f"{path} does not say which node it is from: name it with --force-node NAME, or "
                "record again with `ingero trace --node NAME`"
            )
    except sqlite3.DatabaseError as error:
        raise damaged(path, error) from None
    finally:
        connection.close()


def damaged(path: Path, problem: object) -> ForeignFile:
    """Return the error for a file whose content cannot be read."""
    return ForeignFile(f"{path} is damaged: {problem}; --skip-bad merges the other files")
