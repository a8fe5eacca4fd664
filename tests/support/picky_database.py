"""A database of Echo that refuses some requests, to stand for values that no check foresaw."""

from pathlib import Path

import duckdb

from ingero.storage.events.migrate import MIGRATIONS, migrate

REFUSED_METRIC = "refused"  # the database raises an error for it
FATAL_METRIC = "fatal"  # the process that loads it runs out of memory
_CHECKS = (
    f"CHECK (metric_name <> '{REFUSED_METRIC}'), "
    f"CHECK (CASE WHEN metric_name = '{FATAL_METRIC}' "
    "THEN strlen(repeat(metric_name, 700000000)) = 0 ELSE true END)"
)


def create_picky(path: Path) -> None:
    """Create the database in which `events` has these checks."""
    first = [
        statement.replace('"detail" JSON)', f'"detail" JSON, {_CHECKS})')
        for statement in MIGRATIONS[1]
    ]
    assert first != MIGRATIONS[1]
    with duckdb.connect(str(path)) as connection:
        migrate(connection, {**MIGRATIONS, 1: first})
