"""The tables of a lake: those of the file, with partitions by day and small tables inlined."""

from collections.abc import Mapping, Sequence
from typing import Final

import duckdb

from ingero.errors import StoreError
from ingero.storage.events.lake.connection import NAME, describe_failure
from ingero.storage.events.migrate import ARRIVALS_STEP, create_statements, migrate
from ingero.storage.events.schema import VIEWS

_PARTITIONED: Final = ("events", "nccl_ops")
# Tables whose few rows per load go into the catalogue instead of a file. Partitioned tables must
# not: when their rows are flushed, readers in other processes look for a table that is gone.
_INLINED: Final = ("meta", "applied_requests")
_INLINED_ROWS: Final = 1000


def _creation() -> list[str]:
    views = tuple(f"COMMENT ON COLUMN {view.name}." for view in VIEWS)  # which lakes do not have
    return [
        *(statement for statement in create_statements() if not statement.startswith(views)),
        *(
            f"ALTER TABLE {table} SET PARTITIONED BY "
            "(year(received_ts), month(received_ts), day(received_ts))"
            for table in _PARTITIONED
        ),
    ]


# A lake is created in one step, as single ones would take a second each. Later versions add theirs.
_MIGRATIONS: Final[Mapping[int, Sequence[str]]] = {7: _creation(), 8: ARRIVALS_STEP}


def migrate_lake(connection: duckdb.DuckDBPyConnection) -> None:
    """Create the tables of a new lake, all or none; raise StoreError."""
    try:
        migrate(connection, _MIGRATIONS)
        # not part of the creation, as only tables that are there can have options
        for table in _INLINED:
            connection.execute(
                f"CALL {NAME}.set_option('data_inlining_row_limit', {_INLINED_ROWS}, "
                f"table_name => '{table}')"
            )
    except duckdb.Error as error:
        raise StoreError(
            f"cannot create the tables of the lake: {describe_failure(error)}"
        ) from None
