"""Rows of a trace database as values for statistics and causal chains; files of every version."""

import sqlite3

import numpy as np

from ingero.core.event_columns import COLUMN_NAMES, EventColumns, columns_from_rows
from ingero.core.evidence import SystemSample
from ingero.storage.schema import table_columns

MAX_TIME_NS = 2**63 - 1


def read_events(
    connection: sqlite3.Connection, from_ns: int = 0, to_ns: int = MAX_TIME_NS, last: int = 0, node: str | None = None
) -> EventColumns:
    """Events in time order; `last` keeps only the newest so many, `node` only that node's."""
    present = set(table_columns(connection, "events"))
    columns = ", ".join(name if name in present else f"0 AS {name}" for name in COLUMN_NAMES)
    where, values = "timestamp BETWEEN ? AND ?", [from_ns, to_ns]
    parameters: list[object] = list(values)
    if node is not None and "node" in present:
        where += " AND node = ?"
        parameters.append(node)
    sql = f"SELECT {columns} FROM events WHERE {where} ORDER BY timestamp"
    if last:
        sql = f"SELECT * FROM (SELECT {columns} FROM events WHERE {where} ORDER BY timestamp DESC LIMIT {int(last)})"
    found = columns_from_rows(connection.execute(sql, parameters).fetchall())
    return found.take(np.argsort(found.timestamp, kind="stable"))


def read_samples(connection: sqlite3.Connection, from_ns: int = 0, to_ns: int = MAX_TIME_NS) -> list[SystemSample]:
    """System samples in time order."""
    rows = connection.execute(
        "SELECT timestamp, cpu_pct, mem_pct, mem_avail, swap_mb, load_avg FROM system_snapshots "
        "WHERE timestamp BETWEEN ? AND ? ORDER BY timestamp",
        (from_ns, to_ns),
    )
    return [SystemSample(*row) for row in rows]


def read_nodes(connection: sqlite3.Connection) -> list[str]:
    """Nodes with events in this file; a file from before node names has one without a name."""
    if "node" not in table_columns(connection, "events"):
        return [""]
    return [row[0] for row in connection.execute("SELECT DISTINCT node FROM events ORDER BY node")]
