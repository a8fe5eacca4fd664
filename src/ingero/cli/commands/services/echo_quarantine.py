"""`ingero-echo quarantine`: requests that Echo acknowledged but could not load."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ingero.cli.params import AS_JSON
from ingero.cli.settings import option_of
from ingero.cli.show.table import print_json, printable, render_table
from ingero.config.echo import DEFAULT_DATABASE, EchoConfig

if TYPE_CHECKING:
    from ingero.storage.quarantine import Quarantine, Quarantined

DB_PATH = option_of(EchoConfig, "db_path", "--db-path", default=DEFAULT_DATABASE)
SHORT_ID = 12
SHOWN_EVENTS = 20
_IDS = click.argument("ids", nargs=-1, metavar="[ID]...")
_ALL = click.option("--all", "everything", is_flag=True, help="Every request in quarantine.")


@click.group("quarantine")
def quarantine() -> None:
    """List, show, retry or drop requests that cannot be loaded."""


@quarantine.command(
    "list",
    epilog="""\b
Examples:
  ingero-echo quarantine list
  ingero-echo quarantine list --json
""",
)
@DB_PATH
@AS_JSON
def list_command(db_path: Path, as_json: bool) -> int:
    """List the requests in quarantine, in the order of their arrival.

    Echo may be running.
    """
    entries = _quarantine(db_path).in_order()
    documents = [_described(entry) for entry in entries]
    if as_json:
        print_json(documents)
        return 0
    rows = [
        (entry["id"][:SHORT_ID], *(entry[name] for name in _COLUMNS[1:])) for entry in documents
    ]
    click.echo(render_table(_COLUMNS, rows) if rows else "no requests are in quarantine")
    return 0


@quarantine.command(
    "show",
    epilog="""\b
Examples:
  ingero-echo quarantine show 5f3a90c2
  ingero-echo quarantine show 5f3a90c2 --output request.pb
""",
)
@DB_PATH
@AS_JSON
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="File that the body is written to, as OTLP protobuf.",
)
@click.argument("request", metavar="ID")
def show_command(db_path: Path, request: str, output: Path | None, as_json: bool) -> int:
    """Show one request in quarantine with its first events.

    The beginning of its id is enough.
    """
    from ingero.contract.otlp.rows import decode_rows
    from ingero.errors import IngeroError
    from ingero.files import replace_file

    kept = _quarantine(db_path)
    entry = kept.find(request)
    frame = kept.read(entry)
    if output is not None:
        replace_file(output, frame.body)
    try:
        rows = decode_rows(frame.signal, frame.body)
        events = [
            {"name": row.context.metric_name, "attrs": row.attrs, "detail": row.detail}
            for row in rows[:SHOWN_EVENTS]
        ]
    except (IngeroError, ValueError):
        events = []
    document = {**_described(entry), "events": events}
    if as_json:
        print_json(document)
        return 0
    click.echo(render_table(("fact", "value"), _described(entry).items()))
    for event in events:
        click.echo(
            printable(f"{event['name']} {event['attrs'] or ''} {event['detail'] or ''}")[:500]
        )
    return 0


@quarantine.command(
    "retry",
    epilog="""\b
Examples:
  ingero-echo quarantine retry 5f3a90c2
  ingero-echo quarantine retry --all
""",
)
@DB_PATH
@AS_JSON
@_ALL
@_IDS
def retry_command(db_path: Path, ids: tuple[str, ...], everything: bool, as_json: bool) -> int:
    """Load requests from quarantine, for example after an upgrade.

    Echo may be running. A request is loaded at most once. Exits with status 1 if one stays.
    """
    return _change(db_path, "retry", ids, everything, as_json)


@quarantine.command(
    "drop",
    epilog="""\b
Examples:
  ingero-echo quarantine drop 5f3a90c2
  ingero-echo quarantine drop --all
""",
)
@DB_PATH
@AS_JSON
@_ALL
@_IDS
def drop_command(db_path: Path, ids: tuple[str, ...], everything: bool, as_json: bool) -> int:
    """Delete requests from quarantine for good.

    Echo may be running.
    """
    return _change(db_path, "drop", ids, everything, as_json)


_COLUMNS = ("id", "request", "signal", "received", "bytes", "reason", "message")


def _quarantine(db_path: Path) -> "Quarantine":
    from ingero.storage.quarantine import Quarantine, quarantine_directory

    return Quarantine(quarantine_directory(db_path.expanduser()))


def _described(entry: "Quarantined") -> dict[str, Any]:
    received = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(entry.received_us / 1e6))
    values = (entry.id, entry.seq, entry.signal, received, entry.size_bytes)
    return dict(zip(_COLUMNS, (*values, entry.reason, entry.message), strict=True))


def _change(db_path: Path, what: str, ids: tuple[str, ...], everything: bool, as_json: bool) -> int:
    from ingero.echo.maintenance import change_quarantine

    if bool(ids) == everything:
        raise click.UsageError("name requests by their ids, or give --all")
    outcomes = change_quarantine(db_path.expanduser(), what, list(ids))
    if as_json:
        print_json(outcomes)
    else:
        for outcome in outcomes:
            why = f": {printable(outcome['why'])}" if outcome["why"] else ""
            click.echo(f"{outcome['id'][:SHORT_ID]} {outcome['outcome']}{why}")
        click.echo(f"{len(outcomes)} request(s)")
    return 1 if any(outcome["outcome"] == "kept" for outcome in outcomes) else 0
