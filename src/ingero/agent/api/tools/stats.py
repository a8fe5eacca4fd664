"""`get_trace_stats`: the latency of every operation on this node."""

import sqlite3
from collections import defaultdict
from dataclasses import replace
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
from ingero.contract.events import OP_TEXT, OpKey, find_op, op_name, source_name
from ingero.contract.timestamps import rfc3339
from ingero.core.recording.latency import summarise
from ingero.core.recording.operations import OpFigures
from ingero.core.sanitise import traced
from ingero.storage.operations import OpFilter, has_counts, read_operations
from ingero.storage.trace.node_view import op_row, system_now
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
    of wall time. Times are microseconds; anomalies are calls above three times the median, among
    those kept as rows. Counts cover whole minutes. Where a recording has no durations of the calls
    it did not keep, `totals` counts them.
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
        wanted = OpFilter(from_ns=since_ns, max_rows=context.aggregate_above_events)
        is_selective, is_counted = kept.counted > kept.stored, has_counts(connection, wanted)
        system = system_now(connection, context.now_ns())
        is_measured = is_counted or rows <= context.aggregate_above_events
        ops = _measured(connection, wanted, rows) if is_measured else _totals(connection, wanted)
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
        if is_selective and is_measured and not is_counted:
            data["totals"] = _totals(connection, wanted)[:MAX_OPS]
    data["descriptions"] = _descriptions(data["ops"])
    return make_answer(data, question.tsc, has_traced=True)


def _totals(connection: sqlite3.Connection, wanted: OpFilter) -> list[dict[str, Any]]:
    without_percentiles = replace(wanted, per_process=False, max_rows=0)
    found = read_operations(connection, without_percentiles)
    return [msgspec.to_builtins(op_row(one)) for one in found]


def _measured(connection: sqlite3.Connection, wanted: OpFilter, rows: int) -> list[dict[str, Any]]:
    nodes, processes = read_nodes(connection), read_processes(connection)
    slow, wall_ns = _unusual(connection, wanted, nodes, rows)
    found = []
    for one in read_operations(connection, wanted):
        where = {"node": traced(one.node)} if len(nodes) > 1 else {}
        process = processes.get((one.node, one.pid))
        found.append(
            {
                **where,
                **_op(one, wall_ns[one.node], process),
                **slow.get((one.node, one.pid, one.key), {}),
            }
        )
    return found


def _unusual(
    connection: sqlite3.Connection, wanted: OpFilter, nodes: list[str], rows: int
) -> tuple[dict[tuple[str, int, OpKey], dict[str, int]], dict[str, int]]:
    """Return the unusual calls among the rows, and how long each node was recorded.

    Node by node: two nodes of a merged file may use the same pid.
    """
    unusual: dict[tuple[str, int, OpKey], dict[str, int]] = {}
    wall_ns: dict[str, int] = defaultdict(lambda: 1)
    if wanted.max_rows is not None and rows > wanted.max_rows:
        return unusual, wall_ns
    for node in nodes:
        events = read_events(connection, wanted.from_ns, node=node)
        if not len(events):
            continue
        begin, end = events.intervals()
        wall_ns[node] = max(int(end.max() - begin.min()), 1)
        for row in summarise(events):
            unusual[node, row.pid, row.key] = {
                "anomaly_count": row.anomalies,
                **({"spike_every": row.period} if row.period else {}),
            }
    return unusual, wall_ns


def _op(one: OpFigures, wall_ns: int, process: Process | None) -> dict[str, Any]:
    times = {"p50_us": one.p50_ns, "p95_us": one.p95_ns, "p99_us": one.p99_ns}
    return {
        "operation": op_name(*one.key), "source": source_name(one.key[0]), "pid": one.pid,
        **({"process_name": traced(process.name)} if process and process.name else {}),
        **({"rank": process.rank} if process and process.rank is not None else {}),
        "count": one.count,
        **{name: value / 1e3 for name, value in times.items() if value is not None},
        "wall_percent": round(100 * one.total_ns / wall_ns, 2),
    }  # fmt: skip


def _descriptions(ops: list[dict[str, Any]]) -> list[str]:
    """Return a description of each operation once."""
    keys = {op["operation"]: find_op(op["operation"]) for op in ops}
    return [f"{name}: {OP_TEXT[key][1]}" for name, key in keys.items() if key is not None]
