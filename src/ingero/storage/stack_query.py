"""Call stacks of a trace database with what the calls behind them took."""

import sqlite3
from dataclasses import dataclass

from ingero.storage.schema import MAX_STACK_BYTES, table_columns


@dataclass(frozen=True, slots=True)
class StackUse:
    """One stack and all calls that came from it."""

    hash: int
    source: int
    count: int
    mean_ns: float
    min_ns: int
    max_ns: int
    sum_arg0: int
    processes: str
    ips: str
    frames: str


def read_stacks(
    connection: sqlite3.Connection,
    since_ns: int,
    limit: int,
    *,
    source: int | None = None,
    op: int | None = None,
    pid: int | None = None,
) -> list[StackUse]:
    """Stacks by total time, most first; an operation is one of its source."""
    if not table_columns(connection, "stack_traces"):
        return []
    names = "group_concat(DISTINCT e.comm)" if "comm" in table_columns(connection, "events") else "''"
    rows = connection.execute(
        "SELECT e.stack_hash, e.source, count(*), avg(e.duration), min(e.duration), max(e.duration), sum(e.arg0), "
        f"coalesce({names}, ''), s.ips, s.frames FROM events e JOIN stack_traces s ON s.hash = e.stack_hash "
        "WHERE e.stack_hash != 0 AND e.timestamp >= ? AND e.source = coalesce(?, e.source) "
        "AND e.op = coalesce(?, e.op) AND e.pid = coalesce(?, e.pid) AND max(length(s.frames), length(s.ips)) <= ? "
        "GROUP BY e.stack_hash, e.source ORDER BY sum(e.duration) DESC LIMIT ?",
        (since_ns, source, op, pid, MAX_STACK_BYTES, limit),
    )
    return [StackUse(*row) for row in rows]
