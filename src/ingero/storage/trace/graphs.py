"""CUDA graph calls of a trace database, and how often each executable graph is launched."""

import sqlite3
from dataclasses import dataclass
from typing import Any, Final

from ingero.contract.events import Source, op_name
from ingero.contract.node_api import GraphEvent
from ingero.contract.timestamps import rfc3339
from ingero.errors import ForeignFile
from ingero.storage.trace.rows import NOT_A_NUMBER
from ingero.storage.trace.schema import MAX_TIME_NS, table_columns

MAX_GRAPH_EVENTS: Final = 100
BEGIN_CAPTURE, END_CAPTURE, INSTANTIATE, LAUNCH = 1, 2, 3, 4
_CAPTURE_MODES: Final = {0: "global", 1: "thread_local", 2: "relaxed"}
_OF_PROCESS: Final = (
    "FROM events WHERE source = ? AND timestamp BETWEEN ? AND ? AND pid = coalesce(?, pid)"
)


@dataclass(frozen=True, slots=True)
class GraphUse:
    """An executable graph of a process: its launches in total and in the last `window_ns`."""

    handle: str
    launches: int
    recent: int


def read_graph_events(
    connection: sqlite3.Connection, since_ns: int, pid: int | None, limit: int
) -> list[GraphEvent]:
    """Return the newest calls, newest first."""
    present = table_columns(connection, "events")
    later = (name if name in present else "NULL" for name in ("ret_code", "comm", "arg0", "arg1"))
    rows = connection.execute(
        f"SELECT timestamp, pid, op, duration, {', '.join(later)} {_OF_PROCESS} "
        "ORDER BY timestamp DESC LIMIT ?",
        (int(Source.GRAPH), since_ns, MAX_TIME_NS, pid, limit),
    ).fetchall()
    try:
        return [_graph_event(*row) for row in rows]
    except TypeError as error:
        raise ForeignFile(f"{NOT_A_NUMBER}: {error}") from None


def count_graph_calls(connection: sqlite3.Connection, since_ns: int, pid: int) -> dict[int, int]:
    """Return how often each graph operation was called."""
    sql = f"SELECT op, count(*) {_OF_PROCESS} GROUP BY op ORDER BY op"
    return dict(connection.execute(sql, (int(Source.GRAPH), since_ns, MAX_TIME_NS, pid)).fetchall())


def graph_pids(connection: sqlite3.Connection, since_ns: int, limit: int) -> list[int]:
    """Return the processes with graph calls, the busiest first."""
    sql = f"SELECT pid {_OF_PROCESS} GROUP BY pid ORDER BY count(*) DESC LIMIT ?"
    rows = connection.execute(sql, (int(Source.GRAPH), since_ns, MAX_TIME_NS, None, limit))
    return [int(row[0]) for row in rows]


def read_graph_use(
    connection: sqlite3.Connection, since_ns: int, pid: int, window_ns: int
) -> tuple[int, list[GraphUse]]:
    """Return (end of the window, executable graphs), most launched first.

    The window ends with the newest graph call of the process.
    """
    chosen = (int(Source.GRAPH), since_ns, MAX_TIME_NS, pid)
    until_ns = connection.execute(
        f"SELECT coalesce(max(timestamp), 0) {_OF_PROCESS}", chosen
    ).fetchone()[0]
    rows = connection.execute(
        f"SELECT arg1, total(op = {LAUNCH}), total(op = {LAUNCH} AND timestamp >= ?) {_OF_PROCESS} "
        f"AND op IN ({INSTANTIATE}, {LAUNCH}) AND typeof(arg1) = 'integer' GROUP BY arg1 "
        "ORDER BY 3 DESC, 2 DESC",
        (until_ns - window_ns, *chosen),
    )
    return until_ns, [
        GraphUse(_handle(arg1), int(launches), int(recent)) for arg1, launches, recent in rows
    ]


def _handle(value: int | None) -> str:
    return f"0x{value & 0xFFFFFFFFFFFFFFFF:x}" if value else ""


def _graph_event(
    at: int,
    pid: int,
    op: int,
    duration: int,
    ret: int | None,
    comm: str | None,
    arg0: int | None,
    arg1: int | None,
) -> GraphEvent:
    """Describe one call; which arguments are handles (shown as hex) depends on the operation."""
    handles: dict[str, Any] = {}
    first, second = _handle(arg0), _handle(arg1)
    if op == BEGIN_CAPTURE:
        handles = {
            "stream_handle": first,
            "capture_mode": "" if arg1 is None else _CAPTURE_MODES.get(arg1, ""),
        }
    elif op == END_CAPTURE:
        handles = {"stream_handle": first, "graph_handle": second}
    elif op == INSTANTIATE:
        handles = {"graph_handle": first, "exec_handle": second}
    elif op == LAUNCH:
        handles = {"stream_handle": first, "exec_handle": second}
    return GraphEvent(
        rfc3339(at),
        pid,
        op_name(int(Source.GRAPH), op),
        duration // 1000,
        ret,
        comm or "",
        **handles,
    )
