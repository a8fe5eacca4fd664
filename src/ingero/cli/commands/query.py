"""`ingero query`: SQL or filters on a trace database."""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import click

from ingero.cli.fanout.options import FAIL_ON_PARTIAL, fanout_options, resolve_fanout
from ingero.cli.params import TRACE_DB, Duration
from ingero.cli.show.rows import RowPrinter
from ingero.config.ingero import trace_database
from ingero.storage.sqlite_guard import MAX_ROWS, QueryLimits, run_query
from ingero.storage.trace.annotations import labels_of
from ingero.storage.trace.prune import rolled_files
from ingero.storage.trace.query import EVENT_VIEW, EventFilter, find_events
from ingero.storage.trace.reading import reading

FANOUT_TIMEOUT_S, LOCAL_TIMEOUT_S = 5.0, 10.0
LOCAL_ROWS = 10_000


@click.command()
@click.argument("sql", required=False)
@TRACE_DB
@click.option(
    "--since",
    type=Duration(),
    help="Without SQL: only the last 5m, 1h, 2d … [default: 1h; with --db: all].",
)
@click.option("--pid", type=int, help="Without SQL: only this process.")
@click.option(
    "--op", help="Without SQL: only this operation, such as cudaMemcpyAsync or sched_switch."
)
@click.option(
    "--annotations",
    is_flag=True,
    help="Without SQL: a column with what the job said about itself then.",
)
@click.option(
    "--include-rolled",
    is_flag=True,
    help="Without SQL: also the files that a recording moved aside.",
)
@click.option(
    "--limit",
    type=click.IntRange(1, MAX_ROWS),
    help=f"At most so many rows [default: {LOCAL_ROWS}, 1000 per node with --nodes; most: {MAX_ROWS}].",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json", "csv"]),
    default="table",
    show_default=True,
)
@click.option("--json", "as_json", is_flag=True, help="Same as --format json.")
@fanout_options(FANOUT_TIMEOUT_S)
@FAIL_ON_PARTIAL
def command(
    sql: str | None,
    db: Path | None,
    since: float | None,
    pid: int | None,
    op: str | None,
    annotations: bool,
    include_rolled: bool,
    limit: int | None,
    form: str,
    as_json: bool,
    **fanout: Any,
) -> int:
    """Ask a trace database, or those of many nodes at once, with SQL or with filters. Nothing is ever changed.

    \b
    Examples:
      ingero query "SELECT source, op, count(*) AS n FROM events GROUP BY 1, 2 ORDER BY n DESC"
      ingero query --since 10m --op cudaStreamSync --limit 20
      ingero query --since 2d --pid 4711 --include-rolled --annotations
      ingero query -d cluster.db --json "SELECT node, count(*) AS n FROM events GROUP BY node"
      ingero query --nodes gpu-node-01:8080,gpu-node-02:8080 "SELECT source, count(*) AS n FROM events GROUP BY source"
    """
    if sql is not None and (pid is not None or op is not None or since is not None):
        raise click.UsageError(
            "--since, --pid and --op are filters of a query without SQL: write them into the SQL"
        )
    if sql is not None and (annotations or include_rolled):
        raise click.UsageError("--annotations and --include-rolled go with filters, not with SQL")
    options = resolve_fanout(fanout, FANOUT_TIMEOUT_S, is_local=db is not None)
    if options is not None and sql is None and fanout["nodes"] is not None:
        raise click.UsageError(
            'asking several nodes needs SQL, for example "SELECT count(*) AS n FROM events"'
        )
    if options is not None and sql is not None:
        from ingero.cli.commands.query_nodes import ask_rows

        return ask_rows(options, sql, limit or 1000, "json" if as_json else form)
    file = trace_database(db)
    if sql is None:
        seconds = since if since is not None else 3600.0 if db is None else None
        since_ns = 0 if seconds is None else time.time_ns() - int(seconds * 1e9)
        wanted = EventFilter(since_ns=since_ns, pid=pid, op=op, limit=(limit or LOCAL_ROWS) + 1)
        files = [file, *(reversed(rolled_files(file)) if include_rolled else ())]
        columns, rows, truncated = _by_filter(files, wanted, annotations)
    else:
        result = run_query(
            file, sql, QueryLimits(fanout["timeout"] or LOCAL_TIMEOUT_S, limit or LOCAL_ROWS)
        )
        columns, rows, truncated = result.columns, result.rows, result.truncated
    print_rows(columns, rows, "json" if as_json else form)
    if truncated:
        print(
            f"WARNING: there are more than {len(rows)} rows; ask for fewer or raise --limit",
            file=sys.stderr,
        )
    return 0


def _by_filter(
    files: Sequence[Path], wanted: EventFilter, annotations: bool
) -> tuple[list[str], Sequence[Sequence[object]], bool]:
    """Newest first, over the newest file first; one row more than wanted says that there are more."""
    rows: list[list[object]] = []
    for file in files:
        with reading(file) as connection:
            found = find_events(connection, replace(wanted, limit=wanted.limit - len(rows)))
            if annotations:
                labels = labels_of(
                    connection, [(cast(int, row[2]), cast(int, row[0])) for row in found]
                )
                found = [
                    [*row, json.dumps(own) if own else ""]
                    for row, own in zip(found, labels, strict=True)
                ]
        rows += found
        if len(rows) >= wanted.limit:
            break
    columns = [*EVENT_VIEW, *(["annotations"] if annotations else [])]
    return columns, rows[: wanted.limit - 1], len(rows) >= wanted.limit


def print_rows(columns: Sequence[str], rows: Sequence[Sequence[object]], form: str) -> None:
    """One answer in the form asked for; the count goes to standard error."""
    printer = RowPrinter(form)
    printer.begin(columns)
    printer.rows(rows)
    printer.end()
    if form == "table":
        print(f"\n  {len(rows)} rows" if rows else "no results", file=sys.stderr)
