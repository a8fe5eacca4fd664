"""Reading trace databases from any source: damaged files become errors that name the problem.

Nothing is written beside the file, and no SQL stored in it is run.
"""

import contextlib
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from ingero.errors import ForeignFile, StoreError, Unavailable
from ingero.storage.trace.database import sibling_files
from ingero.storage.trace.schema import OWN_TABLES, TABLES, USER_VERSION, table_columns

READER_TIMEOUT_MS: Final = 2000
_STEPS_BETWEEN_LOOKS: Final = 10_000  # engine steps between two checks of the time
_NEEDED: Final = ("timestamp", "pid", "tid", "source", "op", "duration")
# other recorders may lack these tables; readers then find them empty
_OPTIONAL: Final = (
    "causal_chains",
    "event_aggregates",
    "process_names",
    "sessions",
    "stack_traces",
    "system_snapshots",
)
_MAX_REASON: Final = 300  # characters
# a view or virtual table with one of our names would run its author's SQL, perhaps forever
_POSING_SQL: Final = (
    "SELECT name FROM sqlite_master WHERE (type = 'view' OR sql LIKE 'CREATE VIRTUAL%') AND "
    "lower(name) IN (" + ", ".join(f"'{name}'" for name in (*TABLES, *OWN_TABLES)) + ")"
)


class _Connection(sqlite3.Connection):
    """Reports names that are no text as damage; what SQLite says may quote a damaged schema."""

    def execute(self, *args: Any) -> sqlite3.Cursor:
        """Run a statement; every failure is raised as sqlite3.Error."""
        try:
            return super().execute(*args)
        except UnicodeDecodeError:
            error = sqlite3.DatabaseError("names in its schema are no text")
            error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
            raise error from None
        except sqlite3.Error as error:
            error.args = (str(error)[:_MAX_REASON],)
            raise


@contextlib.contextmanager
def reading(path: Path, timeout_s: float | None = None) -> Iterator[sqlite3.Connection]:
    """Yield a read-only connection; damage is reported as ForeignFile, also when found later."""
    connection = connect_readonly(path)
    if timeout_s is not None:
        deadline_s = time.monotonic() + timeout_s
        connection.set_progress_handler(lambda: time.monotonic() > deadline_s, _STEPS_BETWEEN_LOOKS)
    try:
        yield connection
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_INTERRUPT:
            raise Unavailable(
                f"{path}: no answer within {timeout_s:g} s; ask about a shorter period"
            ) from None
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise StoreError(f"{path} is locked by the process that writes it; try again") from None
        if str(error).startswith(("no such column", "no such table")):
            raise ForeignFile(
                f"{path} was recorded by another version: {error}; "
                f"`ingero merge {path} -o NEW.db` makes a file that this version reads"
            ) from error
        raise ForeignFile(
            f"{path} cannot be read: {error}; the file is damaged or incomplete"
        ) from error
    finally:
        connection.close()


def connect_readonly(path: Path) -> sqlite3.Connection:
    """Open for reading only, leaving nothing beside the file.

    Without a write-ahead log the file is opened as immutable.
    """
    if not path.is_file():
        state = "is not a file" if path.exists() else "does not exist"
        raise StoreError(
            f"{path} {state}; record one with `ingero trace`, or name another with --db"
        )
    wal = sibling_files(path)[1]
    require_regular_siblings(path)
    try:
        require_content(path)
        connection = (
            _open_with_log(path)
            if wal.exists() and wal.stat().st_size
            else _open(path, "immutable=1")
        )
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        posing = connection.execute(_POSING_SQL).fetchone()
        columns = set(table_columns(connection, "events"))
        problem = _problem(version, posing, columns)
        if problem:
            connection.close()
            raise ForeignFile(f"{path} {problem}")
        for table in _OPTIONAL:
            if not table_columns(connection, table):
                connection.execute(f"CREATE TEMP TABLE {table} {TABLES[table]}")
    except sqlite3.OperationalError as error:
        raise StoreError(f"{path} cannot be opened: {error}") from error
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_NOTADB:
            raise ForeignFile(f"{path} {_NO_DATABASE}") from error
        raise ForeignFile(f"{path} is damaged: {error}; {_COPY_AGAIN}") from error
    except OSError as error:
        raise StoreError(f"{path} cannot be opened: {error.strerror}") from error
    return connection


# A copy of a file that is being written may lack pages; a merge reads it as the recorder left it.
_COPY_AGAIN: Final = "copy it again, with `ingero merge FILE -o COPY` where it is being recorded"
_NO_DATABASE: Final = "is not a SQLite database; name a file that `ingero trace` wrote"


def require_content(path: Path) -> None:
    """Raise ForeignFile for an empty file, before anything reads it.

    Files of the kernel without a size, such as /proc/kmsg, may let their readers wait forever.
    """
    if not path.stat().st_size:
        raise ForeignFile(f"{path} is empty: its copy was cut short; {_COPY_AGAIN}")


def require_regular_siblings(path: Path) -> None:
    """Raise ForeignFile for a pipe or device in place of a file that SQLite opens beside this one.

    SQLite would wait for a pipe forever.
    """
    for suffix in ("-wal", "-shm", "-journal"):
        beside = path.with_name(path.name + suffix)
        if beside.exists() and not beside.is_file():
            raise ForeignFile(f"{path} cannot be opened: {beside} is not a regular file")


def _open(path: Path, mode: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"file:{quote(str(path))}?{mode}",
        uri=True,
        factory=_Connection,
        timeout=READER_TIMEOUT_MS / 1000,
        check_same_thread=False,
    )
    # a traced name may be any bytes
    connection.text_factory = lambda data: data.decode("utf-8", "replace")
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA temp_store = MEMORY")
    # the first query opens the file
    connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    return connection


def _open_with_log(path: Path) -> sqlite3.Connection:
    """Open a file with a write-ahead log; if SQLite may not create its helper file, open a copy."""
    try:
        return _open(path, "mode=ro")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
            raise
    with tempfile.TemporaryDirectory(prefix="ingero-") as folder:
        copy = Path(folder) / "trace.db"
        for source, target in zip(sibling_files(path)[:2], sibling_files(copy), strict=False):
            shutil.copyfile(source, target)
        settled = sqlite3.connect(copy)
        settled.execute("PRAGMA journal_mode = DELETE")  # moves the log into the file
        settled.close()
        return _open(copy, "immutable=1")  # stays readable after its name is removed


def _problem(version: int, posing: tuple[str] | None, columns: set[str]) -> str | None:
    if version > USER_VERSION:
        return f"has format {version}, this version reads up to {USER_VERSION}; upgrade ingero"
    if posing is not None:
        return f"cannot be trusted: {posing[0]!r} is a view or a virtual table, not a recorded one"
    if not columns:
        return "is a database, but not a trace: it has no table `events`"
    missing = [name for name in _NEEDED if name not in columns]
    return (
        f"is a database, but not a trace: `events` has no column {missing[0]!r}"
        if missing
        else None
    )
