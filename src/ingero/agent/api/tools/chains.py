"""`get_causal_chains`: why operations of this node were slow."""

import sqlite3
from typing import Annotated, Any

import msgspec

from ingero.agent.api.tools.context import (
    AgentContext,
    Compact,
    Pid,
    Since,
    ToolAnswer,
    from_trace,
    make_answer,
    nothing_since,
)
from ingero.contract.chain import severity_order
from ingero.contract.events import find_op
from ingero.contract.timestamps import rfc3339
from ingero.core.sanitise import LINE_BYTES, traced
from ingero.storage.trace.chain_replay import Span, derive_chains
from ingero.storage.trace.chains import RecordedChain, read_chains
from ingero.storage.trace.query import Process, count_events, has_events, read_processes
from ingero.storage.trace.rows import read_nodes

DEFAULT_SHOWN = 10


class ChainsQuestion(msgspec.Struct):
    since: Since = ""
    pid: Pid = 0
    pids: Annotated[list[Pid], msgspec.Meta(max_length=64, description="several processes")] = []
    top_n: Annotated[int, msgspec.Meta(description="how many; 0 is ten, below 0 is all")] = 0
    tsc: Compact = True


async def get_causal_chains(context: AgentContext, question: ChainsQuestion) -> ToolAnswer:
    """Why GPU operations were slow on this node: evidence, confidence and what to do.

    Worst first, one per node, operation and severity. Recorded chains are returned as recorded;
    where there are none, and for chosen processes, they are derived from the events. `confidence`
    is the share of slow calls that overlap the evidence, absent where it is unknown. The timeline
    ends with the slow operation itself.
    """
    return await from_trace(context, question, _chains)


def _chains(context: AgentContext, question: ChainsQuestion) -> ToolAnswer:
    since_ns = context.since_ns(question.since)
    pids = sorted({pid for pid in (question.pid, *question.pids) if pid})
    with context.reading() as connection:
        events = count_events(connection, since_ns)
        found = [] if pids else read_chains(connection, since_ns)
        if not found:
            if not events:
                return nothing_since(connection, question.since)
            if events > context.aggregate_above_events:
                return ToolAnswer(
                    text=f"{events:,} events are too many to derive chains from; "
                    "narrow `since`, or use run_sql"
                )
            if pids and not any(has_events(connection, pid) for pid in pids):
                return ToolAnswer(
                    text=f"no events of process {', '.join(map(str, pids))}; "
                    "get_trace_stats lists the processes"
                )
            found = derive_chains(connection, read_nodes(connection), Span(since_ns), pids)
        best = best_chains(found)
        limit = question.top_n or DEFAULT_SHOWN
        shown = best if limit < 0 else best[:limit]
        if not shown:
            return ToolAnswer(
                text=f"no causal chains: nothing in {events:,} events was slow "
                "with a visible cause; get_trace_stats has the latencies"
            )
        processes = _processes(connection, shown)
    chains = [_chain(chain, processes.get((chain.node, chain.chain.pid))) for chain in shown]
    return make_answer({"chains": chains, "total": len(best)}, question.tsc, has_traced=True)


def best_chains(chains: list[RecordedChain]) -> list[RecordedChain]:
    """Return one chain per node, operation and severity, with the longest tail; worst first."""
    kept: dict[tuple[str, str, str], RecordedChain] = {}
    for found in chains:
        key = (found.node, found.chain.cuda_op or found.chain.name, str(found.chain.severity))
        if key not in kept or found.chain.tail_ratio > kept[key].chain.tail_ratio:
            kept[key] = found
    return sorted(
        kept.values(),
        key=lambda found: (severity_order(found.chain.severity), -found.chain.tail_ratio),
    )


def _processes(
    connection: sqlite3.Connection, chains: list[RecordedChain]
) -> dict[tuple[str, int], Process]:
    """Read processes only if a chain has a pid: those of other recorders do not."""
    return read_processes(connection) if any(found.chain.pid for found in chains) else {}


def _chain(found: RecordedChain, process: Process | None) -> dict[str, Any]:
    chain = found.chain
    known: dict[str, Any] = {
        "severity": str(chain.severity),
        "node": traced(found.node) if found.node else None,
        "pid": chain.pid or None,
        "process_name": traced(process.name) if process and process.name else None,
        "rank": process.rank if process else None,
        "operation": chain.cuda_op
        if find_op(chain.cuda_op)
        else traced(chain.cuda_op)
        if chain.cuda_op
        else None,
        "p50_us": chain.p50_ns // 1000 or None,
        "p99_us": chain.p99_ns // 1000 or None,
        "tail_ratio": chain.tail_ratio or None,
        "confidence": chain.confidence,
        "detected_at": rfc3339(found.detected_at_ns),
        "summary": traced(chain.summary, LINE_BYTES),
        "root_cause": traced(chain.root_cause, LINE_BYTES),
        "recommendations": [traced(line, LINE_BYTES) for line in chain.recommendations],
        "timeline": [
            {"layer": str(line.layer), "detail": traced(line.detail, LINE_BYTES)}
            for line in chain.timeline
        ],
    }
    return {key: value for key, value in known.items() if value is not None}
