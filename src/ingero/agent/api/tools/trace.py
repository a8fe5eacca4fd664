"""Questions about this node's own trace: statistics, causal chains, SQL, stacks."""

import asyncio
import json
import time
from typing import Annotated, Any

import msgspec

from ingero.agent.api.tools.context import NO_TRACE, AgentContext, Told, told
from ingero.contract.chain import Chain, severity_order
from ingero.contract.events import Source, find_op, op_name, source_name
from ingero.contract.node_api import AGGREGATE_ABOVE_EVENTS
from ingero.core.fixes import Host
from ingero.core.op_stats import TraceStats
from ingero.core.replay import replay
from ingero.core.sanitise import LINE_BYTES, traced, traced_list
from ingero.core.stacks import Frame, decode_frames
from ingero.errors import IngeroError, MalformedInput, TooLarge, Unavailable
from ingero.storage.chain_table import read_chains
from ingero.storage.sqlite_guard import QueryLimits, run_query
from ingero.storage.stack_query import StackUse, read_stacks
from ingero.storage.trace_reading import reading
from ingero.storage.trace_rows import read_events, read_samples
from ingero.transport.tools import ToolRefused

SQL_TIMEOUT_S = 30.0

Since = Annotated[str, msgspec.Meta(description="how far back, such as 5m or 2h; empty is the whole trace")]
Compact = Annotated[bool, msgspec.Meta(description="short keys, which cost fewer tokens")]


class StatsQuestion(msgspec.Struct):
    since: Since = ""
    tsc: Compact = True


async def get_trace_stats(context: AgentContext, question: StatsQuestion) -> Told:
    """Latency of every CUDA, driver and host operation on this node: count, p50/p95/p99, share of wall time, anomalies.

    Start here: it shows which operation is slow, how often, and whether slow calls come in a pattern.
    """
    if not context.db.exists():
        return Told(text=NO_TRACE)
    return await asyncio.to_thread(_stats, context, question)


def _stats(context: AgentContext, question: StatsQuestion) -> Told:
    since_ns = context.since_ns(question.since)
    overview = context.view.ops(context.now_ns(), since_ns)
    data: dict[str, Any] = {"mode": overview.mode}
    if overview.system is not None:
        data["system"] = msgspec.to_builtins(overview.system)
    if overview.mode != "percentile":
        data["ops"] = msgspec.to_builtins(overview.ops)
        return told(data, question.tsc)
    with reading(context.db) as connection:
        events = read_events(connection, since_ns)
    stats = TraceStats()
    stats.add(events)
    wall_ns = max(int(events.timestamp.max() - events.timestamp.min()), 1)
    data["ops"] = [
        {
            "operation": op_name(*row.key), "source": source_name(row.key[0]), "pid": row.pid, "count": row.count,
            "p50_us": row.p50_ns / 1e3, "p95_us": row.p95_ns / 1e3, "p99_us": row.p99_ns / 1e3,
            "wall_percent": round(100 * row.total_ns / wall_ns, 2), "anomaly_count": row.anomalies,
            **({"spike_every": row.period} if row.period else {}),
        }
        for row in stats.summaries()
    ]  # fmt: skip
    return told(data, question.tsc)


class ChainsQuestion(msgspec.Struct):
    since: Since = ""
    pid: int | None = None
    pids: list[int] = []
    top_n: Annotated[int, msgspec.Meta(description="0 is ten, below 0 is all")] = 0
    tsc: Compact = True


async def get_causal_chains(context: AgentContext, question: ChainsQuestion) -> Told:
    """Why GPU operations were slow on this node: what happened meanwhile, how sure that is, and what to do.

    Chains that were recorded come first; for chosen processes they are derived again from the events.
    """
    if not context.db.exists():
        return Told(text=NO_TRACE)
    return await asyncio.to_thread(_chains, context, question)


def _chains(context: AgentContext, question: ChainsQuestion) -> Told:
    since_ns = context.since_ns(question.since)
    pids = [*question.pids, *([question.pid] if question.pid is not None else [])]
    with reading(context.db) as connection:
        chains = [] if pids else [recorded.chain for recorded in read_chains(connection, since_ns)]
        if not chains:
            total = connection.execute("SELECT count(*) FROM events WHERE timestamp >= ?", (since_ns,)).fetchone()[0]
            if total > AGGREGATE_ABOVE_EVENTS:
                return Told(text=f"{total:,} events are too many to derive chains from; narrow `since`, or use run_sql")
            events, samples = read_events(connection, since_ns), read_samples(connection, since_ns)
            found = [replay(events, samples, Host(0, {}), pid=pid) for pid in (pids or [0])] if len(events) else []
            chains = [chain for part in found for _, chain in part]
    limit = question.top_n or 10
    best = best_chains(chains)
    shown = best if limit < 0 else best[:limit]
    if not shown:
        return Told(text="no causal chains: nothing was slow with a cause we can see")
    return told({"chains": [_chain(chain) for chain in shown], "total": len(best)}, question.tsc, has_traced=True)


def best_chains(chains: list[Chain]) -> list[Chain]:
    """One per operation and severity, the one with the longest tail; worst first."""
    kept: dict[tuple[str, str], Chain] = {}
    for chain in chains:
        key = (chain.cuda_op or chain.name, str(chain.severity))
        if key not in kept or chain.tail_ratio > kept[key].tail_ratio:
            kept[key] = chain
    return sorted(kept.values(), key=lambda chain: (severity_order(chain.severity), -chain.tail_ratio))


def _chain(chain: Chain) -> dict[str, Any]:
    return {
        "severity": str(chain.severity),
        "summary": traced(chain.summary, LINE_BYTES),
        "root_cause": traced(chain.root_cause, LINE_BYTES),
        "recommendations": list(chain.recommendations),
        "timeline": [{"layer": str(line.layer), "detail": traced(line.detail, LINE_BYTES)} for line in chain.timeline],
        **({"confidence": chain.confidence} if chain.confidence is not None else {}),
    }


class SqlQuestion(msgspec.Struct):
    query: Annotated[str, msgspec.Meta(description="one SELECT; tables: events, causal_chains, collectives, …")]
    limit: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1000
    tsc: Compact = True


async def run_sql(context: AgentContext, question: SqlQuestion) -> Told:
    """Ask this node's trace database in SQL (SQLite, read-only). `SELECT * FROM schema_info` explains the tables.

    Durations and timestamps are nanoseconds; join `ops` and `sources` for names.
    """
    if not context.db.exists():
        return Told(text=NO_TRACE)
    began = time.perf_counter()
    limits = QueryLimits(timeout_s=SQL_TIMEOUT_S, max_rows=question.limit, max_bytes=1 << 20)
    try:
        result = await asyncio.to_thread(run_query, context.db, question.query, limits)
    except Unavailable as error:
        raise ToolRefused("timeout", str(error), status=504) from None
    except (MalformedInput, TooLarge) as error:
        hint = "; write table.column" if "ambiguous" in str(error) else ""
        raise ToolRefused("bad_sql", f"{error}{hint}") from None
    except IngeroError as error:
        raise ToolRefused("store", str(error), status=503) from None
    rows = [[traced(cell, LINE_BYTES) if isinstance(cell, str) else cell for cell in row] for row in result.rows]
    meta = {
        "rows": len(rows),
        "truncated": result.truncated,
        "duration_ms": round((time.perf_counter() - began) * 1e3, 1),
    }
    return told({"meta": meta, "columns": result.columns, "data": rows}, tsc=False, has_traced=True)


class StacksQuestion(msgspec.Struct):
    source: Annotated[str, msgspec.Meta(description="cuda, driver, host, …")] = ""
    op: Annotated[str, msgspec.Meta(description="operation, such as cudaMemcpyAsync")] = ""
    pid: int | None = None
    since: Since = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 10
    tsc: Compact = True


async def get_stacks(context: AgentContext, question: StacksQuestion) -> Told:
    """Which code made the slow calls: call stacks with counts and latencies, most time first."""
    if not context.db.exists():
        return Told(text=NO_TRACE)
    return await asyncio.to_thread(_stacks, context, question)


def _stacks(context: AgentContext, question: StacksQuestion) -> Told:
    source, op = _operation(question)
    since_ns = context.since_ns(question.since)
    with reading(context.db) as connection:
        found = read_stacks(connection, since_ns, question.limit + 1, source=source, op=op, pid=question.pid)
    stacks = [_stack(stack) for stack in found[: question.limit]]
    note = {"more": f"only the first {question.limit}; raise limit"} if len(found) > question.limit else {}
    return told({"stacks": stacks, **note}, question.tsc, has_traced=True)


def _operation(question: StacksQuestion) -> tuple[int | None, int | None]:
    """The numbers of the source and the operation asked for; None is any."""
    sources = {source_name(source): int(source) for source in Source}
    if question.source and question.source.lower() not in sources:
        raise ToolRefused("bad_argument", f"source: nobody knows a source {question.source!r}")
    source = sources.get(question.source.lower())
    if not question.op:
        return source, None
    key = find_op(question.op)
    if key is None or source not in (None, key[0]):
        raise ToolRefused("bad_argument", f"op: nobody knows an operation {question.op!r} of that source")
    return key


def _stack(stack: StackUse) -> dict[str, Any]:
    frames = [traced(_frame_text(frame), LINE_BYTES) for frame in decode_frames(stack.ips, stack.frames)]
    return {
        "hash": f"{stack.hash & 0xFFFFFFFFFFFFFFFF:016x}",
        "count": stack.count,
        "avg_us": stack.mean_ns / 1e3,
        "min_us": stack.min_ns / 1e3,
        "max_us": stack.max_ns / 1e3,
        "sum_arg0": stack.sum_arg0,
        "processes": traced_list(stack.processes),
        "frames": frames,
    }


def _frame_text(frame: Frame) -> str:
    """Only what is known of a frame."""
    known = {name: value for name, value in msgspec.to_builtins(frame).items() if value}
    return json.dumps(known, separators=(",", ":"))
