"""`get_trace_stats`: the latency of every operation on this node."""

import sqlite3
from typing import Any

import msgspec

from ingero.agent.api.tools.context import (
    AgentContext,
    Compact,
    Since,
    ToolAnswer,
    from_trace,
    make_answer,
    nothing_since,
)
from ingero.contract.events import OP_TEXT, find_op, op_name, source_name
from ingero.contract.timestamps import rfc3339
from ingero.core.recording.latency import OpSummary, summarise
from ingero.core.sanitise import traced
from ingero.storage.trace.node_view import counted_ops, system_now
from ingero.storage.trace.query import (
    Process,
    count_events,
    covered_ns,
    kept_events,
    read_processes,
)
from ingero.storage.trace.rows import read_events, read_nodes

MAX_OPS = 100


class StatsQuestion(msgspec.Struct):
    since: Since = ""
    tsc: Compact = True


async def get_trace_stats(context: AgentContext, question: StatsQuestion) -> ToolAnswer:
    """Latency of every CUDA, driver and host operation on this node, with anomalies.

    Start here: it shows which operation of which process and rank is slow, how often, and whether
    slow calls come at regular intervals (spike_every). Most time first: count, p50/p95/p99, share
    of wall time. Times are microseconds; anomalies are calls above three times the median. Where
    only some events were kept as rows, `totals` counts them all, in whole minutes.
    """
    return await from_trace(context, question, _stats)


def _stats(context: AgentContext, question: StatsQuestion) -> ToolAnswer:
    since_ns = context.since_ns(question.since)
    with context.reading() as connection:
        rows = count_events(connection, since_ns)
        covered = covered_ns(connection)
        if not rows or covered is None:
            return nothing_since(connection, question.since)
        kept = kept_events(connection, max(since_ns, covered[0]), covered[1])
        is_selective = kept.counted > kept.stored
        system = system_now(connection, context.now_ns())
        is_measured = rows <= context.aggregate_above_events
        ops = _measured(connection, since_ns) if is_measured else _counted(connection, since_ns)
        data: dict[str, Any] = {
            "mode": "percentile" if is_measured else "aggregate",
            "nodes": [traced(node) for node in read_nodes(connection) if node],
            "from": rfc3339(max(since_ns, covered[0])),
            "until": rfc3339(covered[1]),
            "events": {"counted": kept.counted if is_selective else rows, "kept": rows},
            **({"system": msgspec.to_builtins(system)} if system is not None else {}),
            "ops": ops[:MAX_OPS],
            **(
                {"more": f"{len(ops) - MAX_OPS} more took less time; run_sql has them"}
                if len(ops) > MAX_OPS
                else {}
            ),
        }
        if is_measured and is_selective:
            data["totals"] = _counted(connection, since_ns)[:MAX_OPS]
    data["descriptions"] = _descriptions(data["ops"])
    return make_answer(data, question.tsc, has_traced=True)


def _counted(connection: sqlite3.Connection, since_ns: int) -> list[dict[str, Any]]:
    return [msgspec.to_builtins(row) for row in counted_ops(connection, since_ns)]


def _measured(connection: sqlite3.Connection, since_ns: int) -> list[dict[str, Any]]:
    """Summarise node by node: two nodes of a merged file may use the same pid."""
    nodes, processes = read_nodes(connection), read_processes(connection)
    found: list[tuple[int, dict[str, Any]]] = []
    for node in nodes:
        events = read_events(connection, since_ns, node=node)
        if not len(events):
            continue
        begin, end = events.intervals()
        wall_ns = max(int(end.max() - begin.min()), 1)
        where = {"node": traced(node)} if len(nodes) > 1 else {}
        for row in summarise(events):
            shown = {**where, **_op(row, wall_ns, processes.get((node, row.pid)))}
            found.append((row.total_ns, shown))
    return [shown for _, shown in sorted(found, key=lambda item: -item[0])]


def _op(row: OpSummary, wall_ns: int, process: Process | None) -> dict[str, Any]:
    return {
        "operation": op_name(*row.key), "source": source_name(row.key[0]), "pid": row.pid,
        **({"process_name": traced(process.name)} if process and process.name else {}),
        **({"rank": process.rank} if process and process.rank is not None else {}),
        "count": row.count, "p50_us": row.p50_ns / 1e3, "p95_us": row.p95_ns / 1e3,
        "p99_us": row.p99_ns / 1e3, "wall_percent": round(100 * row.total_ns / wall_ns, 2),
        "anomaly_count": row.anomalies,
        **({"spike_every": row.period} if row.period else {}),
    }  # fmt: skip


def _descriptions(ops: list[dict[str, Any]]) -> list[str]:
    """Return a description of each operation once."""
    keys = {op["operation"]: find_op(op["operation"]) for op in ops}
    return [f"{name}: {OP_TEXT[key][1]}" for name, key in keys.items() if key is not None]
