"""Tools for the rows of the trace of this node: SQL and call stacks."""

import asyncio
import threading
import time
from typing import Annotated, Any

import msgspec

from ingero.agent.api.tools.context import (
    NO_TRACE,
    AgentContext,
    Compact,
    Pid,
    Since,
    ToolAnswer,
    from_trace,
    make_answer,
    nothing_since,
)
from ingero.contract.events import SUMMED_ARG0_OPS, find_op, find_source, op_name, source_name
from ingero.core.recording.stacks import decode_frames
from ingero.core.sanitise import LINE_BYTES, clean, traced, traced_list
from ingero.errors import MalformedInput, TooLarge, Unavailable
from ingero.storage.sqlite_guard import DEFAULT_ROWS, MAX_ROWS, QueryLimits, run_query
from ingero.storage.trace.query import count_events
from ingero.storage.trace.stacks import StackUse, read_stacks
from ingero.transport.tools.tool import ToolRefused

MAX_SQL_BYTES = 1 << 20
_SOURCES = "cuda, driver, host, io, tcp, net, cuda_graph"


class SqlQuestion(msgspec.Struct):
    query: Annotated[str, msgspec.Meta(description="one SELECT")]
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_ROWS, description="rows")] = DEFAULT_ROWS
    tsc: Compact = True


async def run_sql(context: AgentContext, question: SqlQuestion) -> ToolAnswer:
    """Query the trace database of this node in SQL (SQLite, read-only). Times are nanoseconds.

    Tables: events (timestamp, pid, tid, source, op, duration, arg0, arg1, ret_code, stack_hash,
    node, rank, comm), sources (id, name), ops (source_id, op_id, name, description), stack_traces
    (hash, frames), causal_chains, system_snapshots (timestamp, cpu_pct, mem_pct, swap_mb,
    load_avg), operations (op, count, p50_ns, p99_ns), event_aggregates (minutes; all events),
    processes (node, pid, name, rank), collectives (op, rank, nranks, seq, size_bytes, start_ns,
    end_ns), annotations, sessions.
    `SELECT * FROM schema_info` explains units and has an example; `SELECT sql FROM sqlite_master`
    has every column. Names: JOIN ops o ON o.source_id = e.source AND o.op_id = e.op.
    """
    if not context.db.exists():
        return ToolAnswer(text=NO_TRACE)
    began = time.perf_counter()
    limits = QueryLimits(
        timeout_s=context.read_timeout_s, max_rows=question.limit, max_bytes=MAX_SQL_BYTES
    )
    has_left = threading.Event()
    try:
        result = await asyncio.to_thread(
            run_query, context.db, question.query, limits, has_left.is_set
        )
    except Unavailable as error:
        raise ToolRefused("timeout", str(error), status=504) from None
    except (MalformedInput, TooLarge) as error:
        hint = "; write table.column" if "ambiguous" in str(error) else ""
        raise ToolRefused("bad_sql", f"{clean(str(error))}{hint}") from None
    finally:
        has_left.set()  # the caller may have left: the query ends with the call
    rows = [
        [traced(cell, LINE_BYTES) if isinstance(cell, str) else cell for cell in row]
        for row in result.rows
    ]
    meta = {
        "rows": len(rows),
        "truncated": result.truncated,
        "duration_ms": round((time.perf_counter() - began) * 1e3, 1),
    }
    columns = [column_name(name) for name in result.columns]
    return make_answer(
        {"meta": meta, "columns": columns, "data": rows}, question.tsc, has_traced=True
    )


def column_name(name: str) -> str:
    """Return a plain name unchanged; anything else is marked as data."""
    return name if name.isidentifier() and len(name) <= 64 else traced(name)


class StacksQuestion(msgspec.Struct):
    source: Annotated[str, msgspec.Meta(description=f"{_SOURCES}; empty is all")] = ""
    op: Annotated[
        str, msgspec.Meta(description="operation, such as cudaMemcpyAsync; empty is all")
    ] = ""
    pid: Pid = 0
    since: Since = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=100, description="stacks")] = 10
    tsc: Compact = True


async def get_stacks(context: AgentContext, question: StacksQuestion) -> ToolAnswer:
    """Which code made the calls: call stacks with counts and latencies (µs), most time first.

    Frames run from the call outwards: `forward (train.py:47)` is Python, `cudaMalloc
    (libcudart.so.12)` is native.
    """
    return await from_trace(context, question, _stacks)


def _stacks(context: AgentContext, question: StacksQuestion) -> ToolAnswer:
    since_ns = context.since_ns(question.since)
    source, op = _source(question.source), None
    if question.op:
        key = find_op(question.op)
        if key is None:
            raise ToolRefused(
                "bad_argument",
                f"op: no operation is called {question.op!r}; the table `ops` lists them",
            )
        if source not in (None, key[0]):
            raise ToolRefused(
                "bad_argument", f"op: {question.op} is of source {source_name(key[0])}"
            )
        source, op = key
    with context.reading() as connection:
        if not count_events(connection, since_ns):
            return nothing_since(connection, question.since)
        found = read_stacks(
            connection, since_ns, source, op, question.pid or None, question.limit + 1
        )
    if not found:
        return ToolAnswer(
            text="no call stacks of such calls were recorded; "
            "`sudo ingero trace --record` keeps those of slow calls"
        )
    note = (
        {"more": f"only the first {question.limit}; raise limit"}
        if len(found) > question.limit
        else {}
    )
    stacks = [_stack(stack) for stack in found[: question.limit]]
    return make_answer({"stacks": stacks, **note}, question.tsc, has_traced=True)


def _source(name: str) -> int | None:
    if not name:
        return None
    found = find_source(name)
    if found is None:
        raise ToolRefused("bad_argument", f"source: {name!r}; there are {_SOURCES}")
    return found


def _stack(stack: StackUse) -> dict[str, Any]:
    return {
        "hash": f"{stack.hash & 0xFFFFFFFFFFFFFFFF:016x}",
        "operation": op_name(stack.source, stack.op),
        "count": stack.count,
        "avg_us": round(stack.mean_ns / 1e3, 3),
        "min_us": stack.min_ns / 1e3,
        "max_us": stack.max_ns / 1e3,
        **(
            {"sum_arg0": int(stack.sum_arg0)} if (stack.source, stack.op) in SUMMED_ARG0_OPS else {}
        ),
        **({"processes": traced_list(stack.processes)} if stack.processes else {}),
        "frames": [
            traced(str(frame), LINE_BYTES) for frame in decode_frames(stack.ips, stack.frames)
        ],
    }
