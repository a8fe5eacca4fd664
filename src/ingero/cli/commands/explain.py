"""`ingero explain`: the causal chains of a trace database, as recorded or derived again."""

import sqlite3
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click

from ingero.cli.fanout.options import FAIL_ON_PARTIAL, fanout_options, resolve_fanout
from ingero.cli.params import AS_JSON, Duration, Moment
from ingero.cli.settings import TRACE_DB
from ingero.cli.show.table import print_json, printable, render_table, severity_tag
from ingero.config.ingero import trace_database
from ingero.contract.chain import Severity
from ingero.core.durations import human_duration
from ingero.storage.trace.annotations import labels_of_chains
from ingero.storage.trace.chain_replay import Span, derive_chains
from ingero.storage.trace.chains import RecordedChain, read_chains
from ingero.storage.trace.query import (
    RECORDER_SILENT_NS,
    Kept,
    ProcessTime,
    kept_events,
    process_times,
    recorded_until,
)
from ingero.storage.trace.reading import reading
from ingero.storage.trace.rows import read_nodes
from ingero.storage.trace.schema import MAX_TIME_NS

DEFAULT_SINCE_S = 300.0
FANOUT_TIMEOUT_S = 5.0


@click.command()
@TRACE_DB
@click.option(
    "--since",
    type=Duration(),
    help="Only the last 5m, 1h, 2d … [default: 5m; with --db: the whole file].",
)
@click.option(
    "--from", "begin", type=Moment(), help="From this time on: 12:30 (today) or 2026-01-15T12:30."
)
@click.option("--to", "end", type=Moment(), help="Up to this time.")
@click.option(
    "--last", type=click.IntRange(1), help="Only the newest so many events (implies --replay)."
)
@click.option("--pid", type=int, default=0, help="Only this process (implies --replay).")
@click.option(
    "--replay",
    "again",
    is_flag=True,
    help="Derive the chains again from the events instead of reading them.",
)
@click.option(
    "--chains", is_flag=True, help="Recorded chains only, without the account of what was kept."
)
@click.option(
    "--annotations",
    is_flag=True,
    help="What the job said about itself at that time (step, epoch, phase …).",
)
@click.option("--per-process", is_flag=True, help="Where each process spent its time.")
@AS_JSON
@fanout_options(FANOUT_TIMEOUT_S)
@FAIL_ON_PARTIAL
def command(
    db: Path | None, since: float | None, begin: int | None, end: int | None, last: int | None, pid: int, again: bool,
    chains: bool, annotations: bool, per_process: bool, as_json: bool, **fanout: Any,
) -> int:  # fmt: skip
    """Say what was slow, why, and what to do about it: on this machine, in a file, or on many nodes at once.

    \b
    Examples:
      ingero explain                       what happened in the last five minutes
      ingero explain -d cluster.db         a whole file, worst node first
      ingero explain -d node.db --replay   derive the chains again from the events
      ingero explain --annotations         with step, epoch and phase of the slow call
      ingero explain --per-process --since 1h
      ingero explain --nodes gpu-node-01:8080,gpu-node-02:8080
    """
    options = resolve_fanout(fanout, FANOUT_TIMEOUT_S, is_local=db is not None)
    if options is not None:
        if again or last or pid or per_process or begin or end or annotations:
            named = "--nodes" if fanout["nodes"] is not None else "fleet.nodes of ingero.yaml"
            raise click.UsageError(
                f"the nodes of {named} show their recorded chains: only --since, --json and connection options go "
                "along; name a file with -d for the rest"
            )
        from ingero.cli.commands.explain_nodes import ask_chains

        return ask_chains(options, None if since is None else f"{since:.3f}s", as_json)
    span = _span(since, begin, end, last, is_default=db is None)
    with reading(trace_database(db)) as connection:
        if per_process:
            _print_processes(process_times(connection, span.from_ns, span.to_ns), as_json)
            return 0
        derived = (again or last is not None or pid > 0) and not chains
        found = (
            _derive(connection, span, pid)
            if derived
            else read_chains(connection, span.from_ns, span.to_ns)
        )
        labels = labels_of_chains(connection, found) if annotations else []
        if as_json:
            extra = [{"annotations": own} for own in labels] or [{}] * len(found)
            print_json([chain_json(chain) | more for chain, more in zip(found, extra, strict=True)])
            return 0
        print_chains(found, derived=derived, labels=labels)
        if not chains:
            _print_kept(kept_events(connection, span.from_ns, span.to_ns), bool(found), derived)
            if db is None:
                _print_age(recorded_until(connection), time.time_ns())
    return 0


def _span(
    since: float | None, begin: int | None, end: int | None, last: int | None, is_default: bool
) -> Span:
    if since is not None and (begin is not None or end is not None):
        raise click.UsageError("--since and --from/--to say the same thing twice: give one of them")
    if begin is not None or end is not None:
        return Span(begin or 0, MAX_TIME_NS if end is None else end, last or 0)
    if since is None and (not is_default or last):
        return Span(last=last or 0)
    return Span(
        time.time_ns() - int((DEFAULT_SINCE_S if since is None else since) * 1e9), last=last or 0
    )


def _derive(connection: sqlite3.Connection, span: Span, pid: int) -> list[RecordedChain]:
    if len(read_nodes(connection)) > 1:
        print(
            "NOTE: system samples of a merged file do not say whose they are: left out of the replay",
            file=sys.stderr,
        )
    return derive_chains(connection, span, (pid,))


def chain_json(recorded: RecordedChain) -> dict[str, Any]:
    """The published shape of a chain, empty values left out."""
    chain = recorded.chain
    full = {
        "node": recorded.node, "id": recorded.id, "detected_at": recorded.detected_at_ns,
        "severity": str(chain.severity), "summary": chain.summary, "root_cause": chain.root_cause,
        "explanation": chain.explanation, "recommendations": list(chain.recommendations), "cuda_op": chain.cuda_op,
        "cuda_p99_us": chain.p99_ns // 1000, "cuda_p50_us": chain.p50_ns // 1000, "tail_ratio": chain.tail_ratio,
        "timeline": [
            {"layer": str(entry.layer), "op": entry.op, "detail": entry.detail, "dur_us": entry.duration_us}
            for entry in chain.timeline
        ],
        "pid": chain.pid, "confidence": chain.confidence,
    }  # fmt: skip
    always = ("id", "severity", "summary", "root_cause", "explanation", "recommendations")
    return {key: value for key, value in full.items() if value or key in always}


def print_chains(
    found: list[RecordedChain], *, derived: bool, labels: Sequence[Mapping[str, str]] = ()
) -> None:
    """Worst first: severity, node, what; then the evidence, the cause and what to do."""
    if not found:
        return
    counts = ", ".join(
        f"{count} {severity}"
        for severity in Severity
        if (count := sum(item.chain.severity == severity for item in found))
    )
    nodes = len({item.node for item in found})
    how = "derived from the events" if derived else "as recorded"
    print(f"CAUSAL CHAINS - {len(found)} chain(s) from {nodes} node(s), {how}: {counts}\n")
    for index, item in enumerate(found):
        print_chain(item, labels[index] if labels else {})


def print_chain(item: RecordedChain, labels: Mapping[str, str] = MappingProxyType({})) -> None:
    """One chain, with what the job said of that time."""
    node = f" [{printable(item.node)}]" if item.node else ""
    print(f"{severity_tag(item.chain.severity)}{node} {printable(item.chain.summary)}")
    for entry in item.chain.timeline:
        print(f"  [{entry.layer}] {printable(entry.op)}: {printable(entry.detail)}")
    if labels:
        print(
            f"  During: {', '.join(f'{key}={printable(value)}' for key, value in labels.items())}"
        )
    print(f"  Root cause: {printable(item.chain.root_cause)}")
    if item.chain.recommendations:
        print(f"  Fix: {'; '.join(printable(line) for line in item.chain.recommendations)}")
    print()


def _print_kept(kept: Kept, has_chains: bool, derived: bool) -> None:
    if not kept.counted:
        print("no events in this part of the trace; widen --since, or record with `ingero trace`")
        return
    if not has_chains:
        hint = "" if derived else "; --replay derives them again from the events"
        print(f"no causal chains: nothing was slow with a cause we can see{hint}")
    print(f"{kept.counted:,} events counted, {kept.stored:,} kept as rows", file=sys.stderr)


def _print_age(until_ns: int | None, now_ns: int) -> None:
    if until_ns is not None and now_ns - until_ns > RECORDER_SILENT_NS:
        age = human_duration(now_ns - until_ns)
        print(f"NOTE: no recorder is running: the last one wrote {age} ago", file=sys.stderr)


def _print_processes(times: list[ProcessTime], as_json: bool) -> None:
    if as_json:
        keys = ("node", "pid", "process", "op", "count", "avg_ns", "max_ns")
        values = ((t.node, t.pid, t.name, t.op, t.count, t.avg_ns, t.max_ns) for t in times)
        print_json([dict(zip(keys, row, strict=True)) for row in values])
        return
    if not times:
        print("no events in this part of the trace; widen --since, or record with `ingero trace`")
        return
    rows = [
        (t.node, t.pid, t.name, t.op, t.count, human_duration(t.avg_ns), human_duration(t.max_ns))
        for t in times
    ]
    print(render_table(("node", "pid", "process", "op", "count", "avg", "max"), rows))
    gpu = {(t.node, t.pid) for t in times if t.is_gpu}
    for node in sorted({node for node, _ in gpu}):
        pids = sorted(pid for where, pid in gpu if where == node)
        if len(pids) > 1:
            where = f" on {printable(node)}" if node else ""
            print(
                f"\n{len(pids)} processes use the GPU{where}: {', '.join(map(str, pids))}; they share its time"
            )
