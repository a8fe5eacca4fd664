"""A trace database as a timeline: nodes, events and collectives in chunks, chains with their events, host counters."""

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any, Final

from ingero.contract.events import Layer, Source, find_op
from ingero.contract.perfetto import as_columns
from ingero.contract.timeline import SliceChunk, TimelineChain, TimelineCounter, TimelineNode
from ingero.core.recorded_health import recorded_scores
from ingero.errors import ForeignFile
from ingero.storage.chain_table import CHAIN_WINDOW_NS
from ingero.storage.json_text import json_list
from ingero.storage.schema import table_columns
from ingero.storage.trace_rows import NOT_A_NUMBER

CHUNK_ROWS: Final = 10_000
_Snapshot = tuple[int, float, float, float]  # time, CPU and memory in percent, load
_LAYER_SOURCES: Final[dict[str, tuple[int, ...]]] = {
    Layer.HOST: (Source.HOST,),
    Layer.IO: (Source.IO,),
    Layer.NET: (Source.TCP, Source.NET),
    Layer.INFRA: (Source.HOST, Source.IO, Source.TCP),
    Layer.CUDA: (Source.CUDA, Source.GRAPH),
    Layer.DRIVER: (Source.DRIVER,),
}
_COLLECTIVE_ROW_BASE: Final = 1 << 62  # rows of collectives never meet rows of events


class TimelineReader:
    """Reads one database in the order of time, from `since_ns` on."""

    def __init__(self, connection: sqlite3.Connection, since_ns: int = 0) -> None:
        self.connection = connection
        self.since_ns = since_ns
        self._events = set(table_columns(connection, "events"))
        self._collectives = bool(table_columns(connection, "collectives"))
        found = self._read_nodes()
        ordered = sorted(found, key=_name)  # so that tracks are numbered the same way every time
        self.nodes = [TimelineNode(_name(stored), found[stored]) for stored in ordered]
        self._index = {stored: index for index, stored in enumerate(ordered)}

    def _read_nodes(self) -> dict[str | bytes | None, int | None]:
        """Nodes as they are stored, each with the rank of its first event."""
        if "node" not in self._events:
            return {"": None}
        rank = "rank" if "rank" in self._events else "NULL"
        sql = f"SELECT node, {rank}, min(timestamp) FROM events WHERE timestamp >= ? GROUP BY node"
        found = {row[0]: row[1] for row in self.connection.execute(sql, (self.since_ns,))}
        if self._collectives:
            sql = "SELECT node, max(global_rank), min(global_rank) FROM collectives WHERE start_ns >= ? GROUP BY 1"
            for node, highest, lowest in self.connection.execute(sql, (self.since_ns,)):
                if found.get(node) is None:
                    found[node] = highest if highest == lowest else None
        return found

    def event_chunks(self) -> Iterator[SliceChunk]:
        """All events."""
        node = "node" if "node" in self._events else "''"
        gpu_id, ret_code = (name if name in self._events else "0" for name in ("gpu_id", "ret_code"))
        sql = (
            f"SELECT timestamp, duration, source, op, pid, tid, {gpu_id}, {ret_code}, {node}, rowid FROM events "
            "WHERE timestamp >= ? ORDER BY timestamp"
        )
        yield from self._chunks(self.connection.execute(sql, (self.since_ns,)))

    def collective_chunks(self) -> Iterator[SliceChunk]:
        """Collectives of the NCCL layer; a rank without a process id is shown by its number."""
        if not self._collectives:
            return
        sql = (
            f"SELECT start_ns, max(end_ns - start_ns, 0), {Source.NCCL:d}, op, iif(pid > 0, pid, rank), "
            f"coalesce(stream, 0), 0, 0, node, id + {_COLLECTIVE_ROW_BASE} FROM collectives "
            "WHERE start_ns >= ? ORDER BY start_ns"
        )
        cursor = self.connection.execute(sql, (self.since_ns,))
        codes: dict[str, int] = {}
        while rows := cursor.fetchmany(CHUNK_ROWS):
            for name in {row[3] for row in rows} - codes.keys():
                known = find_op(f"nccl{name}")
                codes[name] = known[1] if known else 0
            yield self._chunk([(*row[:3], codes[row[3]], *row[4:]) for row in rows])

    def chains(self) -> list[TimelineChain]:
        """Chains, newest first, each with the slowest events of its layers shortly before it was found."""
        if not table_columns(self.connection, "causal_chains"):
            return []
        node = "node" if "node" in table_columns(self.connection, "causal_chains") else "''"
        sql = (
            f"SELECT {node}, detected_at, severity, summary, root_cause, recommendations, cuda_op, timeline "
            "FROM causal_chains WHERE detected_at >= ? AND typeof(detected_at) = 'integer' "
            "ORDER BY detected_at DESC, id"
        )
        return [self._chain(*row) for row in self.connection.execute(sql, (self.since_ns,)).fetchall()]

    def counters(self) -> list[TimelineCounter]:
        """GPU calls per second by node; health, CPU, memory and load where the file is of one node, as snapshots name
        none."""
        rates = list(self._call_rates())
        if len(self.nodes) != 1:
            return rates
        snapshots = self._read_snapshots()
        return [*rates, *_health(rates, snapshots), *_snapshots(snapshots)]

    def _call_rates(self) -> Iterator[TimelineCounter]:
        """From the minute buckets, which count every call, stored or not."""
        per_node = bool(table_columns(self.connection, "node_aggregates")) and len(self.nodes) > 1
        if not per_node and (len(self.nodes) != 1 or not table_columns(self.connection, "event_aggregates")):
            return
        table, node = ("node_aggregates", "node") if per_node else ("event_aggregates", "?2")
        sql = (
            f"SELECT {node}, bucket, sum(count) / 60.0 FROM {table} "
            f"WHERE source IN ({Source.CUDA:d}, {Source.DRIVER:d}) AND bucket >= ?1 AND ?2 IS NOT NULL "
            "GROUP BY 1, 2 ORDER BY 1, 2"
        )
        rows = self.connection.execute(sql, (self.since_ns, self.nodes[0].name)).fetchall()
        for index, name in enumerate(node.name for node in self.nodes):
            own = [row for row in rows if row[0] == name]
            if own:
                times, values = as_columns([row[1] for row in own]), [row[2] for row in own]
                yield TimelineCounter(index, "GPU calls", "1/s", times, values)

    def _read_snapshots(self) -> list[_Snapshot]:
        if not table_columns(self.connection, "system_snapshots"):
            return []
        numbers = " AND ".join(f"typeof({name}) IN ('integer', 'real')" for name in ("cpu_pct", "mem_pct", "load_avg"))
        sql = (
            "SELECT timestamp, cpu_pct, mem_pct, load_avg FROM system_snapshots "
            f"WHERE timestamp >= ? AND typeof(timestamp) = 'integer' AND {numbers} ORDER BY timestamp"
        )
        return self.connection.execute(sql, (self.since_ns,)).fetchall()

    def _chunks(self, cursor: sqlite3.Cursor) -> Iterator[SliceChunk]:
        while rows := cursor.fetchmany(CHUNK_ROWS):
            yield self._chunk(rows)

    def _chunk(self, rows: list[tuple[Any, ...]]) -> SliceChunk:
        columns = list(zip(*rows, strict=True))
        columns[8] = tuple(self._index[name] for name in columns[8])
        try:
            return SliceChunk(*(as_columns(column) for column in columns))
        except (ValueError, TypeError, OverflowError) as error:
            raise ForeignFile(f"{NOT_A_NUMBER}: {error}") from None

    def _chain(
        self, node: str, at_ns: int, severity: str, summary: str, root_cause: str, advice: str, op: str, timeline: str
    ) -> TimelineChain:
        return TimelineChain(
            node=self._index.get(node, 0),
            at_ns=at_ns,
            severity=severity,
            summary=summary,
            root_cause=root_cause,
            recommendations=[str(line) for line in json_list(advice)],
            rows=self._chain_rows(node, at_ns, op, timeline),
        )

    def _chain_rows(self, node: str, at_ns: int, op: str, timeline: str) -> list[int]:
        """The slowest event of each cause layer, then the slowest call that suffered."""
        layers = [str(line.get("layer", "")) for line in json_list(timeline) if isinstance(line, dict)]
        symptom = find_op(op)
        found = [self._slowest(node, at_ns, _LAYER_SOURCES.get(layer, ()), None) for layer in layers[:8]]
        if symptom is not None:
            found = [row for row in found if row is not None]
            found.append(self._slowest(node, at_ns, (symptom[0],), symptom[1]))
        return list(dict.fromkeys(row for row in found if row is not None))

    def _slowest(self, node: str, at_ns: int, sources: tuple[int, ...], op: int | None) -> int | None:
        if not sources:
            return None
        of_node = "node = ?" if "node" in self._events else "'' = ?"
        sql = (
            f"SELECT rowid FROM events WHERE timestamp BETWEEN ? AND ? AND {of_node} "
            f"AND source IN ({', '.join('?' * len(sources))}) AND op = coalesce(?, op) ORDER BY duration DESC LIMIT 1"
        )
        row = self.connection.execute(sql, (at_ns - CHAIN_WINDOW_NS, at_ns, node, *sources, op)).fetchone()
        return row[0] if row else None


def _name(stored: str | bytes | None) -> str:
    return stored.decode("utf-8", "replace") if isinstance(stored, bytes) else stored or ""


def _health(rates: Sequence[TimelineCounter], snapshots: Sequence[_Snapshot]) -> Iterator[TimelineCounter]:
    for counter in rates:
        measured = list(zip(counter.ts_ns.tolist(), counter.values, strict=True))
        if scores := recorded_scores(measured, [(at_ns, cpu, memory) for at_ns, cpu, memory, _ in snapshots]):
            times, values = zip(*scores, strict=True)
            yield TimelineCounter(counter.node, "health score", "", as_columns(times), values)


def _snapshots(snapshots: Sequence[_Snapshot]) -> Iterator[TimelineCounter]:
    if snapshots:
        ts, cpu, memory, load = zip(*snapshots, strict=True)
        for name, unit, values in (("CPU busy", "%", cpu), ("memory used", "%", memory), ("load average", "", load)):
            yield TimelineCounter(0, name, unit, as_columns(ts), values)
