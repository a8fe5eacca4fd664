"""The statements that move one attached source (`src`) into the merged database (`main`).

Sources of every version are probed for tables and columns; what a source lacks takes the column's default.
"""

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from ingero.storage.schema import ADD_AGGREGATES, AGGREGATE_COLUMNS, MAX_STACK_BYTES, table_columns

COUNTED: Final = ("events", "causal_chains", "stack_traces")
_AGGREGATE: Final = ", ".join(AGGREGATE_COLUMNS)


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement and its parameters; the keys are the names in the text."""

    sql: str
    parameters: dict[str, object] = field(default_factory=dict)
    table: str = ""  # that the rows go to


def needs_force_node(connection: sqlite3.Connection) -> bool:
    """True for a file from before node names."""
    return "node" not in table_columns(connection, "events")


def nodes_of_source(connection: sqlite3.Connection) -> list[tuple[str, int, int]]:
    """Nodes of the attached source, the one with the most events first, '' being one without name; with each the time
    of its first event and how many of its events have ids without a node in front."""
    node = "node" if "node" in _columns(connection, "events") else "''"
    only = _only_node(connection, node)
    if only is not None:
        return [only]
    return connection.execute(
        f"SELECT {node}, coalesce(min(timestamp) FILTER (WHERE typeof(timestamp) = 'integer'), 0), "
        "sum(instr(id, ':') = 0) FROM src.events GROUP BY 1 ORDER BY count(*) DESC, 1"
    ).fetchall()


def _only_node(connection: sqlite3.Connection, node: str) -> tuple[str, int, int] | None:
    """The one node of a source whose events all name it, as a recording of one agent does: four times cheaper than
    grouping, and the first time comes from the index."""
    first = connection.execute(f"SELECT {node} FROM src.events LIMIT 1").fetchone()
    if first is None or not first[0]:
        return None
    differs = f"SELECT EXISTS (SELECT 1 FROM src.events WHERE {node} IS NOT ? OR instr(id, ':') = 0)"
    if connection.execute(differs, first).fetchone()[0]:
        return None
    earliest = connection.execute("SELECT min(timestamp) FROM src.events WHERE typeof(timestamp) = 'integer'")
    return first[0], earliest.fetchone()[0] or 0, 0


def highest_number(connection: sqlite3.Connection) -> int:
    """The highest number behind a node's name in an id, of what is merged and of the attached source: ids made from
    here on are new."""
    number = "coalesce(max(CAST(substr(id, instr(id, ':') + 1) AS INTEGER)), 0)"
    tables = ("main.events", "src.events")
    sql = " UNION ALL ".join(f"SELECT {number} FROM {table} WHERE instr(id, ':') > 0" for table in tables)
    return max(int(row[0]) for row in connection.execute(sql))


def count_oversized_stacks(connection: sqlite3.Connection) -> int:
    """Stacks of the attached source that will not be copied."""
    if not _columns(connection, "stack_traces"):
        return 0
    sql = "SELECT count(*) FROM src.stack_traces WHERE max(length(frames), length(ips)) > ?"
    return int(connection.execute(sql, (MAX_STACK_BYTES,)).fetchone()[0])


def copy_statements(
    connection: sqlite3.Connection, node: str, used_numbers: int | None, *, node_is_new: bool
) -> Iterator[Statement]:
    """Everything to run for the attached source, whose unnamed rows are `node`'s, numbered after `used_numbers` (None
    where all have a name).

    Where a node was merged before (an older copy of its file), rows without a key are compared value for value.
    """
    named: dict[str, object] = {"node": node}
    yield _events(connection, node, used_numbers)
    chain_id = f"CASE WHEN instr(id, ':') > 0 THEN id ELSE {_node(connection, 'causal_chains')} || ':' || id END"
    yield _copy(connection, "causal_chains", named, id=chain_id)
    yield _copy(
        connection, "stack_traces", {"limit": MAX_STACK_BYTES}, where="max(length(frames), length(ips)) <= :limit"
    )
    yield from _sessions(connection, named)
    yield _copy(connection, "system_snapshots", {}, without_id=True)
    yield _copy(connection, "collectives", named, without_id=True, compare=not node_is_new)
    yield _copy(connection, "annotations", named, without_id=True, compare=not node_is_new, labels=_LABELS_WITH_NODE)
    for table in ("process_names", "cgroup_metadata", "cgroup_schedstat", "processes", "chain_history"):
        yield _copy(connection, table, named)
    if not _columns(connection, "processes"):
        yield _processes_from_names(connection, named)
    yield from _aggregates(connection, named)


# a process id means nothing without its node, and the table has no column for it
_LABELS_WITH_NODE: Final = (
    "CASE WHEN labels ->> '$.node' IS NULL THEN json_set(labels, '$.node', :node) ELSE labels END"
)


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    return [row[0] for row in connection.execute("SELECT name FROM pragma_table_info(?, 'src')", (table,))]


def _node(connection: sqlite3.Connection, table: str) -> str:
    return "coalesce(nullif(node, ''), :node)" if "node" in _columns(connection, table) else ":node"


def _copy(
    connection: sqlite3.Connection,
    table: str,
    parameters: dict[str, object],
    *,
    where: str = "1",
    without_id: bool = False,
    compare: bool = False,
    **expressions: str,
) -> Statement:
    """Copy a table by the columns both sides have; rows whose key is there already stay as they are."""
    present = set(_columns(connection, table))
    if not present:
        return Statement("SELECT 1")
    wanted = [name for name in table_columns(connection, table) if not (without_id and name == "id")]
    if "node" in wanted:
        expressions.setdefault("node", _node(connection, table))
    chosen = {name: expressions.get(name, name) for name in wanted if name in present or name in expressions}
    columns, values = ", ".join(chosen), ", ".join(chosen.values())
    used = {key: value for key, value in parameters.items() if f":{key}" in values + where}
    known = f" EXCEPT SELECT {columns} FROM main.{table}" if compare else ""
    return Statement(
        f"INSERT OR IGNORE INTO main.{table} ({columns}) SELECT {values} FROM src.{table} WHERE {where}{known}",
        used,
        table,
    )


def _events(connection: sqlite3.Connection, node: str, used_numbers: int | None) -> Statement:
    if used_numbers is None:
        return _copy(connection, "events", {"node": node})
    number = "(:used + row_number() OVER (PARTITION BY instr(id, ':') > 0 ORDER BY rowid))"
    identifier = f"CASE WHEN instr(id, ':') > 0 THEN id ELSE {_node(connection, 'events')} || ':' || {number} END"
    return _copy(connection, "events", {"node": node, "used": used_numbers}, id=identifier)


def _sessions(connection: sqlite3.Connection, named: dict[str, object]) -> Iterator[Statement]:
    """Sessions get new numbers above those in use, and what was lost in them goes along."""
    if not _columns(connection, "sessions"):
        return
    offset = connection.execute("SELECT coalesce(max(id), 0) FROM main.sessions").fetchone()[0]
    parameters = {**named, "offset": offset}
    node = _node(connection, "sessions")
    is_new = (
        f"NOT EXISTS (SELECT 1 FROM main.sessions m WHERE m.node = {node} AND m.started_at = src.sessions.started_at)"
    )
    yield _copy(connection, "sessions", parameters, where=is_new, id=":offset + id")
    if _columns(connection, "losses"):
        yield Statement(
            "INSERT OR IGNORE INTO main.losses SELECT :offset + session_id, place, count, updated_at FROM src.losses "
            "WHERE :offset + session_id IN (SELECT id FROM main.sessions)",
            {"offset": offset},
        )


def _processes_from_names(connection: sqlite3.Connection, named: dict[str, object]) -> Statement:
    if not _columns(connection, "process_names"):
        return Statement("SELECT 1")
    return Statement(
        "INSERT OR IGNORE INTO main.processes (node, pid, name, seen_at) "
        "SELECT :node, pid, name, seen_at FROM src.process_names",
        named,
    )


def _aggregates(connection: sqlite3.Connection, named: dict[str, object]) -> Iterator[Statement]:
    """Counts add up: over the whole cluster in the published tables, per node in ours."""
    for table in ("event_aggregates", "event_aggregates_5s"):
        if _columns(connection, table):
            yield Statement(
                f"INSERT INTO main.{table} ({_AGGREGATE}) SELECT {_AGGREGATE} FROM src.{table} WHERE 1 "
                f"ON CONFLICT (bucket, source, op, pid) {ADD_AGGREGATES}"
            )
    merged_before = (
        bool(_columns(connection, "node_aggregates"))
        and connection.execute("SELECT EXISTS (SELECT 1 FROM src.node_aggregates)").fetchone()[0]
    )
    source, node = ("node_aggregates", "node") if merged_before else ("event_aggregates", ":node")
    if _columns(connection, source):
        yield Statement(
            f"INSERT INTO main.node_aggregates (node, {_AGGREGATE}) SELECT {node}, {_AGGREGATE} FROM src.{source} "
            f"WHERE 1 ON CONFLICT (node, bucket, source, op, pid) {ADD_AGGREGATES}",
            {} if merged_before else named,
        )
