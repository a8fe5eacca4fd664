"""Tools for CUDA graphs: what was captured, instantiated and launched, and how often."""

import itertools
import sqlite3
import statistics
from collections.abc import Iterable
from typing import Annotated, Any

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
from ingero.contract.events import Source, op_name
from ingero.contract.node_api import GraphEvent
from ingero.contract.timestamps import rfc3339
from ingero.storage.trace.graphs import (
    BEGIN_CAPTURE,
    LAUNCH,
    GraphUse,
    count_graph_calls,
    graph_pids,
    read_graph_events,
    read_graph_use,
)
from ingero.storage.trace.query import count_events

MAX_EVENTS = 20_000
MAX_LINES = 200
MAX_EXECUTABLES = 200
HOT_RATE_PER_S = 1.0

GraphPid = Annotated[
    int, msgspec.Meta(ge=1, description="the process; get_trace_stats shows who uses graphs")
]


class LifecycleQuestion(msgspec.Struct):
    pid: GraphPid
    since: Since = ""
    tsc: Compact = True


async def graph_lifecycle(context: AgentContext, question: LifecycleQuestion) -> ToolAnswer:
    """CUDA graphs of one process in order of time: captures, instantiations and launches.

    Every capture costs time, so watch for graphs that are captured repeatedly. Consecutive launches
    of one graph are one line.
    """
    return await from_trace(context, question, _lifecycle)


def _lifecycle(context: AgentContext, question: LifecycleQuestion) -> ToolAnswer:
    since_ns = context.since_ns(question.since)
    with context.reading() as connection:
        totals = count_graph_calls(connection, since_ns, question.pid)
        if not totals:
            return _no_graphs(connection, question.pid, question.since, since_ns)
        newest_first = read_graph_events(connection, since_ns, question.pid, MAX_EVENTS)
    lines = [_line(list(calls)) for _, calls in itertools.groupby(reversed(newest_first), _run_of)]
    if len(lines) > MAX_LINES or len(newest_first) == MAX_EVENTS:
        lines = [f"… only the newest of {sum(totals.values()):,} calls:", *lines[-MAX_LINES:]]
    captures = totals.get(BEGIN_CAPTURE, 0)
    replays = f", {totals.get(LAUNCH, 0) / captures:.1f} launches per capture" if captures else ""
    counted = ", ".join(f"{count} {op_name(Source.GRAPH, op)}" for op, count in totals.items())
    return ToolAnswer(text="\n".join([*lines, f"total: {counted}{replays}"]))


class FrequencyQuestion(msgspec.Struct):
    pid: GraphPid
    window_seconds: Annotated[
        float,
        msgspec.Meta(
            gt=0,
            le=86400,
            description="length of the window for rates, which ends at its newest graph call",
        ),
    ] = 60.0
    since: Since = ""
    tsc: Compact = True


async def graph_frequency(context: AgentContext, question: FrequencyQuestion) -> ToolAnswer:
    """How often each CUDA graph executable of a process is launched: hot, cold or never.

    HOT is launched more often than the median executable and at least once a second. Pool size and
    re-captures are included.
    """
    return await from_trace(context, question, _frequency)


def _frequency(context: AgentContext, question: FrequencyQuestion) -> ToolAnswer:
    since_ns = context.since_ns(question.since)
    window_ns = int(question.window_seconds * 1e9)
    if since_ns:
        window_ns = min(window_ns, context.now_ns() - since_ns)
    with context.reading() as connection:
        totals = count_graph_calls(connection, since_ns, question.pid)
        if not totals:
            return _no_graphs(connection, question.pid, question.since, since_ns)
        until_ns, used = read_graph_use(connection, since_ns, question.pid, window_ns)
    rates = {use.handle: use.recent / (window_ns / 1e9) for use in used}
    middle = statistics.median([rates[use.handle] for use in used if use.launches] or [0.0])
    data: dict[str, Any] = {
        "until": rfc3339(until_ns),
        "window_s": window_ns / 1e9,
        "executables": [
            {"exec": use.handle, "launches": use.recent, "rate_per_s": round(rates[use.handle], 3),
             "class": _class(use, rates[use.handle], middle)}
            for use in used[:MAX_EXECUTABLES]
        ],
        "pool_size": len(used),
        "recaptures": max(0, totals.get(BEGIN_CAPTURE, 0) - max(len(used), 1)),
    }  # fmt: skip
    if len(used) > MAX_EXECUTABLES:
        data["more"] = f"only the {MAX_EXECUTABLES} launched most often"
    return make_answer(data, question.tsc)


def _class(use: GraphUse, rate: float, middle: float) -> str:
    if not use.launches:
        return "never-launched"
    return "HOT" if rate > middle and rate >= HOT_RATE_PER_S else "cold"


def _no_graphs(connection: sqlite3.Connection, pid: int, since: str, since_ns: int) -> ToolAnswer:
    if not count_events(connection, since_ns):
        return nothing_since(connection, since)
    others = ", ".join(map(str, graph_pids(connection, since_ns, 8)))
    where = f"these did: {others}" if others else "no process did"
    return ToolAnswer(text=f"process {pid} used no CUDA graphs in this part of the trace; {where}")


def _run_of(event: GraphEvent) -> tuple[Any, ...]:
    """Return a key that is equal for consecutive launches only."""
    is_launch = event.op == op_name(Source.GRAPH, LAUNCH)
    return (event.stream_handle, event.exec_handle, event.ret_code) if is_launch else (id(event),)


def _line(calls: list[GraphEvent]) -> str:
    event = calls[0]
    handles = " ".join(f"{name}={value}" for name, value in _handles(event) if value)
    failed = f" returned {event.ret_code}" if event.ret_code else ""
    times = f" x{len(calls)}" if len(calls) > 1 else ""
    took = f"{sum(call.duration_us for call in calls)} us"
    return " ".join(
        part for part in (event.timestamp, f"{event.op}{times}", handles, f"{took}{failed}") if part
    )


def _handles(event: GraphEvent) -> Iterable[tuple[str, str]]:
    return (
        ("stream", event.stream_handle),
        ("graph", event.graph_handle),
        ("exec", event.exec_handle),
        ("mode", event.capture_mode),
    )
