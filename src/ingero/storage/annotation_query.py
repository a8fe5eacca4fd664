"""Annotations of a trace database, joined to its events and chains."""

import json
import sqlite3
from collections import defaultdict
from collections.abc import Sequence

from ingero.contract.events import PROCESS_EXEC, PROCESS_EXIT, find_op
from ingero.core.annotated import Note, label_events
from ingero.storage.chain_table import CHAIN_WINDOW_NS, RecordedChain
from ingero.storage.schema import table_columns


def labels_of(connection: sqlite3.Connection, events: Sequence[tuple[int, int]]) -> list[dict[str, str]]:
    """Labels that held for each event (pid, time); files from before annotations have none."""
    if not events or not table_columns(connection, "annotations"):
        return [{} for _ in events]
    last_ns = max(at_ns for _, at_ns in events)
    return label_events(_read_notes(connection, last_ns), _read_turns(connection), events)


def labels_of_chains(connection: sqlite3.Connection, chains: Sequence[RecordedChain]) -> list[dict[str, str]]:
    """Labels that held for the slowest call of each chain, else for the moment it was found."""
    return labels_of(connection, [_slowest_call(connection, recorded) for recorded in chains])


def _read_notes(connection: sqlite3.Connection, last_ns: int) -> list[Note]:
    rows = connection.execute(
        "SELECT timestamp, id, pid, span_start, span_end, labels FROM annotations "
        "WHERE min(timestamp, iif(span_end > 0, span_start, timestamp)) <= ? ORDER BY timestamp, id",
        (last_ns,),
    )
    notes = []
    for at_ns, number, pid, start_ns, end_ns, text in rows:
        try:
            labels = json.loads(text)
        except ValueError:
            continue  # written by somebody else
        if isinstance(labels, dict):
            texts = {str(key): str(value) for key, value in labels.items()}
            begin, end = (start_ns, end_ns) if end_ns else (at_ns, None)
            notes.append(Note((at_ns, number), pid, begin, end, texts))
    return notes


def _read_turns(connection: sqlite3.Connection) -> dict[int, list[int]]:
    """When each process began another program or ended; the end of a thread is neither."""
    turns: dict[int, list[int]] = defaultdict(list)
    sql = "SELECT pid, timestamp FROM events WHERE source = ? AND (op = ? OR (op = ? AND pid = tid)) ORDER BY timestamp"
    for pid, at_ns in connection.execute(sql, (*PROCESS_EXEC, PROCESS_EXIT[1])):
        turns[pid].append(at_ns)
    return turns


def _slowest_call(connection: sqlite3.Connection, recorded: RecordedChain) -> tuple[int, int]:
    op = find_op(recorded.chain.cuda_op)
    if op is None:
        return recorded.chain.pid, recorded.detected_at_ns
    row = connection.execute(
        "SELECT pid, timestamp FROM events WHERE source = ? AND op = ? AND timestamp BETWEEN ? AND ? "
        "AND (? = 0 OR pid = ?) ORDER BY duration DESC LIMIT 1",
        (
            *op,
            recorded.detected_at_ns - CHAIN_WINDOW_NS,
            recorded.detected_at_ns,
            recorded.chain.pid,
            recorded.chain.pid,
        ),
    ).fetchone()
    return (row[0], row[1]) if row else (recorded.chain.pid, recorded.detected_at_ns)
