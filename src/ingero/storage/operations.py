"""The figures of the operations in a trace database, the same for every command, page and tool.

Our recorder counts every call by its duration in `op_durations`. Files of other recorders have only
rows; `core/recording/operations.py` says what can be computed from either.
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ingero.contract.events import op_name, source_name
from ingero.core.recording.latency import WINDOW, percentile
from ingero.core.recording.operations import (
    SHARES,
    OpFigures,
    OpTotals,
    figures_of_rows,
    most_time_first,
)
from ingero.errors import ForeignFile
from ingero.storage.trace.rows import CHUNK_ROWS, NOT_A_NUMBER, int_table
from ingero.storage.trace.schema import MAX_TIME_NS, MINUTE_NS, table_columns

MANY_ROWS = 200_000  # reading fewer takes less than a second
RARE_ROWS = 20_000
_Key = tuple[str, int, int, int]  # node, pid, source, op


@dataclass(frozen=True, slots=True, kw_only=True)
class OpFilter:
    """Which calls count. Counts cover whole minutes, so the first minute counts in full."""

    from_ns: int = 0
    to_ns: int = MAX_TIME_NS
    pid: int | None = None
    per_process: bool = True  # otherwise all processes and nodes are added up
    max_rows: int | None = None  # with more rows only totals are read, without percentiles

    @property
    def range(self) -> tuple[int, int]:
        return self.from_ns - self.from_ns % MINUTE_NS, self.to_ns


def read_operations(
    connection: sqlite3.Connection,
    wanted: OpFilter,
    progress: Callable[[int], None] = lambda done: None,
) -> list[OpFigures]:
    """Return the operations, those with the most time first; `progress` gets the rows read."""
    nodes = _counted_nodes(connection, wanted)
    is_merged = _is_merged(connection)
    found: list[OpFigures] = []
    if nodes:
        found += _counted(connection, wanted, nodes, is_merged)
    if not nodes or is_merged:  # nodes of a merged file that were recorded without counts
        found += _from_rows(connection, wanted, nodes, progress)
    return most_time_first(found)


def has_counts(connection: sqlite3.Connection, wanted: OpFilter) -> bool:
    """Return whether the figures of this part include calls that were not kept as rows."""
    return bool(_counted_nodes(connection, wanted))


def add_operations_table(connection: sqlite3.Connection) -> None:
    """Create the table `operations` for SQL of a user, visible to this connection only."""
    columns = "count, total_ns, min_ns, max_ns, p50_ns, p95_ns, p99_ns"
    connection.execute(f"CREATE TEMP TABLE operations (node, pid, source, op, {columns})")
    connection.executemany(
        f"INSERT INTO temp.operations VALUES ({', '.join('?' * 11)})",
        [
            (
                one.node, one.pid, source_name(one.key[0]), op_name(*one.key), one.count,
                one.total_ns, one.min_ns, one.max_ns, one.p50_ns, one.p95_ns, one.p99_ns,
            )
            for one in read_operations(connection, OpFilter())
        ],
    )  # fmt: skip


def _is_merged(connection: sqlite3.Connection) -> bool:
    if not table_columns(connection, "node_aggregates"):
        return False
    return bool(connection.execute("SELECT EXISTS (SELECT 1 FROM node_aggregates)").fetchone()[0])


def _counted_nodes(connection: sqlite3.Connection, wanted: OpFilter) -> list[str]:
    if not table_columns(connection, "op_durations"):
        return []
    sql = "SELECT DISTINCT node FROM op_durations WHERE bucket BETWEEN ? AND ?"
    return [str(node) for (node,) in connection.execute(sql, wanted.range)]


def _counted(
    connection: sqlite3.Connection, wanted: OpFilter, nodes: list[str], is_merged: bool
) -> list[OpFigures]:
    totals: dict[_Key, OpTotals] = {}
    table, node = ("node_aggregates", "node") if is_merged else ("event_aggregates", "NULL")
    rows = connection.execute(
        f"SELECT {node}, pid, source, op, sum(count), sum(sum_dur), min(min_dur), max(max_dur) "
        f"FROM {table} WHERE bucket BETWEEN ? AND ? AND count > 0 GROUP BY 1, 2, 3, 4",
        wanted.range,
    )
    for named, pid, source, op, *values in rows:
        where = nodes[0] if named is None else str(named)
        if where in nodes:
            _entry(totals, wanted, (where, pid, source, op)).add(*values)
    durations = connection.execute(
        "SELECT node, pid, source, op, floor_ns, ceiling_ns, sum(count) FROM op_durations "
        "WHERE bucket BETWEEN ? AND ? GROUP BY 1, 2, 3, 4, 5, 6",
        wanted.range,
    )
    for where, pid, source, op, floor_ns, ceiling_ns, count in durations:
        _entry(totals, wanted, (where, pid, source, op)).add_buckets(
            {(floor_ns, ceiling_ns): count}
        )
    return [
        entry.figures((source, op), pid, where)
        for (where, pid, source, op), entry in totals.items()
        if entry.count
    ]


def _entry(totals: dict[_Key, OpTotals], wanted: OpFilter, key: _Key) -> OpTotals:
    _, pid, source, op = key
    if wanted.pid is not None and pid != wanted.pid:
        return OpTotals()
    return totals.setdefault(key if wanted.per_process else ("", 0, source, op), OpTotals())


def _from_rows(
    connection: sqlite3.Connection,
    wanted: OpFilter,
    without: Sequence[str],
    progress: Callable[[int], None],
) -> Iterator[OpFigures]:
    where, values = "timestamp BETWEEN ? AND ?", [wanted.from_ns, wanted.to_ns]
    if wanted.pid is not None:
        where, values = f"{where} AND pid = ?", [*values, wanted.pid]
    if wanted.max_rows is not None:
        count = connection.execute(f"SELECT count(*) FROM events WHERE {where}", values)
        if count.fetchone()[0] > wanted.max_rows:
            yield from _totals(connection, wanted)
            return
    known = _from_aggregates(connection, wanted)
    if known is not None:
        yield from known
        return
    has_node = "node" in table_columns(connection, "events")
    node = "CAST(node AS TEXT)" if has_node and wanted.per_process else "''"
    cursor = connection.execute(
        f"SELECT {node}, timestamp, pid, source, op, duration FROM events WHERE {where}", values
    )
    for name, columns in _by_node(cursor, progress).items():
        if name not in without:
            yield from _node_figures(name, columns, wanted.per_process)


def _from_aggregates(connection: sqlite3.Connection, wanted: OpFilter) -> list[OpFigures] | None:
    """Return the figures of a whole large file whose aggregates count exactly its rows.

    Only the latest rows of each operation are read then. None where every row must be.
    """
    is_whole = wanted == OpFilter() and not _is_merged(connection)
    if not is_whole:
        return None
    totals = connection.execute(
        "SELECT pid, source, op, sum(count), sum(stored), sum(sum_dur), min(min_dur), max(max_dur) "
        "FROM event_aggregates GROUP BY 1, 2, 3 HAVING sum(stored) > 0"
    ).fetchall()
    rows = sum(one[4] for one in totals)
    if rows < MANY_ROWS or any(count != stored for *_, count, stored, _, _, _ in totals):
        return None
    if connection.execute("SELECT count(*) FROM events").fetchone()[0] != rows:
        return None
    node = _only_node(connection)
    found = []
    for pid, source, op, count, _, total_ns, min_ns, max_ns in totals:
        latest = np.sort(_latest(connection, pid, source, op, count))
        p50, p95, p99 = (percentile(latest, share) for share in SHARES)
        found.append(
            OpFigures(
                key=(source, op), pid=pid, node=node, count=count, total_ns=total_ns,
                min_ns=min_ns, max_ns=max_ns, p50_ns=p50, p95_ns=p95, p99_ns=p99,
            )
        )  # fmt: skip
    return found


def _only_node(connection: sqlite3.Connection) -> str:
    if "node" not in table_columns(connection, "events"):
        return ""
    return str(connection.execute("SELECT node FROM events LIMIT 1").fetchone()[0])


def _latest(
    connection: sqlite3.Connection, pid: int, source: int, op: int, count: int
) -> NDArray[np.int64]:
    """Return the durations of the latest calls; a rare operation is found by its name."""
    # a plus keeps SQLite from using the index of that column
    by_name, by_time = ("", "+") if count <= RARE_ROWS else ("+", "")
    sql = (
        f"SELECT duration FROM events WHERE {by_name}source = ? AND {by_name}op = ? "
        f"AND +pid = ? ORDER BY {by_time}timestamp DESC LIMIT {WINDOW}"
    )
    return int_table(connection.execute(sql, (source, op, pid)).fetchall(), 1)[:, 0]


def _by_node(
    cursor: sqlite3.Cursor, progress: Callable[[int], None]
) -> dict[str, NDArray[np.int64]]:
    """Return the rows of each node: time, pid, source, operation and duration as columns."""
    parts: dict[str, list[NDArray[np.int64]]] = {}
    done = 0
    while chunk := cursor.fetchmany(CHUNK_ROWS):
        done += len(chunk)
        progress(done)
        names, *columns = zip(*chunk, strict=True)
        try:
            table = np.array(columns, np.int64)
        except (ValueError, TypeError, OverflowError) as error:
            raise ForeignFile(f"{NOT_A_NUMBER}: {error}") from None
        distinct = set(names)
        for name in distinct:
            mine = table
            if len(distinct) > 1:
                mine = table[:, [one == name for one in names]]
            parts.setdefault(str(name), []).append(mine)
    return {name: np.concatenate(tables, axis=1) for name, tables in parts.items()}


def _node_figures(node: str, columns: NDArray[np.int64], per_process: bool) -> Iterator[OpFigures]:
    at, pid, source, op, duration = columns
    if (np.diff(at) < 0).any():
        order = np.argsort(at, kind="stable")
        pid, source, op, duration = (one[order] for one in (pid, source, op, duration))
    if not per_process:
        pid = np.zeros_like(pid)
    codes, groups = np.unique((pid << 32) | (source << 16) | op, return_inverse=True)
    order = np.argsort(groups, kind="stable")
    ends = np.cumsum(np.bincount(groups, minlength=len(codes)))
    for rows in np.split(order, ends[:-1]):
        key = (int(source[rows[0]]), int(op[rows[0]]))
        yield figures_of_rows(duration[rows], key, int(pid[rows[0]]), node)


def _totals(connection: sqlite3.Connection, wanted: OpFilter) -> Iterator[OpFigures]:
    """Yield totals without percentiles. The minute buckets also count events that have no row."""
    group = "pid, source, op" if wanted.per_process else "0, source, op"
    rows = connection.execute(
        f"SELECT {group}, sum(count), sum(sum_dur), min(min_dur), max(max_dur) FROM "
        "event_aggregates WHERE bucket BETWEEN ? AND ? AND pid = coalesce(?, pid) AND count > 0 "
        "GROUP BY 1, 2, 3",
        (*wanted.range, wanted.pid),
    ).fetchall()
    if not rows:  # a recorder without buckets stores every event
        rows = connection.execute(
            f"SELECT {group}, count(*), total(duration), min(duration), max(duration) FROM events "
            "WHERE timestamp BETWEEN ? AND ? AND pid = coalesce(?, pid) "
            "AND typeof(duration) = 'integer' GROUP BY +pid, +source, +op",
            (wanted.from_ns, wanted.to_ns, wanted.pid),
        ).fetchall()
    for pid, source, op, count, total, low, high in rows:
        try:
            yield OpFigures(
                key=(source, op), pid=pid, count=count, total_ns=int(total), min_ns=int(low),
                max_ns=int(high),
            )  # fmt: skip
        except (TypeError, ValueError) as error:
            raise ForeignFile(f"{NOT_A_NUMBER}: {error}") from None
