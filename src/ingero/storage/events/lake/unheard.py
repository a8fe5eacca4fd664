"""Commits of a lake that PostgreSQL made, but whose reply never came.

DuckLake takes such a commit for failed and deletes the files that it had written, while the
catalogue names them: every question about them would fail. So each transaction names its writer,
and the writer takes back its last one where files are missing. What it loaded is loaded again.
"""

import logging

import duckdb

from ingero.errors import StoreError
from ingero.storage.events.lake.catalogue import Catalogue
from ingero.storage.events.lake.connection import NAME
from ingero.storage.events.migrate import literal

log = logging.getLogger(__name__)


def commit_as(catalogue: Catalogue) -> str:
    """Return the statement that puts the writer's name on the transaction that is open."""
    return f"CALL {NAME}.set_commit_message({literal(catalogue.session)}, '')"


def undo_unheard(catalogue: Catalogue, connection: duckdb.DuckDBPyConnection, data: str) -> None:
    """Take back the writer's last commit if files that it added to `data` are missing.

    Call it when PostgreSQL does nothing for this writer any more. Raises StoreError where older
    files are missing as well: then the data is somewhere else, and nothing may be taken back.
    """
    snapshot, files = catalogue.last_commit()
    missing = next((each for each in files if not _exists(connection, data, each)), None)
    if missing is None:
        return
    older = catalogue.file_before(snapshot)
    if older is not None and not _exists(connection, data, older):
        raise StoreError(f"the files of the lake are not in {data}; check that it is mounted")
    log.warning("commit_undone snapshot=%d missing=%r", snapshot, missing)
    catalogue.undo(snapshot)


def _exists(connection: duckdb.DuckDBPyConnection, data: str, file: str) -> bool:
    # object storage is asked only where there is a wildcard
    pattern = literal(f"{data}{file.removesuffix('.parquet')}*")
    return connection.execute(f"SELECT count(*) FROM glob({pattern})").fetchall() != [(0,)]
