"""Causal chains in a trace database: written with their history, read from all versions."""

import json
import sqlite3
from dataclasses import dataclass
from typing import Final

from ingero.contract.chain import Chain, Severity, TimelineEntry, chain_id
from ingero.contract.events import Layer
from ingero.errors import ForeignFile
from ingero.storage.trace.database import Row, insert_sql
from ingero.storage.trace.json_columns import json_list
from ingero.storage.trace.schema import table_columns

CHAIN_COLUMNS: Final = (
    "id", "detected_at", "severity", "summary", "root_cause", "explanation", "recommendations",
    "cuda_op", "cuda_p99_us", "cuda_p50_us", "tail_ratio", "timeline", "node",
)  # fmt: skip
_WORST_FIRST: Final = (
    "CASE severity WHEN 'CRITICAL' THEN 0 WHEN 'HIGH' THEN 1 WHEN 'MEDIUM' THEN 2 "
    "ELSE 3 END, detected_at DESC, id"
)
NEWEST_FIRST: Final = "detected_at DESC, causal_chains.rowid DESC"
UPSERT_CHAIN: Final = insert_sql("causal_chains", CHAIN_COLUMNS, "INSERT OR REPLACE")
UPSERT_HISTORY: Final = """
    INSERT INTO chain_history (id, first_seen, last_seen, hits, pid, confidence)
    VALUES (?1, ?2, ?2, 1, ?3, ?4)
    ON CONFLICT (id) DO UPDATE SET last_seen = max(last_seen, excluded.last_seen), hits = hits + 1,
    resolved_at = NULL, pid = excluded.pid, confidence = excluded.confidence"""


@dataclass(frozen=True, slots=True)
class RecordedChain:
    """A chain found in a file; `chain.name` is its id without the node."""

    id: str
    node: str
    detected_at_ns: int
    chain: Chain


def chain_row(node: str, detected_at_ns: int, chain: Chain) -> Row:
    """Return a chain as a row in the order of `CHAIN_COLUMNS`."""
    timeline = [
        {"layer": str(entry.layer), "op": entry.op, "detail": entry.detail}
        | ({"dur_us": entry.duration_us} if entry.duration_us else {})
        for entry in chain.timeline
    ]
    return (
        chain_id(node, chain.name), detected_at_ns, str(chain.severity), chain.summary,
        chain.root_cause, chain.explanation, json.dumps(chain.recommendations, ensure_ascii=False),
        chain.cuda_op, chain.p99_ns // 1000, chain.p50_ns // 1000, chain.tail_ratio,
        json.dumps(timeline, ensure_ascii=False), node,
    )  # fmt: skip


def history_row(node: str, detected_at_ns: int, chain: Chain) -> Row:
    """Return the parameters of `UPSERT_HISTORY`."""
    return chain_id(node, chain.name), detected_at_ns, chain.pid, chain.confidence


def read_chains(
    connection: sqlite3.Connection,
    from_ns: int = 0,
    to_ns: int = 2**63 - 1,
    limit: int = 10_000,
    order: str = _WORST_FIRST,
) -> list[RecordedChain]:
    """Return the recorded chains, worst first, then latest first; none if the table is missing."""
    present = table_columns(connection, "causal_chains")
    if not present:
        return []
    columns = ", ".join(name if name in present else f"'' AS {name}" for name in CHAIN_COLUMNS)
    history = "chain_history" if table_columns(connection, "chain_history") else ""
    join = f"LEFT JOIN {history} h USING (id)" if history else ""
    extra = "h.pid, h.confidence" if history else "0, NULL"
    rows = connection.execute(
        f"SELECT {columns}, {extra} FROM causal_chains {join} WHERE detected_at BETWEEN ? AND ? "
        f"ORDER BY {order} LIMIT ?",
        (from_ns, to_ns, limit),
    )
    try:
        return [_decode(row) for row in rows]
    except ValueError as error:
        raise ForeignFile(f"a chain has a value that is not a number: {error}") from None


def _decode(row: tuple[object, ...]) -> RecordedChain:
    values = dict(zip((*CHAIN_COLUMNS, "pid", "confidence"), row, strict=True))
    node = str(values["node"] or "")
    identifier = str(values["id"])
    severity = str(values["severity"])
    chain = Chain(
        name=identifier.removeprefix(f"{node}:") if node else identifier,
        severity=Severity(severity) if severity in set(Severity) else Severity.HIGH,
        summary=str(values["summary"]),
        root_cause=str(values["root_cause"]),
        explanation=str(values["explanation"]),
        recommendations=tuple(str(item) for item in json_list(values["recommendations"])),
        cuda_op=str(values["cuda_op"] or ""),
        p99_ns=int(str(values["cuda_p99_us"] or 0)) * 1000,
        p50_ns=int(str(values["cuda_p50_us"] or 0)) * 1000,
        tail_ratio=float(str(values["tail_ratio"] or 0)),
        timeline=tuple(
            _decode_entry(item) for item in json_list(values["timeline"]) if isinstance(item, dict)
        ),
        pid=int(str(values["pid"] or 0)),
        confidence=None if values["confidence"] is None else float(str(values["confidence"])),
    )
    return RecordedChain(identifier, node, int(str(values["detected_at"])), chain)


def _decode_entry(item: dict[str, object]) -> TimelineEntry:
    layer = str(item.get("layer", ""))
    known = Layer(layer) if layer in set(Layer) else Layer.INFRA
    duration = item.get("dur_us", 0)
    return TimelineEntry(
        known,
        str(item.get("op", "")),
        str(item.get("detail", "")),
        duration if isinstance(duration, int) else 0,
    )
