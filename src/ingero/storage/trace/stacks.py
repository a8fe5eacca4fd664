"""Call stacks of a trace database, with the time that calls from them took."""

import sqlite3
from dataclasses import dataclass

from ingero.storage.trace.schema import MAX_STACK_BYTES, table_columns


@dataclass(frozen=True, slots=True)
class StackUse:
    """One stack, and all calls of one operation made from it."""

    hash: int
    source: int
    op: int
    count: int
    mean_ns: float
    min_ns: int
    max_ns: int
    sum_arg0: float
    processes: str
    ips: str
    frames: str


def read_stacks(
    connection: sqlite3.Connection,
    since_ns: int,
    source: int | None,
    op: int | None,
    pid: int | None,
    limit: int,
) -> list[StackUse]:
    """Return stacks by total time, most first; None matches any value.

    Frames that are too large are left out.
    """
    comm = "nullif(e.comm, '')" if "comm" in table_columns(connection, "events") else "NULL"
    rows = connection.execute(
        "SELECT e.stack_hash, e.source, e.op, count(*), avg(e.duration), min(e.duration), "
        f"max(e.duration), total(e.arg0), coalesce(group_concat(DISTINCT coalesce({comm}, "
        "p.name)), ''), iif(length(s.ips) <= ?5, s.ips, ''), iif(length(s.frames) <= ?5, "
        "s.frames, '') FROM events e JOIN stack_traces s ON s.hash = e.stack_hash LEFT "
        "JOIN process_names p ON p.pid = e.pid WHERE e.stack_hash != 0 AND e.timestamp >= ?1 "
        "AND e.source = coalesce(?2, e.source) AND e.op = coalesce(?3, e.op) "
        "AND e.pid = coalesce(?4, e.pid) AND typeof(e.duration) = 'integer' "
        # `+` keeps SQLite from using the index of operations, which would look up each row
        # separately
        "GROUP BY +e.stack_hash, +e.source, +e.op ORDER BY total(e.duration) DESC LIMIT ?6",
        (since_ns, source, op, pid, MAX_STACK_BYTES, limit),
    )
    return [StackUse(*row) for row in rows]
