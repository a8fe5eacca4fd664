"""A trace database as a timeline: events and collectives in chunks, chains, host counters."""

import math
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

from ingero.contract.chain import CHAIN_WINDOW_NS
from ingero.contract.events import Source, find_op
from ingero.contract.timeline.model import (
    SliceChunk,
    TimelineChain,
    TimelineCounter,
    TimelineNode,
    TimelineProcess,
)
from ingero.contract.timeline.perfetto import as_columns
from ingero.core.chains.links import link_events
from ingero.core.health.recorded_score import Rate, recorded_scores
from ingero.errors import ForeignFile
from ingero.storage.trace.json_columns import json_list
from ingero.storage.trace.rows import NOT_A_NUMBER
from ingero.storage.trace.schema import table_columns

CHUNK_ROWS: Final = 10_000
FIRST_NS: Final = -(1 << 63)
_Name: TypeAlias = str | bytes | None  # a node name as stored
_Snapshot: TypeAlias = tuple[int, float, float, float]  # time, CPU and memory in percent, load
_COLLECTIVE_ROW_BASE: Final = 1 << 62  # keeps row numbers of collectives apart from those of events
_RANK_PID: Final = "iif(pid > 0, pid, rank)"  # a rank without a process id is shown under its rank


class TimelineReader:
    """Reads one database ordered by time, from `since_ns` on."""

    def __init__(self, connection: sqlite3.Connection, since_ns: int = FIRST_NS) -> None:
        self.connection = connection
        self.since_ns = since_ns
        self._events = set(table_columns(connection, "events"))
        self._collectives = bool(table_columns(connection, "collectives"))
        self._ranks: dict[tuple[_Name, int], int | None] = {}  # by node and pid
        found = self._read_nodes()
        ordered = sorted(found, key=_text)  # sorted, so that tracks always get the same numbers
        self.nodes = [TimelineNode(_text(stored), found[stored]) for stored in ordered]
        self._index = {stored: index for index, stored in enumerate(ordered)}

    def _read_nodes(self) -> dict[_Name, int | None]:
        """Return the nodes, each with the rank of its first event."""
        found: dict[_Name, int | None] = {}
        for (name, pid), rank in self._first_ranks():
            found.setdefault(name, rank)
            self._ranks[name, pid] = rank
        if self._collectives:
            self._read_collective_ranks(found)
        return found or {"": None}

    def _first_ranks(self) -> list[tuple[tuple[_Name, int], int | None]]:
        """Return (node, pid) of every process in order of its first event, with that event's rank.

        Grouping in SQLite would hold all events in memory.
        """
        node, rank = (
            name if name in self._events else blank
            for name, blank in (("node", "''"), ("rank", "NULL"))
        )
        sql = f"SELECT {node}, pid, {rank}, timestamp FROM events WHERE timestamp >= ?"
        firsts: dict[tuple[_Name, int], tuple[int, int | None]] = {}
        try:
            for name, pid, of_event, at_ns in self.connection.execute(sql, (self.since_ns,)):
                known = firsts.get((name, pid))
                if known is None or at_ns < known[0]:
                    firsts[name, pid] = at_ns, of_event
            return [(key, firsts[key][1]) for key in sorted(firsts, key=lambda key: firsts[key][0])]
        except TypeError as error:
            raise ForeignFile(f"{NOT_A_NUMBER}: {error}") from None

    def _read_collective_ranks(self, found: dict[_Name, int | None]) -> None:
        sql = f"SELECT DISTINCT node, {_RANK_PID}, global_rank FROM collectives WHERE start_ns >= ?"
        ranks: dict[_Name, set[int | None]] = {}
        for name, pid, rank in self.connection.execute(sql, (self.since_ns,)):
            ranks.setdefault(name, set()).add(rank)
            if self._ranks.get((name, pid)) is None:
                self._ranks[name, pid] = rank
        for name, of_node in ranks.items():
            if found.get(name) is None:
                found[name] = of_node.pop() if len(of_node) == 1 else None

    def processes(self) -> dict[tuple[int, int], TimelineProcess]:
        """Return every process of the timeline by node and pid, with its name if recorded."""
        names: dict[tuple[int | None, int], str] = {}
        if len(self.nodes) == 1:
            names = {
                (0, pid): _text(name) for pid, name in self._select("process_names", "pid, name")
            }
        for node, pid, name in self._select("processes", "node, pid, name"):
            names[self._index.get(node), pid] = _text(name)
        return {
            (self._index[node], pid): TimelineProcess(
                pid, names.get((self._index[node], pid), ""), rank
            )
            for (node, pid), rank in self._ranks.items()
        }

    def _select(self, table: str, columns: str) -> list[tuple[Any, ...]]:
        if not table_columns(self.connection, table):
            return []
        return self.connection.execute(f"SELECT {columns} FROM {table} ORDER BY seen_at").fetchall()

    def event_chunks(self) -> Iterator[SliceChunk]:
        """Yield all events."""
        return self._events_between(self.since_ns, math.inf)

    def _events_between(self, first_ns: int, last_ns: float) -> Iterator[SliceChunk]:
        node = "node" if "node" in self._events else "''"
        gpu_id, ret_code = (
            name if name in self._events else "0" for name in ("gpu_id", "ret_code")
        )
        sql = (
            f"SELECT timestamp, duration, source, op, pid, tid, {gpu_id}, {ret_code}, {node}, "
            "rowid FROM events WHERE timestamp BETWEEN ? AND ? ORDER BY timestamp"
        )
        cursor = self.connection.execute(sql, (first_ns, last_ns))
        while rows := cursor.fetchmany(CHUNK_ROWS):
            yield self._chunk(rows)

    def collective_chunks(self) -> Iterator[SliceChunk]:
        """Yield the collectives of the NCCL layer."""
        if not self._collectives:
            return
        sql = (
            f"SELECT start_ns, max(end_ns - start_ns, 0), {Source.NCCL:d}, op, {_RANK_PID}, "
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
        """Return the chains, newest first."""
        if not table_columns(self.connection, "causal_chains"):
            return []
        node = "node" if "node" in table_columns(self.connection, "causal_chains") else "''"
        sql = (
            f"SELECT {node}, detected_at, severity, summary, root_cause, recommendations, cuda_op, "
            "timeline FROM causal_chains WHERE detected_at >= ? "
            "AND typeof(detected_at) = 'integer' ORDER BY detected_at DESC, id"
        )
        return [
            self._chain(*row) for row in self.connection.execute(sql, (self.since_ns,)).fetchall()
        ]

    def linked(self, chains: Sequence[TimelineChain]) -> list[TimelineChain]:
        """Return the chains together with the events that belong to them."""
        if not chains:
            return []
        times = [chain.at_ns for chain in chains]
        first_ns = max(self.since_ns, min(times) - CHAIN_WINDOW_NS)
        return link_events(chains, self._events_between(first_ns, max(times)))

    def counters(self) -> Iterator[TimelineCounter]:
        """Yield the counters of each node: GPU calls, health score, CPU, memory and load.

        A file of several nodes has them only if ingero merged it.
        """
        rates, snapshots = self._call_rates(), self._read_snapshots()
        for index in range(len(self.nodes)):
            yield from _counters(index, rates.get(index, []), snapshots.get(index, []))

    def _call_rates(self) -> dict[int | None, list[Rate]]:
        """Return GPU calls per second. The minute buckets also count calls that have no row."""
        source = self._by_node("node_aggregates", "event_aggregates")
        if source is None:
            return {}
        table, node = source
        sql = (
            f"SELECT {node}, bucket, sum(count) / 60.0 FROM {table} "
            f"WHERE source IN ({Source.CUDA:d}, {Source.DRIVER:d}) AND bucket >= ? GROUP BY 1, 2 "
            "ORDER BY 2"
        )
        return self._series(sql, node)

    def _read_snapshots(self) -> dict[int | None, list[_Snapshot]]:
        source = self._by_node("node_snapshots", "system_snapshots")
        if source is None:
            return {}
        table, node = source
        numbers = " AND ".join(
            f"typeof({name}) IN ('integer', 'real')" for name in ("cpu_pct", "mem_pct", "load_avg")
        )
        sql = (
            f"SELECT {node}, timestamp, cpu_pct, mem_pct, load_avg FROM {table} "
            f"WHERE timestamp >= ? AND typeof(timestamp) = 'integer' AND {numbers} "
            "ORDER BY timestamp"
        )
        return self._series(sql, node)

    def _by_node(self, of_many: str, of_one: str) -> tuple[str, str] | None:
        """Return the table to read and its node column.

        A table without one is used only if there is a single node.
        """
        if len(self.nodes) == 1:
            return (of_one, "NULL") if table_columns(self.connection, of_one) else None
        return (of_many, "node") if table_columns(self.connection, of_many) else None

    def _series(self, sql: str, node: str) -> dict[int | None, list[Any]]:
        found: dict[int | None, list[Any]] = {}
        for name, *values in self.connection.execute(sql, (self.since_ns,)):
            found.setdefault(self._index.get(name) if node == "node" else 0, []).append(
                tuple(values)
            )
        return found

    def _chunk(self, rows: list[tuple[Any, ...]]) -> SliceChunk:
        columns = list(zip(*rows, strict=True))
        columns[8] = tuple(self._index[name] for name in columns[8])
        try:
            return SliceChunk(*(as_columns(column) for column in columns))
        except (ValueError, TypeError, OverflowError) as error:
            raise ForeignFile(f"{NOT_A_NUMBER}: {error}") from None

    def _chain(self, node: _Name, at_ns: int, *texts: object) -> TimelineChain:
        severity, summary, root_cause, advice, op, timeline = texts
        return TimelineChain(
            node=self._index.get(node, 0),
            at_ns=at_ns,
            severity=_text(severity),
            summary=_text(summary),
            root_cause=_text(root_cause),
            recommendations=[str(line) for line in json_list(advice)],
            layers=[
                str(line.get("layer", "")) for line in json_list(timeline) if isinstance(line, dict)
            ],
            op=find_op(_text(op)),
        )


def _text(stored: object) -> str:
    """Return a value as text, whatever type the file stores."""
    return stored.decode("utf-8", "replace") if isinstance(stored, bytes) else str(stored or "")


def _counters(
    node: int, rates: Sequence[Rate], snapshots: Sequence[_Snapshot]
) -> Iterator[TimelineCounter]:
    if rates:
        times, values = zip(*rates, strict=True)
        yield TimelineCounter(node, "GPU calls", "1/s", as_columns(times), values)
    if scores := recorded_scores(
        rates, [(at_ns, cpu, memory) for at_ns, cpu, memory, _ in snapshots]
    ):
        times, values = zip(*scores, strict=True)
        yield TimelineCounter(node, "health score", "", as_columns(times), values)
    if snapshots:
        ts, cpu, memory, load = zip(*snapshots, strict=True)
        for name, unit, of_time in (
            ("CPU busy", "%", cpu),
            ("memory used", "%", memory),
            ("load average", "", load),
        ):
            yield TimelineCounter(node, name, unit, as_columns(ts), of_time)
