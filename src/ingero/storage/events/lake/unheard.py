"""Commits of a lake that PostgreSQL made, but whose reply never came.

DuckLake takes such a commit for failed and deletes the files that it had written, while the
catalogue names them: every question about them would fail. So each transaction names its writer,
and the writer takes back its last one where files are missing. What it loaded is loaded again.
"""

import logging

import duckdb

from ingero.storage.events.lake.catalogue import Catalogue
from ingero.storage.events.lake.connection import NAME
from ingero.storage.events.migrate import literal

log = logging.getLogger(__name__)


def commit_as(catalogue: Catalogue) -> str:
    """Return the statement that puts the writer's name on the transaction that is open."""
    return f"CALL {NAME}.set_commit_message({literal(catalogue.session)}, '')"


def undo_unheard(catalogue: Catalogue, connection: duckdb.DuckDBPyConnection, data: str) -> None:
    """Take back the writer's last commit if files that it added to `data` are missing.

    Call it when PostgreSQL does nothing for this writer any more.
    """
    snapshot, files = catalogue.last_commit()
    for file in files:
        # object storage is asked only where there is a wildcard
        pattern = literal(f"{data}{file.removesuffix('.parquet')}*")
        found = connection.execute(f"SELECT count(*) FROM glob({pattern})").fetchall()
        if found == [(0,)]:
            log.warning("commit_undone snapshot=%d missing=%r", snapshot, file)
            catalogue.undo(snapshot)
            return
