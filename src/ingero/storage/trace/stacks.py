"""Call stacks of a trace database, with the time that calls from them took."""

import sqlite3
from dataclasses import dataclass

from ingero.contract.chain import CHAIN_WINDOW_NS
from ingero.contract.chain_otlp import MAX_FRAMES, MAX_STACKS, ChainStack, ReportedChain
from ingero.contract.events import find_op
from ingero.core.recording.stacks import Frame, decode_frames
from ingero.storage.trace.chains import RecordedChain
from ingero.storage.trace.schema import MAX_STACK_BYTES, table_columns

MAX_CALLS = 100_000  # rows of one chain's window that are read for its stacks


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


def report_chain(connection: sqlite3.Connection, found: RecordedChain) -> ReportedChain:
    """Return a chain as it leaves the node: with the name of its process and its stacks."""
    row = connection.execute(
        "SELECT name FROM process_names WHERE pid = ?", (found.chain.pid,)
    ).fetchone()
    return ReportedChain(
        found.id,
        found.node,
        found.detected_at_ns,
        found.chain,
        chain_stacks(connection, found),
        str(row[0]) if row and found.chain.pid else "",
    )


def chain_stacks(connection: sqlite3.Connection, found: RecordedChain) -> tuple[ChainStack, ...]:
    """Return the stacks from which the slow calls of a chain came, the costliest first."""
    key = find_op(found.chain.cuda_op)
    if key is None:
        return ()
    is_named = "node" in table_columns(connection, "events") and found.node
    rows = connection.execute(
        "SELECT e.stack_hash, count(*), sum(e.duration) / 1000, "
        "iif(length(s.ips) <= ?6, s.ips, ''), iif(length(s.frames) <= ?6, s.frames, '') "
        "FROM (SELECT stack_hash, duration FROM events WHERE source = ?1 AND op = ?2 "
        "AND timestamp BETWEEN ?3 AND ?4 AND (?5 = 0 OR pid = ?5) AND stack_hash != 0 "
        f"AND typeof(duration) = 'integer' {'AND node = ?8 ' if is_named else ''}"
        "LIMIT ?7) AS e JOIN stack_traces AS s ON s.hash = e.stack_hash "
        f"GROUP BY e.stack_hash ORDER BY 3 DESC, 1 LIMIT {MAX_STACKS}",
        (
            *key,
            found.detected_at_ns - CHAIN_WINDOW_NS,
            found.detected_at_ns,
            found.chain.pid,
            MAX_STACK_BYTES,
            MAX_CALLS,
            *((found.node,) if is_named else ()),
        ),
    ).fetchall()
    return tuple(
        ChainStack(
            found.chain.cuda_op,
            int(calls),
            int(total_us),
            tuple(str(frame) for frame in frames[:MAX_FRAMES]),
            str(_top(frames)),
        )
        for _, calls, total_us, ips, text in rows
        if (frames := decode_frames(ips, text))
    )


def _top(frames: list[Frame]) -> Frame:
    """Return the most telling innermost frame: a Python frame, else one with a name."""
    python = (frame for frame in frames if frame.py_func or frame.py_file)
    named = (frame for frame in frames if frame.is_resolved)
    return next(python, next(named, frames[0]))
