"""Queries that every trace database answers: events by filter, processes, events stored."""

import sqlite3
from dataclasses import dataclass

from ingero.contract.events import find_op, op_name, source_name
from ingero.errors import MalformedInput
from ingero.storage.trace.schema import MAX_TIME_NS, table_columns

RECORDER_SILENT_NS = 30_000_000_000  # a recorder that wrote nothing for this long is not running
EVENT_VIEW = (
    "time",
    "node",
    "pid",
    "process",
    "source",
    "op",
    "duration_ns",
    "arg0",
    "arg1",
    "ret_code",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """A selection of events; None matches any value."""

    since_ns: int = 0
    pid: int | None = None
    op: str | None = None
    limit: int = 1000


@dataclass(frozen=True, slots=True)
class Kept:
    """How many events happened, and how many were stored as rows."""

    counted: int
    stored: int


@dataclass(frozen=True, slots=True)
class Process:
    """The name and rank of a process; a rank of None is unknown."""

    name: str
    rank: int | None


def covered_ns(connection: sqlite3.Connection) -> tuple[int, int] | None:
    """Return the times of the first and last event, or None for an empty trace."""
    [(first, last)] = connection.execute(
        "SELECT (SELECT min(timestamp) FROM events WHERE timestamp BETWEEN 0 AND ?1), "
        "(SELECT max(timestamp) FROM events WHERE timestamp BETWEEN 0 AND ?1)",
        (MAX_TIME_NS,),
    ).fetchall()
    return None if first is None or last is None else (int(first), int(last))


def count_events(connection: sqlite3.Connection, since_ns: int) -> int:
    """Return the number of events since `since_ns`."""
    sql = "SELECT count(*) FROM events WHERE timestamp BETWEEN ? AND ?"
    return int(connection.execute(sql, (since_ns, MAX_TIME_NS)).fetchone()[0])


def has_events(connection: sqlite3.Connection, pid: int) -> bool:
    """Return whether any event of a process was recorded."""
    return (
        connection.execute("SELECT 1 FROM events WHERE pid = ? LIMIT 1", (pid,)).fetchone()
        is not None
    )


def read_processes(connection: sqlite3.Connection) -> dict[tuple[str, int], Process]:
    """Return the latest program of each process id, by node.

    A recorder without our table only knows names.
    """
    if table_columns(connection, "processes"):
        rows = connection.execute(
            "SELECT node, pid, name, rank FROM processes ORDER BY seen_at"
        ).fetchall()
        if rows:
            return {(str(node), pid): Process(str(name), rank) for node, pid, name, rank in rows}
    names = dict(connection.execute("SELECT pid, name FROM process_names").fetchall())
    present = set(table_columns(connection, "events"))
    node = "node" if "node" in present else "''"
    rank = "max(rank)" if "rank" in present else "NULL"
    ids = connection.execute(f"SELECT {node}, pid, {rank} FROM events GROUP BY 1, 2")
    return {
        (str(where), pid): Process(str(names.get(pid, "")), number) for where, pid, number in ids
    }


def recorded_until(connection: sqlite3.Connection) -> int | None:
    """Return when a recorder of ours last wrote (it writes every second); None if none ever did."""
    if not table_columns(connection, "losses"):
        return None
    newest = connection.execute("SELECT max(updated_at) FROM losses").fetchone()[0]
    return None if newest is None else int(newest)


def find_events(connection: sqlite3.Connection, wanted: EventFilter) -> list[list[object]]:
    """Return matching events, newest first, in the columns of `EVENT_VIEW`."""
    present = set(table_columns(connection, "events"))
    node = "CAST(e.node AS TEXT)" if "node" in present else "''"
    comm = "nullif(e.comm, '')" if "comm" in present else "NULL"
    details = ", ".join(
        f"e.{name}" if name in present else "NULL" for name in ("arg0", "arg1", "ret_code")
    )
    where, values = ["e.timestamp >= ?"], [wanted.since_ns]
    if wanted.pid is not None:
        where.append("e.pid = ?")
        values.append(wanted.pid)
    if wanted.op is not None:
        where.append("e.source = ? AND e.op = ?")
        values += _known_op(wanted.op)
    rows = connection.execute(
        f"SELECT e.timestamp, {node}, e.pid, coalesce({comm}, p.name, ''), e.source, e.op, "
        f"e.duration, {details} FROM events e LEFT JOIN process_names p ON p.pid = e.pid "
        f"WHERE {' AND '.join(where)} ORDER BY e.timestamp DESC LIMIT ?",
        (*values, wanted.limit),
    )
    return [[*row[:4], source_name(row[4]), op_name(row[4], row[5]), *row[6:]] for row in rows]


def _known_op(name: str) -> tuple[int, int]:
    key = find_op(name)
    if key is None:
        raise MalformedInput(f"no operation is called {name!r}; `SELECT name FROM ops` lists them")
    return key


def kept_events(connection: sqlite3.Connection, from_ns: int, to_ns: int) -> Kept:
    """Return the counts from the aggregates, which include every event.

    A recorder without aggregates only has its rows.
    """
    [(counted, stored)] = connection.execute(
        "SELECT coalesce(sum(count), 0), coalesce(sum(stored), 0) FROM event_aggregates "
        "WHERE bucket BETWEEN ? AND ?",
        (from_ns - 60_000_000_000, to_ns),
    ).fetchall()
    [(rows,)] = connection.execute(
        "SELECT count(*) FROM events WHERE timestamp BETWEEN ? AND ?", (from_ns, to_ns)
    ).fetchall()
    return Kept(max(counted, rows), stored or rows)
