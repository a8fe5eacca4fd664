"""`ingero explain`: show the causal chains of a trace database, recorded or derived again."""

import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

import click

from ingero.cli.exit_status import CANNOT_TELL, FINE, SLOW, Question
from ingero.cli.fanout.options import FAIL_ON_PARTIAL, fanout_options, resolve_fanout
from ingero.cli.params import AS_JSON, Duration, Moment
from ingero.cli.settings import TRACE_DB
from ingero.cli.show.chains import print_chains, print_chains_json
from ingero.cli.show.process_times import print_process_times
from ingero.cli.show.progress import shown_progress
from ingero.config.ingero import trace_database
from ingero.core.durations import readable_duration
from ingero.storage.operations import OpFilter, read_operations
from ingero.storage.trace.annotations import labels_of_chains
from ingero.storage.trace.chain_replay import Span, derive_chains
from ingero.storage.trace.chains import RecordedChain, read_chains
from ingero.storage.trace.query import (
    RECORDER_SILENT_NS,
    Kept,
    kept_events,
    read_processes,
    recorded_until,
)
from ingero.storage.trace.reading import reading
from ingero.storage.trace.rows import read_nodes
from ingero.storage.trace.schema import MAX_TIME_NS

DEFAULT_SINCE_S = 300.0
FANOUT_TIMEOUT_S = 5.0


@click.command(cls=Question)
@TRACE_DB
@click.option(
    "--since",
    type=Duration(),
    help="Only this last period, such as 1h or 2d; without it five minutes, "
    "or the whole file with --db.",
)
@click.option(
    "--from",
    "begin",
    type=Moment(),
    help="Begin at this time: 12:30 (today) or 2026-01-15T12:30.",
)
@click.option("--to", "end", type=Moment(), help="End at this time.")
@click.option(
    "--last",
    type=click.IntRange(1),
    help="Only this many of the newest events (implies --replay).",
)
@click.option("--pid", type=int, default=0, help="Only events of this process (implies --replay).")
@click.option(
    "--replay",
    "again",
    is_flag=True,
    help="Derive the chains again from the events instead of reading them.",
)
@click.option(
    "--chains",
    is_flag=True,
    help="Print only recorded chains, without the summary of what was recorded.",
)
@click.option(
    "--annotations",
    is_flag=True,
    help="Add the annotations of the job at that time (step, epoch, phase).",
)
@click.option("--per-process", is_flag=True, help="Show how each process spent its time.")
@AS_JSON
@fanout_options(FANOUT_TIMEOUT_S)
@FAIL_ON_PARTIAL
def command(
    db: Path | None, since: float | None, begin: int | None, end: int | None, last: int | None,
    pid: int, again: bool, chains: bool, annotations: bool, per_process: bool, as_json: bool,
    **fanout: Any,
) -> int:  # fmt: skip
    """Show what was slow, why, and what to do about it.

    Without options, the last five minutes of the trace of this machine are read. With -d, a whole
    file is read, worst node first. With --nodes, many nodes are asked at once.

    Causal chains are shown as they were recorded; --replay, --last and --pid derive them again from
    the events. docs/explain/causal-chains.md describes how chains are found.

    The exit status is 0 when nothing was slow, 1 when something was and 3 without any data.

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
            raise _not_for_nodes(fanout["nodes"] is not None)
        from ingero.cli.commands.explain_nodes import ask_chains

        return ask_chains(options, None if since is None else f"{since:.3f}s", as_json)
    span = _span(since, begin, end, last, is_default=db is None)
    with reading(trace_database(db)) as connection:
        if per_process:
            _print_processes(connection, span, as_json)
            return FINE
        derived = (again or last is not None or pid > 0) and not chains
        found = _chains(connection, span, pid, is_derived=derived)
        labels = labels_of_chains(connection, found) if annotations else []
        kept = kept_events(connection, span.from_ns, span.to_ns)
        if as_json:
            print_chains_json(found, labels)
        else:
            print_chains(found, derived=derived, labels=labels)
            if not chains:
                _print_kept(kept, bool(found), derived)
                _print_age(recorded_until(connection) if db is None else None, time.time_ns())
    return SLOW if found else FINE if kept.counted else CANNOT_TELL


def _not_for_nodes(is_option: bool) -> click.UsageError:
    named = "--nodes" if is_option else "fleet.nodes of ingero.yaml"
    return click.UsageError(
        f"the nodes of {named} show their recorded chains, so only --since, --json and "
        "connection options are accepted; name a file with -d for the others"
    )


def _print_processes(connection: sqlite3.Connection, span: Span, as_json: bool) -> None:
    wanted = OpFilter(from_ns=span.from_ns, to_ns=span.to_ns)
    with shown_progress() as shown:
        read = shown.phase("events read")
        operations = read_operations(connection, wanted, lambda done: read(done, 0))
    print_process_times(operations, read_processes(connection), as_json)


def _span(
    since: float | None, begin: int | None, end: int | None, last: int | None, is_default: bool
) -> Span:
    if since is not None and (begin is not None or end is not None):
        raise click.UsageError("--since excludes --from and --to: give one of them")
    if begin is not None or end is not None:
        return Span(begin or 0, MAX_TIME_NS if end is None else end, last or 0)
    if since is None and (not is_default or last):
        return Span(last=last or 0)
    return Span(
        time.time_ns() - int((DEFAULT_SINCE_S if since is None else since) * 1e9), last=last or 0
    )


def _chains(
    connection: sqlite3.Connection, span: Span, pid: int, *, is_derived: bool
) -> list[RecordedChain]:
    if not is_derived:
        return read_chains(connection, span.from_ns, span.to_ns)
    with shown_progress() as shown:
        read, replayed = shown.phase("events read"), shown.phase("events replayed")
        nodes = read_nodes(connection)
        found = derive_chains(connection, nodes, span, (pid,), read, replayed)
    if len(nodes) > 1:
        print(
            "NOTE: the system samples of a merged file carry no node name: the replay ignores them",
            file=sys.stderr,
        )
    return found


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
        age = readable_duration(now_ns - until_ns)
        print(f"NOTE: no recorder is running: the last one wrote {age} ago", file=sys.stderr)
