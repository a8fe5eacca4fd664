"""A database of Echo that refuses some requests, to stand for values that no check foresaw.

Tables of a lake have no checks. There, the store refuses what it has just inserted.
"""

from pathlib import Path

import duckdb
from tests.support.stores import ON_LAKE, open_test_store

from ingero.contract.otlp.columns import Batch
from ingero.storage.events.migrate import MIGRATIONS, migrate
from ingero.storage.events.store import EventStore
from ingero.storage.journal.frames import Frame

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


def open_picky(path: Path) -> EventStore:
    """Open a new store that refuses requests with `REFUSED_METRIC`."""
    if not ON_LAKE:
        create_picky(path)
    store = open_test_store(path, 1 << 30, 1)
    if ON_LAKE:
        insert = store._insert

        def refuse(batch: Batch, fresh: dict[bytes, Frame]) -> int:
            missing = insert(batch, fresh)
            if any(context.metric_name == REFUSED_METRIC for context in batch.contexts):
                raise duckdb.ConstraintException("CHECK constraint failed")
            return missing

        vars(store)["_insert"] = refuse
    return store


def accept_all(store: EventStore) -> None:
    """Let the store accept what it refused, as a new version would."""
    if ON_LAKE:
        del vars(store)["_insert"]
    else:
        store.cursor().execute("CREATE OR REPLACE TABLE events AS SELECT * FROM events")
