"""Questions about CUDA graphs: what was captured, instantiated and launched, and how often."""

import asyncio
import statistics
from collections import Counter, defaultdict
from typing import Annotated

import msgspec

from ingero.agent.api.tools.context import NO_TRACE, AgentContext, Told, told
from ingero.agent.api.tools.trace import Compact, Since
from ingero.contract.node_api import GraphEvent

MAX_EVENTS = 20_000
MAX_LINES = 200


class LifecycleQuestion(msgspec.Struct):
    pid: int
    since: Since = ""
    tsc: Compact = True


async def graph_lifecycle(context: AgentContext, question: LifecycleQuestion) -> Told:
    """The CUDA graphs of one process in order of time: captures, instantiations, launches, and launches per capture."""
    if not context.db.exists():
        return Told(text=NO_TRACE)
    events = await _events(context, question.pid, question.since)
    if not events:
        return Told(text=f"process {question.pid} used no CUDA graphs in this part of the trace")
    totals = Counter(event.op for event in events)
    lines = [_line(event) for event in events[:MAX_LINES]]
    if len(events) > MAX_LINES:
        lines.append(f"… {len(events) - MAX_LINES} more; narrow `since`")
    captures = totals["graphBeginCapture"]
    replays = f", {totals['graphLaunch'] / captures:.1f} launches per capture" if captures else ""
    counted = ", ".join(f"{count} {op}" for op, count in totals.items())
    return Told(text="\n".join([*lines, f"total: {counted}{replays}"]))


class FrequencyQuestion(msgspec.Struct):
    pid: int
    window_seconds: Annotated[float, msgspec.Meta(gt=0, le=86400)] = 60.0
    since: Since = ""
    tsc: Compact = True


async def graph_frequency(context: AgentContext, question: FrequencyQuestion) -> Told:
    """How often each CUDA graph executable of a process is launched: hot, cold or never; pool size and re-captures."""
    if not context.db.exists():
        return Told(text=NO_TRACE)
    events = await _events(context, question.pid, question.since or f"{question.window_seconds:g}s")
    launches: Counter[str] = Counter()
    made: dict[str, int] = defaultdict(int)
    for event in events:
        if event.op == "graphLaunch":
            launches[event.exec_handle] += 1
        elif event.op == "graphInstantiate":
            made[event.exec_handle] += 1
    rates = {handle: count / question.window_seconds for handle, count in launches.items()}
    middle = statistics.median(rates.values()) if rates else 0.0
    rows = [
        {"exec": handle, "launches": launches[handle], "rate_per_s": round(rates.get(handle, 0.0), 3),
         "class": _class(rates.get(handle), middle)}
        for handle in dict.fromkeys([*launches, *made])
    ]  # fmt: skip
    captures = sum(event.op == "graphBeginCapture" for event in events)
    pool = {"pool_size": len(rows), "recaptures": max(0, captures - len(rows))}
    return told({"executables": sorted(rows, key=lambda row: -int(str(row["launches"]))), **pool}, question.tsc)


def _class(rate: float | None, middle: float) -> str:
    if rate is None:
        return "never-launched"
    return "HOT" if rate > middle and rate >= 1.0 else "cold"


async def _events(context: AgentContext, pid: int, since: str) -> list[GraphEvent]:
    newest_first = await asyncio.to_thread(context.view.graph_events, context.since_ns(since), pid, MAX_EVENTS)
    return newest_first[::-1]


def _line(event: GraphEvent) -> str:
    handles = " ".join(
        f"{name}={value}"
        for name, value in (
            ("stream", event.stream_handle),
            ("graph", event.graph_handle),
            ("exec", event.exec_handle),
            ("mode", event.capture_mode),
        )
        if value
    )
    failed = f" returned {event.ret_code}" if event.ret_code else ""
    return f"{event.timestamp} {event.op} {handles} {event.duration_us} us{failed}"
