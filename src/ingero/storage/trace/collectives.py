"""The table `collectives` of a trace database: adding imported records and reading them back."""

import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ingero.contract.collective import CollectiveRecord, CollectiveSource
from ingero.contract.events import STREAM_SYNC_OPS, SYNC_OPS
from ingero.errors import ForeignFile, StoreError
from ingero.storage.trace.database import COLLECTIVE_COLUMNS, TraceDb, collective_row
from ingero.storage.trace.reading import connect_readonly, reading

ROWS_PER_WRITE = 10_000
_INSERT = (
    f"INSERT INTO collectives ({', '.join(COLLECTIVE_COLUMNS)}) "
    f"SELECT {', '.join('?' * len(COLLECTIVE_COLUMNS))} WHERE NOT EXISTS (SELECT 1 "
    "FROM collectives WHERE comm = ? AND seq IS ? AND rank = ? AND op = ? AND start_ns = ?)"
)
_KEY = tuple(COLLECTIVE_COLUMNS.index(name) for name in ("comm", "seq", "rank", "op", "start_ns"))


def add_collectives(
    path: Path, node: str, records: Iterable[CollectiveRecord], *, flag: str = "--db"
) -> int:
    """Add the records that are missing, and return how many. The database is created if needed."""
    with TraceDb(path, node, flag=flag) as db:
        before = _count(db.connection)
        batch: list[tuple[object, ...]] = []
        for record in records:
            row = collective_row(record)
            batch.append((*row, *(row[i] for i in _KEY)))
            if len(batch) == ROWS_PER_WRITE:
                _write(db, batch)
                batch = []
        _write(db, batch)
        return _count(db.connection) - before


def read_collectives(path: Path) -> Iterator[CollectiveRecord]:
    """Return all records of a trace database."""
    with reading(path) as connection:
        cursor = connection.execute(
            f"SELECT {', '.join(COLLECTIVE_COLUMNS[:-1])} FROM collectives ORDER BY id"
        )
        try:
            for row in cursor:
                yield _record(row)
        except (TypeError, ValueError) as error:
            raise ForeignFile(f"{path}: its collectives cannot be read: {error}") from error


def follow_collectives(
    path: Path, after: int | None, limit: int, max_behind: int
) -> tuple[int, list[tuple[int, int, CollectiveRecord]]]:
    """Return (newest id, rows after id `after` with their ids and processes), at most `limit` rows.

    Rows more than `max_behind` ids old are skipped. With `after` None only the newest id is read.
    """
    connection = connect_readonly(path)
    try:
        newest = int(
            connection.execute("SELECT coalesce(max(id), 0) FROM collectives").fetchone()[0]
        )
        if after is None or after >= newest:
            return newest, []
        columns = ", ".join(COLLECTIVE_COLUMNS[:-1])
        rows = connection.execute(
            f"SELECT id, pid, {columns} FROM collectives WHERE id > ? ORDER BY id LIMIT ?",
            (max(after, newest - max_behind), limit),
        )
        return newest, [(row[0], row[1] or 0, _record(row[2:])) for row in rows]
    finally:
        connection.close()


def read_waits(
    path: Path, pids: Iterable[int], since_ns: int, limit: int
) -> dict[int, list[tuple[int, int, int]]]:
    """Return every wait for a stream, event or device, by process and ordered by time.

    Each is (start, end, stream); the stream is 0 for waits that do not concern one.
    """
    wanted = sorted(set(pids))
    connection = connect_readonly(path)
    try:
        ops = " OR ".join("(source = ? AND op = ?)" for _ in SYNC_OPS)
        rows = connection.execute(
            "SELECT pid, timestamp, timestamp + duration, source, op, arg0 FROM events "
            f"WHERE timestamp >= ? AND ({ops}) AND pid IN ({', '.join('?' * len(wanted))}) "
            "ORDER BY timestamp LIMIT ?",
            (since_ns, *(number for op in sorted(SYNC_OPS) for number in op), *wanted, limit),
        )
        found: dict[int, list[tuple[int, int, int]]] = {pid: [] for pid in wanted}
        for pid, start, end, source, op, stream in rows:
            found[pid].append((start, end, stream if (source, op) in STREAM_SYNC_OPS else 0))
        return found
    finally:
        connection.close()


def _record(row: tuple[Any, ...]) -> CollectiveRecord:
    values = dict(zip(COLLECTIVE_COLUMNS[:-1], row, strict=True))
    values["comm"] %= 1 << 64
    values["node"] = values["node"] or None
    values["source"] = CollectiveSource(values["source"])
    return CollectiveRecord(**values)


def _count(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT count(*) FROM collectives").fetchone()[0])


def _write(db: TraceDb, rows: list[tuple[object, ...]]) -> None:
    if rows and not db.write([(_INSERT, rows)]):
        raise StoreError(
            f"{db.path} refused {len(rows)} records: {db.state}; free some space and import again"
        )
