"""The trace database of one node: opening it for writing, and writing in batches.

One process writes (`TraceDb`), any number read (`reading`). A full disk is a state and not an
exception: writes return False, and succeed again when there is room.
"""

import contextlib
import sqlite3
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final, Self, TypeAlias

from ingero.contract.collective import CollectiveRecord
from ingero.errors import ForeignFile, StoreError, StoreLocked
from ingero.files import create_private
from ingero.storage.caller import give_to_caller
from ingero.storage.lock import DatabaseLock
from ingero.storage.place import claim_names
from ingero.storage.trace.migrate import upgrade
from ingero.storage.trace.schema import ADD_AGGREGATES, AGGREGATE_COLUMNS, USER_VERSION

WRITER_TIMEOUT_MS: Final = 5000
Row: TypeAlias = Sequence[object]
# statements with their rows, written in one transaction
Batch: TypeAlias = list[tuple[str, list[Row]]]
NO_ROOM: Final = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE)

EVENT_COLUMNS: Final = (
    "id", "timestamp", "pid", "tid", "source", "op", "duration", "gpu_id", "arg0", "arg1",
    "ret_code", "stack_hash", "node", "rank", "local_rank", "world_size", "comm", "cgroup_id",
)  # fmt: skip
COLLECTIVE_COLUMNS: Final = (
    "job", "node", "global_rank", "comm", "seq", "op", "rank", "nranks", "peer", "datatype",
    "reduce_op", "size_bytes", "start_ns", "end_ns", "gpu_duration_ns", "stream", "source", "pid",
)  # fmt: skip


ADD_DURATIONS: Final = (
    "INSERT INTO op_durations (node, bucket, source, op, pid, floor_ns, ceiling_ns, count) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET count = count + excluded.count"
)


class RecordingState(StrEnum):
    """Whether rows reach the disk."""

    RECORDING = "recording"
    DISK_FULL = "disk-full"
    FAILED = "failed"


def signed64(value: int) -> int:
    """Wrap a pointer or hash above 2**63, because SQLite integers are signed."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def collective_row(record: CollectiveRecord, pid: int = 0) -> Row:
    """Return a record as a row in the order of `COLLECTIVE_COLUMNS`."""
    stream = None if record.stream is None else signed64(record.stream)
    return (
        record.job, record.node or "", record.global_rank, signed64(record.comm), record.seq,
        record.op, record.rank, record.nranks, record.peer, record.datatype, record.reduce_op,
        record.size_bytes, record.start_ns, record.end_ns, record.gpu_duration_ns, stream,
        str(record.source), pid,
    )  # fmt: skip


def insert_sql(table: str, columns: Sequence[str], verb: str = "INSERT OR IGNORE") -> str:
    """Return `verb INTO table (columns) VALUES (?, …)`."""
    return f"{verb} INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"


def upsert_aggregates_sql(table: str) -> str:
    """Return SQL that adds to existing counts, so that late events and restarts never erase any."""
    return (
        f"{insert_sql(table, AGGREGATE_COLUMNS, 'INSERT')} ON CONFLICT (bucket, source, op, pid) "
        f"{ADD_AGGREGATES}"
    )


class TraceDb:
    """The only writer of a trace database; `flag` is the option that named its path, for errors."""

    def __init__(self, path: Path, node: str, *, flag: str = "--db") -> None:
        self.path = path
        self.node = node
        self._flag = flag
        self.state = RecordingState.RECORDING
        self._lock = _take_lock(path, flag)
        try:
            self._connection = _open_for_writing(path, node, flag)
        except BaseException:
            self._lock.release()
            raise
        self._is_open = True
        self._next_seq = self._highest_seq() + 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _highest_seq(self) -> int:
        """Return the highest event number of this node; `%` and `_` in its name are literal."""
        pattern = self.node.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + ":%"
        row = self._connection.execute(
            "SELECT max(CAST(substr(id, ?) AS INTEGER)) FROM events WHERE id LIKE ? ESCAPE '\\'",
            (len(self.node) + 2, pattern),
        ).fetchone()
        return int(row[0] or 0)

    def next_ids(self, count: int) -> list[str]:
        """Return ids for new events of this node."""
        first = self._next_seq
        self._next_seq += count
        return [f"{self.node}:{number}" for number in range(first, first + count)]

    def write(self, batch: Iterable[tuple[str, Sequence[Row]]]) -> bool:
        """Run statements over rows in one transaction.

        Return False if the disk refused them; `state` has the reason.
        """
        statements = list(batch)
        try:
            if not self._is_open:
                self.reopen()
            with self._connection:
                for statement, rows in statements:
                    self._connection.executemany(statement, rows)
        except sqlite3.OperationalError as error:
            full = error.sqlite_errorcode in NO_ROOM
            self.state = RecordingState.DISK_FULL if full else RecordingState.FAILED
            return False
        except StoreError:
            self.state = RecordingState.FAILED
            return False
        self.state = RecordingState.RECORDING
        return True

    def execute(self, statement: str, parameters: Row = ()) -> sqlite3.Cursor:
        """Run a single statement in its own transaction."""
        with self._connection:
            return self._connection.execute(statement, parameters)

    @property
    def connection(self) -> sqlite3.Connection:
        """Return the writer's own connection, for maintenance."""
        return self._connection

    def reopen(self) -> None:
        """Open the path again after a rollover moved the file away.

        If this fails, the next write retries.
        """
        self._connection.close()
        self._is_open = False
        self._connection = _open_for_writing(self.path, self.node, self._flag)
        self._is_open = True

    def checkpoint(self, mode: str = "PASSIVE") -> None:
        """Move the write-ahead log into the file, so that a plain copy of the file is complete."""
        if not self._is_open:
            return
        # a reader blocks it, or the disk is full: retried at the next checkpoint
        with contextlib.suppress(sqlite3.OperationalError):
            self._connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()

    def size_bytes(self) -> int:
        """Return the disk space of the database and its log."""
        return sum(file.stat().st_size for file in sibling_files(self.path) if file.exists())

    def close(self) -> None:
        """Move the log into the file, close it and release the lock."""
        self.checkpoint("TRUNCATE")
        self._connection.close()
        for file in sibling_files(self.path):
            give_to_caller(file)
        self._lock.release()


def sibling_files(path: Path) -> tuple[Path, Path, Path]:
    """Return the database file and the two files that SQLite keeps beside it."""
    return path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")


def _take_lock(path: Path, flag: str) -> DatabaseLock:
    try:
        if not path.parent.exists():
            path.parent.mkdir(mode=0o700, parents=True)
            give_to_caller(path.parent)
        lock = DatabaseLock(path)
    except StoreLocked:
        raise
    except OSError as error:
        raise _cannot_write(path, error.strerror, flag) from error
    except StoreError as error:
        raise StoreError(f"{error}; name another place with {flag}") from None
    give_to_caller(lock.path)
    return lock


def _open_for_writing(path: Path, node: str, flag: str) -> sqlite3.Connection:
    try:
        claim_names(path)
        if not path.exists():
            create_private(path)
            give_to_caller(path)
        connection = sqlite3.connect(
            path, timeout=WRITER_TIMEOUT_MS / 1000, isolation_level=None, check_same_thread=False
        )
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > USER_VERSION:
            connection.close()
            raise ForeignFile(
                f"{path} has format {version}, this version writes {USER_VERSION}; upgrade ingero"
            )
        # has an effect only before the first table is created
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        upgrade(connection, node)
    except sqlite3.OperationalError as error:
        raise StoreError(
            f"{path} cannot be written: {error}; make room or name another place with {flag}"
        ) from error
    except sqlite3.DatabaseError as error:
        raise ForeignFile(
            f"{path} is not a SQLite database: {error}; name another file with {flag}"
        ) from error
    except OSError as error:
        raise _cannot_write(path, error.strerror, flag) from error
    except StoreError as error:  # the names are not ours
        raise StoreError(f"{error}; name another place with {flag}") from None
    connection.isolation_level = "IMMEDIATE"
    for file in sibling_files(path):
        give_to_caller(file)
    return connection


def _cannot_write(path: Path, reason: str | None, flag: str) -> StoreError:
    return StoreError(f"{path} cannot be written: {reason}; name another place with {flag}")
