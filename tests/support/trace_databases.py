"""Trace databases that tests create, change and read."""

import sqlite3
from pathlib import Path

from ingero.storage.trace.schema import create_schema


def database(path: Path, node: str = "n1", events: int = 3, start_ns: int = 10**18) -> Path:
    """Create a trace database of one node, with rows in the tables that a merge treats apart."""
    connection = sqlite3.connect(path)
    create_schema(connection)
    connection.executemany(
        "INSERT INTO events (id, timestamp, pid, tid, source, op, duration, node) VALUES (?, ?, 7, "
        "7, 1, 3, 1000, ?)",
        [(f"{node}:{i}", start_ns + i, node) for i in range(events)],
    )
    connection.execute("INSERT INTO event_aggregates VALUES (60, 1, 3, 7, 10, 3, 100, 1, 50, 0)")
    connection.execute("INSERT INTO process_names VALUES (7, ?, 1)", (f"python-{node}",))
    connection.execute("INSERT INTO sessions (started_at, node) VALUES (?, ?)", (start_ns, node))
    connection.execute(
        'INSERT INTO annotations (timestamp, labels, pid) VALUES (5, \'{"step": "1"}\', 7)'
    )
    connection.execute(
        "INSERT INTO collectives (comm, op, rank, nranks, datatype, size_bytes, start_ns, end_ns, "
        "source, node) VALUES (1, 'AllReduce', 0, 2, 'float32', 4, 1, 2, 'ebpf', ?)",
        (node,),
    )
    connection.execute("INSERT INTO stack_traces VALUES (1, '[]', ?)", ("x" * 70000,))
    connection.commit()
    connection.close()
    return path


def changed(path: Path, *statements: str) -> Path:
    """Run statements on a database; return its path."""
    with sqlite3.connect(path) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()
    return path


def rows(path: Path, sql: str) -> list[tuple[object, ...]]:
    """Return what a query finds, leaving nothing beside the file."""
    connection = sqlite3.connect(f"file:{path}?immutable=1", uri=True)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()
