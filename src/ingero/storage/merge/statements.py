"""The SQL that copies one attached source (`src`) into the merged database (`main`).

Each source is checked for the tables and columns it has, because older versions had fewer. A
missing column takes its default.
"""

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from ingero.storage.trace.schema import (
    ADD_AGGREGATES,
    AGGREGATE_COLUMNS,
    MAX_STACK_BYTES,
    table_columns,
)

_AGGREGATE: Final = ", ".join(AGGREGATE_COLUMNS)
_LARGER_AGGREGATES: Final = "DO UPDATE SET " + ", ".join(
    f"{name} = {'min' if name == 'min_dur' else 'max'}({name}, excluded.{name})"
    for name in AGGREGATE_COLUMNS[4:]
)
_HAS_NO_NODE: Final = "ifnull(instr(id, ':'), 0) = 0"
# no two events are equal in all of these columns
_EVENT: Final = "timestamp, pid, tid, source, op, duration"
# higher numbers in ids were not assigned by us, and counting on from them could overflow
_COUNTED_UP_TO: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement with its parameters by name."""

    sql: str
    parameters: dict[str, object] = field(default_factory=dict)
    table: str = ""  # the table that receives the rows


def needs_force_node(connection: sqlite3.Connection) -> bool:
    """Return whether the file is from a version that did not record node names."""
    return "node" not in table_columns(connection, "events")


def nodes_of_source(connection: sqlite3.Connection) -> list[tuple[str, int, int]]:
    """Return the nodes of the attached source, the one with the most events first.

    Each comes with the time of its first event and the number of its events whose ids have no node
    prefix. An unnamed node is ''.
    """
    node = "node" if "node" in _columns(connection, "events") else "''"
    only = _only_node(connection, node)
    if only is not None:
        return [only]
    return connection.execute(
        f"SELECT {node}, coalesce(min(timestamp) FILTER (WHERE typeof(timestamp) = 'integer'), 0), "
        f"sum({_HAS_NO_NODE}) FROM src.events GROUP BY 1 ORDER BY count(*) DESC, 1"
    ).fetchall()


def _only_node(connection: sqlite3.Connection, node: str) -> tuple[str, int, int] | None:
    """Return the node of a source whose events all name the same one, as one agent records them.

    This is four times cheaper than grouping, and the first time comes from the index.
    """
    first = connection.execute(f"SELECT {node} FROM src.events LIMIT 1").fetchone()
    if first is None or not first[0]:
        return None
    differs = f"SELECT EXISTS (SELECT 1 FROM src.events WHERE {node} IS NOT ? OR {_HAS_NO_NODE})"
    if connection.execute(differs, first).fetchone()[0]:
        return None
    earliest = connection.execute(
        "SELECT min(timestamp) FROM src.events WHERE typeof(timestamp) = 'integer'"
    )
    return first[0], earliest.fetchone()[0] or 0, 0


def node_of_sessions(connection: sqlite3.Connection) -> str | None:
    """Return the node of a recording without events."""
    if "node" not in _columns(connection, "sessions"):
        return None
    named = connection.execute(
        "SELECT node FROM src.sessions WHERE node <> '' ORDER BY started_at DESC LIMIT 1"
    )
    return next((str(row[0]) for row in named), None)


def count_events(connection: sqlite3.Connection) -> int:
    """Return the number of events in the attached source."""
    return int(connection.execute("SELECT count(*) FROM src.events").fetchone()[0])


def count_incomplete_events(connection: sqlite3.Connection) -> int:
    """Return the number of events without a time, process, kind or duration.

    Tables of early versions allowed them.
    """
    lacking = " OR ".join(f"{name} IS NULL" for name in _EVENT.split(", "))
    return int(connection.execute(f"SELECT count(*) FROM src.events WHERE {lacking}").fetchone()[0])


def highest_number(connection: sqlite3.Connection, node: str) -> int:
    """Return the highest number after `node:` in any id of the output and the attached source.

    Higher numbers are free for new ids.
    """
    number = "CAST(substr(id, length(:node) + 2) AS INTEGER)"
    of_node = "id >= :node || ':' AND id < :node || ';'"  # the character after the colon
    sql = " UNION ALL ".join(
        f"SELECT coalesce(max({number}), 0) FROM {table} WHERE {of_node} "
        f"AND {number} < {_COUNTED_UP_TO}"
        for table in ("main.events", "src.events")
    )
    return max(int(row[0]) for row in connection.execute(sql, {"node": node}))


def count_oversized_stacks(connection: sqlite3.Connection) -> int:
    """Return the number of stacks in the attached source that are too large to be copied."""
    if not _columns(connection, "stack_traces"):
        return 0
    sql = f"SELECT count(*) FROM src.stack_traces WHERE {_stack_bytes(connection)} > ?"
    return int(connection.execute(sql, (MAX_STACK_BYTES,)).fetchone()[0])


def _stack_bytes(connection: sqlite3.Connection) -> str:
    texts = [name for name in ("frames", "ips") if name in _columns(connection, "stack_traces")]
    return f"max(0, 0{''.join(f', ifnull(length(CAST({name} AS BLOB)), 0)' for name in texts)})"


def copy_events(connection: sqlite3.Connection, node: str, used_numbers: int | None) -> Statement:
    """Copy the events whose ids are not in the output yet.

    Events without a node are given to `node`. Where ids have no node prefix, they are numbered from
    `used_numbers` on.
    """
    if used_numbers is None:
        return _copy(connection, "events", {"node": node})
    number = f"(:used + row_number() OVER (PARTITION BY {_HAS_NO_NODE} ORDER BY rowid))"
    identifier = (
        f"CASE WHEN {_HAS_NO_NODE} THEN {_node(connection, 'events')} || ':' || {number} "
        "ELSE id END"
    )
    return _copy(connection, "events", {"node": node, "used": used_numbers}, id=identifier)


def copy_displaced_events(
    connection: sqlite3.Connection, node: str, used_numbers: int
) -> Statement:
    """Copy events whose ids are taken, under new numbers.

    Two recordings of one node both number their events from 1.
    """
    is_displaced = (
        "EXISTS (SELECT 1 FROM main.events m WHERE m.id = src.events.id "
        f"AND ({_of('m')}) <> ({_of('src.events')})) AND ({_EVENT}) NOT IN (SELECT {_EVENT} "
        "FROM main.events)"
    )
    identifier = (
        f"{_node(connection, 'events')} || ':' || (:used + row_number() OVER (ORDER BY rowid))"
    )
    return _copy(
        connection,
        "events",
        {"node": node, "used": used_numbers},
        where=is_displaced,
        id=identifier,
    )


def _of(table: str) -> str:
    return ", ".join(f"{table}.{name}" for name in _EVENT.split(", "))


def copy_statements(
    connection: sqlite3.Connection,
    node: str,
    *,
    is_only_node: bool,
    node_is_new: bool,
    is_copy: bool,
) -> Iterator[Statement]:
    """Return the statements that copy all but events; rows without a node are given to `node`.

    If a node was merged before, rows without a key are compared value by value. A copy (a source
    whose events are merged already) adds nothing to the counts.
    """
    named: dict[str, object] = {"node": node}
    chain_id = (
        f"CASE WHEN instr(id, ':') > 0 THEN id ELSE {_node(connection, 'causal_chains')} || ':' || "
        "id END"
    )
    yield _copy(connection, "causal_chains", named, id=chain_id)
    if _columns(connection, "stack_traces"):
        small = f"{_stack_bytes(connection)} <= :limit"
        yield _copy(connection, "stack_traces", {"limit": MAX_STACK_BYTES}, where=small)
    yield from _sessions(connection, named)
    yield _copy(connection, "collectives", named, without_id=True, compare=not node_is_new)
    yield _copy(
        connection,
        "annotations",
        named,
        without_id=True,
        compare=not node_is_new,
        labels=_LABELS_WITH_NODE,
    )
    yield _copy(connection, "system_snapshots", {}, without_id=True)
    for table in (
        "process_names",
        "cgroup_metadata",
        "cgroup_schedstat",
        "gpu_memory",
        *_BY_NODE,
        "chain_history",
    ):
        yield _copy(connection, table, named)
    for table, origin in _BY_NODE.items():
        if is_only_node and _is_empty(connection, table):
            yield _copy(connection, table, named, origin=origin)
    yield from _aggregates(connection, named, is_copy=is_copy)


def add_up_aggregates(connection: sqlite3.Connection) -> None:
    """Sum the counts per node into the published table, which counts over the whole cluster."""
    sums = "sum(count), sum(stored), sum(sum_dur), min(min_dur), max(max_dur), sum(sum_arg0)"
    connection.execute(
        f"INSERT INTO main.event_aggregates ({_AGGREGATE}) SELECT bucket, source, op, pid, {sums} "
        "FROM main.node_aggregates GROUP BY 1, 2, 3, 4"
    )


# tables by node, and the table of a recording of one node that their rows come from
_BY_NODE: Final = {"processes": "process_names", "node_snapshots": "system_snapshots"}

# a process id means nothing without its node, and the table has no column for the node
_LABELS_WITH_NODE: Final = (
    "CASE WHEN NOT json_valid(labels) THEN labels "
    "WHEN labels ->> '$.node' IS NULL THEN json_set(labels, '$.node', :node) ELSE labels END"
)


def _columns(connection: sqlite3.Connection, table: str) -> dict[str, bool]:
    """Return the columns of a source's table, and whether each always has a value."""
    sql = "SELECT name, \"notnull\" FROM pragma_table_info(?, 'src')"
    return {name: bool(required) for name, required in connection.execute(sql, (table,))}


def _is_empty(connection: sqlite3.Connection, table: str) -> bool:
    columns = _columns(connection, table)
    return (
        not columns
        or not connection.execute(f"SELECT EXISTS (SELECT 1 FROM src.{table})").fetchone()[0]
    )


def _node(connection: sqlite3.Connection, table: str) -> str:
    return "coalesce(nullif(node, ''), :node)" if "node" in _columns(connection, table) else ":node"


def _copy(
    connection: sqlite3.Connection,
    table: str,
    parameters: dict[str, object],
    *,
    origin: str = "",
    where: str = "1",
    without_id: bool = False,
    compare: bool = False,
    **expressions: str,
) -> Statement:
    """Copy a table, or `origin` into it; rows whose key exists already are kept as they are."""
    origin = origin or table
    present = _columns(connection, origin)
    if not present:
        return Statement("SELECT 1")
    chosen = {}
    described = connection.execute("SELECT * FROM pragma_table_info(?, 'main')", (table,))
    for _, name, kind, required, default, is_key in described:
        blank = "''" if kind == "TEXT" else default
        if name in expressions:
            chosen[name] = expressions[name]
        elif name == "node":
            chosen[name] = _node(connection, origin)
        elif without_id and name == "id":
            continue
        elif name in present:
            chosen[name] = (
                f"ifnull({name}, {blank})" if required and blank and not present[name] else name
            )
        elif required and default is None and not is_key:
            chosen[name] = blank or "0"
    columns, values = ", ".join(chosen), ", ".join(chosen.values())
    used = {key: value for key, value in parameters.items() if f":{key}" in values + where}
    known = f" EXCEPT SELECT {columns} FROM main.{table}" if compare else ""
    return Statement(
        f"INSERT OR IGNORE INTO main.{table} ({columns}) SELECT {values} FROM src.{origin} "
        f"WHERE {where}{known}",
        used,
        table,
    )


def _sessions(connection: sqlite3.Connection, named: dict[str, object]) -> Iterator[Statement]:
    """Copy sessions under numbers above those in use, together with the losses recorded in them."""
    if not _columns(connection, "sessions"):
        return
    offset = connection.execute("SELECT coalesce(max(id), 0) FROM main.sessions").fetchone()[0]
    parameters = {**named, "offset": offset}
    node = _node(connection, "sessions")
    is_new = (
        f"NOT EXISTS (SELECT 1 FROM main.sessions m WHERE m.node = {node} "
        "AND m.started_at = src.sessions.started_at)"
    )
    yield _copy(connection, "sessions", parameters, where=is_new, id=":offset + id")
    if _columns(connection, "losses"):
        yield Statement(
            "INSERT OR IGNORE INTO main.losses SELECT :offset + session_id, place, count, "
            "updated_at FROM src.losses WHERE :offset + session_id IN (SELECT id "
            "FROM main.sessions)",
            {"offset": offset},
        )


def _aggregates(
    connection: sqlite3.Connection, named: dict[str, object], *, is_copy: bool
) -> Iterator[Statement]:
    """Add up counts, except those of a copy: by node per minute, by cluster per five seconds."""
    source, node = (
        ("event_aggregates", ":node")
        if _is_empty(connection, "node_aggregates")
        else ("node_aggregates", "node")
    )
    if _columns(connection, source):
        yield Statement(
            f"INSERT INTO main.node_aggregates (node, {_AGGREGATE}) SELECT {node}, {_AGGREGATE} "
            f"FROM src.{source} WHERE 1 ON CONFLICT (node, bucket, source, op, pid) "
            f"{_LARGER_AGGREGATES if is_copy else ADD_AGGREGATES}",
            named if node == ":node" else {},
        )
    if _columns(connection, "op_durations"):
        keep = "max(count, excluded.count)" if is_copy else "count + excluded.count"
        node = _node(connection, "op_durations")
        yield Statement(
            f"INSERT INTO main.op_durations SELECT {node}, bucket, source, op, pid, floor_ns, "
            f"ceiling_ns, count FROM src.op_durations WHERE 1 ON CONFLICT DO UPDATE SET count = "
            f"{keep}",
            named,
        )
    if _columns(connection, "event_aggregates_5s"):
        yield Statement(
            f"INSERT INTO main.event_aggregates_5s ({_AGGREGATE}) SELECT {_AGGREGATE} "
            "FROM src.event_aggregates_5s WHERE 1 ON CONFLICT (bucket, source, op, pid) "
            f"{'DO NOTHING' if is_copy else ADD_AGGREGATES}"
        )
