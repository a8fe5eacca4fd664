"""The trace database as the node API shows it: overview, operations, chains, snapshots, graphs."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ingero.contract.events import Source, op_name, source_name
from ingero.contract.node_api import (
    AGGREGATE_ABOVE_EVENTS,
    ChainLine,
    ChainRow,
    Chains,
    GraphEvent,
    GraphMetrics,
    OpRow,
    Ops,
    Overview,
    SnapshotRow,
    Snapshots,
    SystemNow,
    TopChain,
)
from ingero.contract.timestamps import rfc3339
from ingero.core.recording.operations import OpFigures
from ingero.storage.operations import OpFilter, read_operations
from ingero.storage.trace.chains import NEWEST_FIRST, RecordedChain, read_chains
from ingero.storage.trace.graphs import (
    BEGIN_CAPTURE,
    END_CAPTURE,
    INSTANTIATE,
    LAUNCH,
    MAX_GRAPH_EVENTS,
    read_graph_events,
)
from ingero.storage.trace.query import RECORDER_SILENT_NS, recorded_until
from ingero.storage.trace.reading import reading
from ingero.storage.trace.schema import table_columns

READ_TIMEOUT_S: Final = 30.0
RECENT_NS: Final = 60_000_000_000  # a system snapshot up to this old counts as current
MAX_CHAINS: Final = 10_000
MAX_SNAPSHOTS: Final = 100_000  # one day at one per second


class NodeView:
    """One trace database as the node API shows it. A missing file counts as empty."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection | None]:
        if not self.path.exists():
            yield None
            return
        with reading(self.path, READ_TIMEOUT_S) as connection:
            yield connection

    def overview(self, now_ns: int) -> Overview:
        """Return the counts, the newest chain and the current state of the machine."""
        with self._reading() as connection:
            if connection is None:
                return Overview(0, 0, 0)
            events, chains, sessions = (
                _count(connection, table) for table in ("events", "causal_chains", "sessions")
            )
            newest = read_chains(connection, limit=1, order=NEWEST_FIRST)
            until_ns = recorded_until(connection)
            ended = until_ns is not None and now_ns - until_ns > RECORDER_SILENT_NS
            return Overview(
                events,
                chains,
                sessions,
                system_now(connection, now_ns),
                _top(newest),
                recorded_until=rfc3339(until_ns) if ended and until_ns is not None else None,
            )

    def ops(self, now_ns: int, since_ns: int = 0, pid: int | None = None) -> Ops:
        """Return the latency of each operation, those with the most time first."""
        with self._reading() as connection:
            if connection is None:
                return Ops("empty", [])
            system = system_now(connection, now_ns)
            wanted = OpFilter(
                from_ns=since_ns, pid=pid, per_process=False, max_rows=AGGREGATE_ABOVE_EVENTS
            )
            found = read_operations(connection, wanted)
            if not found:
                return Ops("empty", [], system)
            is_measured = any(one.p50_ns is not None for one in found)
            return Ops(
                "percentile" if is_measured else "aggregate",
                [op_row(one) for one in found],
                system,
            )

    def chains(self, since_ns: int = 0) -> Chains:
        """Return the recorded chains, newest first."""
        with self._reading() as connection:
            if connection is None:
                return Chains([])
            newest = read_chains(connection, since_ns, limit=MAX_CHAINS + 1, order=NEWEST_FIRST)
        return Chains([chain_row(chain) for chain in newest[:MAX_CHAINS]], len(newest) > MAX_CHAINS)

    def snapshots(self, since_ns: int) -> Snapshots:
        """Return the state of the machine over time."""
        with self._reading() as connection:
            if connection is None or not table_columns(connection, "system_snapshots"):
                return Snapshots([])
            newest = connection.execute(
                "SELECT timestamp, cpu_pct, mem_pct, mem_avail, swap_mb, load_avg "
                "FROM system_snapshots WHERE timestamp >= ? ORDER BY timestamp DESC LIMIT ?",
                (since_ns, MAX_SNAPSHOTS),
            ).fetchall()
            return Snapshots(
                [SnapshotRow(rfc3339(at), *values) for at, *values in reversed(newest)]
            )

    def graph_metrics(self, since_ns: int) -> GraphMetrics:
        """Return how often CUDA graphs were captured, instantiated and launched."""
        with self._reading() as connection:
            if connection is None:
                return GraphMetrics(0, 0, 0, 0)
            rows = connection.execute(
                "SELECT op, count(*), avg(duration), min(timestamp), max(timestamp) FROM events "
                "WHERE source = ? AND timestamp >= ? GROUP BY op",
                (int(Source.GRAPH), since_ns),
            ).fetchall()
        by_op = {op: (count, average, first, last) for op, count, average, first, last in rows}
        nothing = (0, None, 0, 0)
        launches, _, first, last = by_op.get(LAUNCH, nothing)
        return GraphMetrics(
            captures=by_op.get(BEGIN_CAPTURE, nothing)[0],
            instantiations=by_op.get(INSTANTIATE, nothing)[0],
            launches=launches,
            total_events=sum(row[1] for row in rows),
            avg_capture_dur_us=_us(by_op.get(END_CAPTURE, nothing)[1]),
            avg_instantiate_dur_us=_us(by_op.get(INSTANTIATE, nothing)[1]),
            launch_rate_per_sec=launches / ((last - first) / 1e9) if last > first else None,
        )

    def graph_events(
        self, since_ns: int, pid: int | None = None, limit: int = MAX_GRAPH_EVENTS
    ) -> list[GraphEvent]:
        """Return the newest CUDA graph calls."""
        with self._reading() as connection:
            return [] if connection is None else read_graph_events(connection, since_ns, pid, limit)


def chain_row(recorded: RecordedChain) -> ChainRow:
    """Return a chain as the API and the fan-out show it."""
    chain = recorded.chain
    return ChainRow(
        id=recorded.id,
        detected_at=rfc3339(recorded.detected_at_ns),
        severity=str(chain.severity),
        summary=chain.summary,
        root_cause=chain.root_cause,
        explanation=chain.explanation,
        recommendations=list(chain.recommendations),
        cuda_op=chain.cuda_op,
        cuda_p99_us=chain.p99_ns // 1000,
        cuda_p50_us=chain.p50_ns // 1000,
        tail_ratio=chain.tail_ratio or None,
        timeline=[ChainLine(str(entry.layer), entry.detail) for entry in chain.timeline],
        node=recorded.node,
    )


def _us(nanoseconds: float | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / 1000


def _count(connection: sqlite3.Connection, table: str) -> int:
    if not table_columns(connection, table):
        return 0
    return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def system_now(connection: sqlite3.Connection, now_ns: int) -> SystemNow | None:
    """Return the newest system snapshot if it is at most a minute old."""
    if not table_columns(connection, "system_snapshots"):
        return None
    row = connection.execute(
        "SELECT cpu_pct, mem_pct, swap_mb, load_avg FROM system_snapshots WHERE timestamp >= ? "
        "ORDER BY timestamp DESC LIMIT 1",
        (now_ns - RECENT_NS,),
    ).fetchone()
    return SystemNow(*row) if row else None


def _top(chains: list[RecordedChain]) -> TopChain | None:
    if not chains:
        return None
    chain = chains[0].chain
    return TopChain(
        str(chain.severity), chain.summary, chain.root_cause, list(chain.recommendations)
    )


def op_row(figures: OpFigures) -> OpRow:
    """Return percentiles, or totals where percentiles are not known."""
    row = OpRow(op_name(*figures.key), source_name(figures.key[0]), figures.count)
    if figures.p50_ns is None or figures.p95_ns is None or figures.p99_ns is None:
        row.avg_us = figures.mean_ns / 1000
        row.min_us, row.max_us = figures.min_ns // 1000, figures.max_ns // 1000
    else:
        row.p50_us, row.p95_us = figures.p50_ns // 1000, figures.p95_ns // 1000
        row.p99_us = figures.p99_ns // 1000
    return row
