"""`ingero-echo`: the durable event store of a cluster, with backup, restore and verification."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ingero.cli.commands.services.echo_ask import ask, mcp
from ingero.cli.commands.services.echo_quarantine import quarantine
from ingero.cli.dispatch import run_click
from ingero.cli.params import AS_JSON
from ingero.cli.settings import LOG_LEVEL, option_of, options_of
from ingero.config.echo import DEFAULT_DATABASE, EchoConfig
from ingero.config.merge import merged
from ingero.errors import ConfigError

DB_PATH = option_of(EchoConfig, "db_path", "--db-path", default=DEFAULT_DATABASE)
SERVE_EPILOG = """\b
Examples:
  ingero-echo serve --create-certificate       loopback; certificate and token are created
  ingero-echo serve --otlp-addr :4317 --create-certificate echo-service echo.example.com
  ingero-echo serve --config echo.yaml
  ingero-echo serve --db-path /var/lib/ingero-echo/echo.db --otlp-addr :4317 \\
      --otlp-http-addr :4318 --mcp-addr :8081 --tls-cert echo.crt --tls-key echo.key \\
      --auth-token-file echo.token
  ingero-echo serve --create-certificate --store-secrets-file lake.yaml \\
      --store 'ducklake:postgres://echo@db.example/echo?data=s3://bucket/echo/'

The token comes from --auth-token-file or from $INGERO_ECHO_TOKEN. Without either, one is
created and kept beside the database. There is no flag for the token itself, because
process arguments are public.
"""


@click.group("ingero-echo")
def echo() -> None:
    """Store the events of a cluster durably and answer queries about them."""


@echo.command("serve", epilog=SERVE_EPILOG)
@click.option(
    "--config",
    "path",
    type=click.Path(path_type=Path),
    help="Configuration file (YAML); a flag wins over it.",
)
@click.option("--auth-token", hidden=True, default=None)
@LOG_LEVEL
@AS_JSON
@options_of(EchoConfig)
@click.argument("names", nargs=-1, metavar="[NAME]...")
def serve_command(
    names: tuple[str, ...],
    path: Path | None,
    auth_token: str | None,
    log_level: str,
    as_json: bool,
    **flags: Any,
) -> int:
    """Receive OTLP, store it and answer queries.

    SIGTERM finishes open requests and stops. SIGHUP reads tokens and certificates again. Each
    NAME is one by which clients reach Echo: with --create-certificate it is in the certificate.
    """
    if auth_token is not None:
        raise ConfigError(
            "a token on the command line is visible to every user; "
            "use --auth-token-file or INGERO_ECHO_TOKEN"
        )
    config = merged(EchoConfig, path, os.environ, flags)
    if names:
        config = replace(config, certificate_names=(*config.certificate_names, *names))
    return _serve(config, as_json, log_level)


def _serve(config: EchoConfig, as_json: bool, log_level: str) -> int:
    # the store process is started anew and inherits nothing, so gRPC need not prepare for a fork
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    from ingero.cli.foreground import run_service
    from ingero.echo.app import serve

    return run_service(
        "ingero-echo", lambda started: serve(config, started), as_json=as_json, log_level=log_level
    )


@echo.command(
    "backup",
    epilog="""\b
Examples:
  ingero-echo backup /mnt/echo-monday.db
  ingero-echo backup --db-path /var/lib/ingero-echo/echo.db /mnt/echo-monday.db
""",
)
@DB_PATH
@AS_JSON
@click.argument("target", type=click.Path(path_type=Path))
def backup_command(db_path: Path, target: Path, as_json: bool) -> int:
    """Copy the database to TARGET.

    Echo may be running. The copy holds everything that was acknowledged.
    """
    from ingero.echo.maintenance import backup

    applied = backup(db_path.expanduser(), target)
    _print(
        as_json,
        {"backup": str(target), "applied_seq": applied},
        f"{target} holds everything up to request {applied}",
    )
    return 0


@echo.command(
    "restore",
    epilog="""\b
Examples:
  ingero-echo restore /mnt/echo-monday.db
  ingero-echo restore --db-path /var/lib/ingero-echo/echo.db --force /mnt/echo-monday.db
""",
)
@DB_PATH
@AS_JSON
@click.option("--force", is_flag=True, help="Move an existing database aside first.")
@click.argument("source", type=click.Path(path_type=Path))
def restore_command(db_path: Path, source: Path, force: bool, as_json: bool) -> int:
    """Replace the database with the backup SOURCE.

    Stop Echo first. A journal that continues the backup is kept and loaded.
    """
    from ingero.echo.maintenance import restore

    applied, journal = restore(source, db_path.expanduser(), force=force)
    document = {"restored": str(source), "applied_seq": applied, "journal": journal}
    _print(as_json, document, f"restored up to request {applied}; {journal}")
    return 0


@echo.command("verify", epilog="\b\nExamples:\n  ingero-echo verify\n  ingero-echo verify --repair")
@DB_PATH
@AS_JSON
@click.option(
    "--repair", is_flag=True, help="Load what a damaged journal still holds, then move it aside."
)
def verify_command(db_path: Path, repair: bool, as_json: bool) -> int:
    """Check the database and its journal.

    Stop Echo first. Exits with status 1 and lists the problems if there are any.
    """
    from ingero.cli.show.table import render_table
    from ingero.echo.maintenance import repair as repair_journal
    from ingero.echo.maintenance import verify

    database = db_path.expanduser()
    found = verify(database)
    saved = lost = 0
    if repair and found.problems:
        saved, lost = repair_journal(database)
        found = verify(database)
        found.notes.append(
            f"repaired: {saved} requests saved, {lost} lost; the old journal is beside the database"
        )
    lines = [render_table(("fact", "value"), found.facts.items())]
    lines += [f"note: {note}" for note in found.notes] + [
        f"PROBLEM: {problem}" for problem in found.problems
    ]
    lines.append(
        "everything can be read"
        if not found.problems
        else f"{len(found.problems)} problem(s) found"
    )
    document = {"facts": found.facts, "problems": found.problems, "notes": found.notes}
    _print(as_json, document, "\n".join(lines))
    return 1 if found.problems else 0


@echo.command(
    "migrate",
    epilog="""\b
Examples:
  ingero-echo migrate /var/lib/ingero-echo/echo.db \\
      'ducklake:postgres://echo@db.example/echo?data=s3://bucket/echo/' \\
      --store-secrets-file lake.yaml
  ingero-echo migrate --json echo.db 'ducklake:postgres://echo@db.example/echo?data=/mnt/echo/'
""",
)
@option_of(EchoConfig, "store_secrets_file", "--store-secrets-file", default=None)
@AS_JSON
@click.argument("database", type=click.Path(path_type=Path))
@click.argument("store")
def migrate_command(
    database: Path, store: str, store_secrets_file: Path | None, as_json: bool
) -> int:
    """Copy DATABASE into the lake STORE, all of it or nothing.

    Stop Echo first. The file stays as it is. Afterwards start Echo with the same --db-path and
    with --store: it continues where its journal ends.
    """
    from ingero.cli.show.table import render_table
    from ingero.config.lake import read_lake_secrets
    from ingero.echo.maintenance import move_to_lake
    from ingero.storage.events.lake.address import parse_lake_address
    from ingero.storage.events.lake.moving import Moved

    address, secrets = parse_lake_address(store), read_lake_secrets(store_secrets_file)

    def say(moved: Moved) -> None:
        if sys.stderr.isatty():
            click.echo(f"{moved.table}: {moved.rows} rows", err=True)

    moved = move_to_lake(database.expanduser(), address, secrets, say)
    rows = [(table.table, table.rows, table.digest) for table in moved]
    document = {"moved": [dict(zip(("table", "rows", "digest"), row, strict=True)) for row in rows]}
    text = render_table(("table", "rows", "digest"), rows)
    _print(as_json, document, f"{text}\nevery row is in the lake as it was in the file")
    return 0


@echo.command(
    "demo-database",
    epilog="""\b
Examples:
  ingero-echo demo-database echo-fanin-demo.db
  ingero-echo demo-database --json /tmp/demo.db
""",
)
@AS_JSON
@click.argument("target", type=click.Path(path_type=Path))
def demo_command(target: Path, as_json: bool) -> int:
    """Write a small database to try queries on.

    It has eight nodes, 80 causal chains and two planted stragglers.
    """
    from ingero.echo.maintenance import write_demo

    events = write_demo(target)
    text = f"{target}: {events} events, {target.stat().st_size} bytes"
    _print(
        as_json, {"path": str(target), "events": events, "size_bytes": target.stat().st_size}, text
    )
    return 0


echo.add_command(ask)
echo.add_command(mcp)
echo.add_command(quarantine)


def _print(as_json: bool, document: dict[str, Any], text: str) -> None:
    click.echo(json.dumps(document, indent=2) if as_json else text)


def main() -> int:
    """Run the console script."""
    return run_click(echo, sys.argv[1:], "ingero-echo")


if __name__ == "__main__":
    sys.exit(main())
