"""Events and system samples of a trace database as values, read from files of all versions."""

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ingero.core.chains.evidence import SystemSample
from ingero.core.recording.event_columns import COLUMN_NAMES, EventColumns, columns_from_table
from ingero.errors import ForeignFile
from ingero.storage.trace.schema import MAX_TIME_NS, table_columns

CHUNK_ROWS = 100_000
Progress = Callable[[int, int], None]  # rows read so far, and how many there are, 0 if unknown
NOT_A_NUMBER = "an event has a value that is not a number"


def int_table(rows: Sequence[Sequence[Any]], width: int) -> NDArray[np.int64]:
    """Return rows of integers as a table; raise ForeignFile if a file holds anything else."""
    try:
        return np.array(rows, np.int64).reshape(len(rows), width)
    except (ValueError, TypeError, OverflowError) as error:
        raise ForeignFile(f"{NOT_A_NUMBER}: {error}") from None


def _read_table(cursor: sqlite3.Cursor, progress: Progress) -> NDArray[np.int64]:
    """Return the rows of a cursor; a part at a time, because Python's integers take much memory."""
    parts, done = [np.zeros((0, len(COLUMN_NAMES)), np.int64)], 0
    while chunk := cursor.fetchmany(CHUNK_ROWS):
        parts.append(int_table(chunk, len(COLUMN_NAMES)))
        done += len(chunk)
        progress(done, 0)
    return np.concatenate(parts)


def read_events(
    connection: sqlite3.Connection,
    from_ns: int = 0,
    to_ns: int = MAX_TIME_NS,
    last: int = 0,
    node: str | None = None,
    progress: Progress = lambda done, total: None,
) -> EventColumns:
    """Return events by time; `last` keeps only the newest, `node` only those of one node."""
    present = set(table_columns(connection, "events"))
    columns = ", ".join(name if name in present else f"0 AS {name}" for name in COLUMN_NAMES)
    where, values = "timestamp BETWEEN ? AND ?", [from_ns, to_ns]
    parameters: list[object] = list(values)
    if node is not None and "node" in present:
        where += " AND node = ?"
        parameters.append(node)
    sql = f"SELECT {columns} FROM events WHERE {where} ORDER BY timestamp"
    if last:
        sql = (
            f"SELECT * FROM (SELECT {columns} FROM events WHERE {where} ORDER BY timestamp DESC "
            f"LIMIT {int(last)})"
        )
    found = columns_from_table(_read_table(connection.execute(sql, parameters), progress))
    if (np.diff(found.timestamp) < 0).any():
        found = found.take(np.argsort(found.timestamp, kind="stable"))
    return found


def read_samples(
    connection: sqlite3.Connection, from_ns: int = 0, to_ns: int = MAX_TIME_NS
) -> list[SystemSample]:
    """Return system samples ordered by time."""
    rows = connection.execute(
        "SELECT timestamp, cpu_pct, mem_pct, mem_avail, swap_mb, load_avg FROM system_snapshots "
        "WHERE timestamp BETWEEN ? AND ? ORDER BY timestamp",
        (from_ns, to_ns),
    )
    return [SystemSample(*row) for row in rows]


def read_nodes(connection: sqlite3.Connection) -> list[str]:
    """Return the nodes that have events; a file from before node names has one unnamed node."""
    if "node" not in table_columns(connection, "events"):
        return [""]
    names = connection.execute(
        "SELECT DISTINCT node FROM events WHERE typeof(node) = 'text' ORDER BY node"
    )
    return [row[0] for row in names]
