"""`ingero query`: query a trace database with SQL or filters."""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import click

from ingero.cli.fanout.options import FAIL_ON_PARTIAL, fanout_options, resolve_fanout
from ingero.cli.params import Duration
from ingero.cli.settings import TRACE_DB
from ingero.cli.show.readable import readable_columns, readable_rows
from ingero.cli.show.rows import RowPrinter
from ingero.config.ingero import trace_database
from ingero.core.counted import counted
from ingero.storage.sqlite_guard import MAX_ROWS, QueryLimits, run_query
from ingero.storage.trace.annotations import labels_of
from ingero.storage.trace.prune import rolled_files
from ingero.storage.trace.query import EVENT_VIEW, EventFilter, find_events
from ingero.storage.trace.reading import reading

FANOUT_TIMEOUT_S, LOCAL_TIMEOUT_S = 5.0, 10.0
LOCAL_ROWS, NODE_ROWS = 10_000, 1_000
DEFAULT_SINCE_S = 3600.0


@click.command()
@click.argument("sql", required=False)
@TRACE_DB
@click.option(
    "--since",
    type=Duration(),
    help="Only events of this last period, such as 5m or 2d; if omitted, the last hour, "
    "or the whole file with --db.",
)
@click.option("--pid", type=int, help="Only events of this process.")
@click.option(
    "--op",
    help="Only this operation, such as cudaMemcpyAsync or sched_switch.",
)
@click.option(
    "--annotations",
    is_flag=True,
    help="Add a column with the annotations of the job at the time of each event.",
)
@click.option(
    "--include-rolled",
    is_flag=True,
    help="Also read the files that a recording moved aside.",
)
@click.option(
    "--limit",
    type=click.IntRange(1, MAX_ROWS),
    help=f"Print at most this many rows; without it {LOCAL_ROWS:,}, or {NODE_ROWS:,} per node.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json", "csv"]),
    default="table",
    show_default=True,
    help="Format of the printed rows.",
)
@click.option("--json", "as_json", is_flag=True, help="Same as --format json.")
@click.option(
    "--raw",
    is_flag=True,
    help="Print integers in tables as they are stored, without names and units.",
)
@fanout_options(FANOUT_TIMEOUT_S)
@FAIL_ON_PARTIAL
def command(
    sql: str | None, db: Path | None, limit: int | None, form: str, as_json: bool, raw: bool,
    **flags: Any,
) -> int:  # fmt: skip
    """Query trace databases with SQL or with filters.

    Without SQL, --since, --pid and --op select events, newest first; --annotations and
    --include-rolled work with these filters only. With --nodes, or when ingero.yaml lists nodes,
    the same SQL runs on all nodes at once.

    A database is opened read-only and only reading statements are accepted. A query that runs
    longer than --timeout is stopped. docs/reference/trace-database.md describes tables and columns.

    Tables of this machine's trace show names beside codes, and times and durations with units;
    --raw shows the stored integers, as JSON, CSV and answers of several nodes do.

    \b
    Examples:
      ingero query "SELECT source, op, count(*) AS n FROM events GROUP BY 1, 2 ORDER BY n DESC"
      ingero query --since 10m --op cudaStreamSync --limit 20
      ingero query --since 2d --pid 4711 --include-rolled --annotations
      ingero query -d cluster.db --json "SELECT node, count(*) AS n FROM events GROUP BY node"
      ingero query --nodes gpu-1:8080,gpu-2:8080 "SELECT op, count(*) AS n FROM events GROUP BY 1"
    """
    form = "json" if as_json else form
    _refuse_filters_with_sql(sql, flags)
    options = resolve_fanout(flags, FANOUT_TIMEOUT_S, is_local=db is not None)
    if options is not None and sql is None and flags["nodes"] is not None:
        raise click.UsageError(
            'asking several nodes needs SQL, for example "SELECT count(*) AS n FROM events"'
        )
    if options is not None and sql is not None:
        from ingero.cli.commands.query_nodes import ask_rows

        return ask_rows(options, sql, limit or NODE_ROWS, form)
    columns, rows, truncated = _local_rows(sql, db, limit or LOCAL_ROWS, flags)
    is_for_people = form == "table" and not raw
    if is_for_people:
        print_rows(readable_columns(columns), readable_rows(columns, rows), form)
    else:
        print_rows(columns, rows, form)
    if truncated:
        print(
            f"WARNING: there are more than {len(rows)} rows; ask for fewer or raise --limit",
            file=sys.stderr,
        )
    return 0


def _local_rows(
    sql: str | None, db: Path | None, most: int, flags: dict[str, Any]
) -> tuple[list[str], Sequence[Sequence[object]], bool]:
    """Return columns, rows and whether there are more."""
    file = trace_database(db)
    if sql is not None:
        result = run_query(file, sql, QueryLimits(flags["timeout"] or LOCAL_TIMEOUT_S, most))
        return result.columns, result.rows, result.truncated
    seconds = flags["since"] if flags["since"] is not None else DEFAULT_SINCE_S
    since_ns = time.time_ns() - int(seconds * 1e9)
    if flags["since"] is None and db is not None:
        since_ns = 0
    wanted = EventFilter(since_ns=since_ns, pid=flags["pid"], op=flags["op"], limit=most + 1)
    files = [file, *(reversed(rolled_files(file)) if flags["include_rolled"] else ())]
    return _by_filter(files, wanted, flags["annotations"])


def _refuse_filters_with_sql(sql: str | None, flags: dict[str, Any]) -> None:
    if sql is None:
        return
    if any(flags[name] is not None for name in ("pid", "op", "since")):
        raise click.UsageError(
            "--since, --pid and --op are filters of a query without SQL: write them into the SQL"
        )
    if flags["annotations"] or flags["include_rolled"]:
        raise click.UsageError("--annotations and --include-rolled go with filters, not with SQL")


def _by_filter(
    files: Sequence[Path], wanted: EventFilter, annotations: bool
) -> tuple[list[str], Sequence[Sequence[object]], bool]:
    """Read events newest first, from the newest file first; returns columns, rows and truncation.

    The filter's limit is one row more than wanted, which shows whether there are more.
    """
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
    """Print one answer in this format; the number of rows goes to standard error."""
    printer = RowPrinter(form)
    printer.begin(columns)
    printer.rows(rows)
    printer.end()
    if form == "table":
        print(f"\n  {counted(len(rows), 'row')}" if rows else "no results", file=sys.stderr)
