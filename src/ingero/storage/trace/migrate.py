"""Upgrading an older trace database to the current schema, in one transaction."""

import sqlite3

from ingero.storage.trace.schema import TABLES, create_schema, table_columns


def upgrade(connection: sqlite3.Connection, node: str) -> None:
    """Create or complete the schema; ids from before node names get `node` as their prefix."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        _rebuild_integer_events(connection, node)
        for table in TABLES:
            _add_missing_columns(connection, table)
        create_schema(connection)
        connection.execute("DROP INDEX IF EXISTS idx_events_source_op")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _rebuild_integer_events(connection: sqlite3.Connection, node: str) -> None:
    """Rebuild `events` of the first format, whose integer key cannot hold `node:number`."""
    types = dict(
        connection.execute("SELECT name, type FROM pragma_table_info('events')").fetchall()
    )
    if not types or types["id"].upper() != "INTEGER":
        return
    connection.execute("ALTER TABLE events RENAME TO events_integer")
    connection.execute(f"CREATE TABLE events {TABLES['events']}")
    shared = [
        name
        for name in table_columns(connection, "events")
        if name in types and name not in ("id", "node")
    ]
    columns = ", ".join(shared)
    named = "coalesce(nullif(node, ''), ?)" if "node" in types else "?"
    connection.execute(
        f"INSERT INTO events (id, node, {columns}) SELECT {named} || ':' || id, {named}, {columns} "
        "FROM events_integer",
        (node, node),
    )
    connection.execute("DROP TABLE events_integer")


def _add_missing_columns(connection: sqlite3.Connection, table: str) -> None:
    present = set(table_columns(connection, table))
    if not present:
        return
    with_all = sqlite3.connect(":memory:")
    try:
        with_all.execute(f"CREATE TABLE {table} {TABLES[table]}")
        for _, name, kind, required, default, _ in with_all.execute(
            "SELECT * FROM pragma_table_info(?)", (table,)
        ):
            if name not in present:
                rule = f"NOT NULL DEFAULT {default}" if required and default is not None else ""
                connection.execute(f"ALTER TABLE {table} ADD COLUMN {name} {kind} {rule}")
    finally:
        with_all.close()
