"""Annotations of a trace database, joined to its events and chains."""

import sqlite3
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from ingero.contract.chain import CHAIN_WINDOW_NS
from ingero.contract.events import PROCESS_EXEC, PROCESS_EXIT, find_op
from ingero.core.recording.event_labels import StoredAnnotation, label_events
from ingero.storage.trace.chains import RecordedChain
from ingero.storage.trace.json_columns import json_object
from ingero.storage.trace.reading import connect_readonly
from ingero.storage.trace.schema import table_columns

StepMark = tuple[int, int, int, int | None]  # process, step, from, to (None for a single moment)


def labels_of(
    connection: sqlite3.Connection, events: Sequence[tuple[int, int]]
) -> list[dict[str, str]]:
    """Return the labels in force at each event (pid, time); files without annotations have none."""
    if not events or not table_columns(connection, "annotations"):
        return [{} for _ in events]
    last_ns = max(at_ns for _, at_ns in events)
    return label_events(_read_notes(connection, last_ns), _read_turns(connection), events)


def follow_steps(path: Path, after: int | None, limit: int) -> tuple[int, list[StepMark]]:
    """Return (newest id, steps annotated after id `after`), at most `limit` steps.

    With `after` None only the newest id is read.
    """
    connection = connect_readonly(path)
    try:
        if not table_columns(connection, "annotations"):
            return 0, []
        newest = int(
            connection.execute("SELECT coalesce(max(id), 0) FROM annotations").fetchone()[0]
        )
        if after is None or after >= newest:
            return newest, []
        rows = connection.execute(
            "SELECT id, iif(pid > 0, pid, peer_pid), iif(span_end > 0, span_start, timestamp), "
            "nullif(span_end, 0), labels FROM annotations WHERE id > ? ORDER BY id LIMIT ?",
            (after, limit),
        ).fetchall()
        named = [
            (pid, step, begin, end)
            for _, pid, begin, end, text in rows
            if (step := _step(text)) is not None
        ]
        return (rows[-1][0] if rows else newest), named
    finally:
        connection.close()


def _step(text: str) -> int | None:
    value = str((json_object(text) or {}).get("step"))
    return int(value) if value.isascii() and value.isdigit() and len(value) < 19 else None


def labels_of_chains(
    connection: sqlite3.Connection, chains: Sequence[RecordedChain]
) -> list[dict[str, str]]:
    """Return the labels in force at the slowest call of each chain, or when the chain was found."""
    return labels_of(connection, [_slowest_call(connection, recorded) for recorded in chains])


def _read_notes(connection: sqlite3.Connection, last_ns: int) -> list[StoredAnnotation]:
    rows = connection.execute(
        "SELECT timestamp, id, pid, span_start, span_end, labels FROM annotations "
        "WHERE min(timestamp, iif(span_end > 0, span_start, timestamp)) <= ? "
        "ORDER BY timestamp, id",
        (last_ns,),
    )
    notes = []
    for at_ns, number, pid, start_ns, end_ns, text in rows:
        labels = json_object(text)
        if labels is not None:
            texts = {key: str(value) for key, value in labels.items()}
            begin, end = (start_ns, end_ns) if end_ns else (at_ns, None)
            notes.append(StoredAnnotation((at_ns, number), pid, begin, end, texts))
    return notes


def _read_turns(connection: sqlite3.Connection) -> dict[int, list[int]]:
    """Return when each process started another program or exited, not counting threads."""
    turns: dict[int, list[int]] = defaultdict(list)
    sql = (
        "SELECT pid, timestamp FROM events WHERE source = ? AND (op = ? OR (op = ? AND pid = tid)) "
        "ORDER BY timestamp"
    )
    for pid, at_ns in connection.execute(sql, (*PROCESS_EXEC, PROCESS_EXIT[1])):
        turns[pid].append(at_ns)
    return turns


def _slowest_call(connection: sqlite3.Connection, recorded: RecordedChain) -> tuple[int, int]:
    op = find_op(recorded.chain.cuda_op)
    if op is None:
        return recorded.chain.pid, recorded.detected_at_ns
    row = connection.execute(
        "SELECT pid, timestamp FROM events WHERE source = ? AND op = ? "
        "AND timestamp BETWEEN ? AND ? AND (? = 0 OR pid = ?) ORDER BY duration DESC LIMIT 1",
        (
            *op,
            recorded.detected_at_ns - CHAIN_WINDOW_NS,
            recorded.detected_at_ns,
            recorded.chain.pid,
            recorded.chain.pid,
        ),
    ).fetchone()
    return (row[0], row[1]) if row else (recorded.chain.pid, recorded.detected_at_ns)
