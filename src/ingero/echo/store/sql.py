"""User SQL in the store process: checked by the guard and limited to the allowed clusters."""

from collections.abc import Sequence
from typing import Final

import duckdb

from ingero.echo.sql_guard import SqlRefused, check_sql
from ingero.echo.store.api import QueryFailed, QueryLimits, QueryResult
from ingero.echo.store.query import explained, run_query
from ingero.storage.events.schema import READABLE

TABLES: Final = tuple(table.name for table in READABLE)
_EVERY_ROW: Final = 1 << 62
_ABOUT_THE_TEXT: Final = ("Binder Error", "Catalog Error", "Parser Error")


def run_user_sql(
    cursor: duckdb.DuckDBPyConnection, sql: str, clusters: Sequence[str] | None, limits: QueryLimits
) -> QueryResult:
    """Run one SELECT over the readable tables, limited to `clusters` unless that is None.

    The cursor must be new: views that hide the rows of other clusters are created in it, under the
    names of the tables. The guard refuses qualified names, so a statement cannot bypass the views.
    Raises QueryFailed.
    """
    try:
        checked = check_sql(cursor, sql, TABLES)
    except SqlRefused as error:
        raise QueryFailed("sql_refused", str(error)) from None
    except duckdb.Error as error:
        raise explained(error, limits) from None
    if clusters is not None:
        if checked.is_explain:
            raise QueryFailed(
                "sql_refused",
                "EXPLAIN shows statistics of all clusters; it needs a token without a cluster "
                "scope",
            )
        hide_other_clusters(cursor, clusters, first=not checked.is_plain)
    try:
        return run_query(cursor, checked.text, [], limits)
    except QueryFailed as error:
        if clusters is None or error.code != "bad_sql" or str(error).startswith(_ABOUT_THE_TEXT):
            raise
        # the rows of others are hidden by now; if they ever were not, their values stay unsaid
        kind = str(error).partition(":")[0]
        raise QueryFailed(
            "bad_sql", f"{kind}: a value does not fit; TRY_CAST returns NULL for such values"
        ) from None


def hide_other_clusters(
    cursor: duckdb.DuckDBPyConnection, clusters: Sequence[str], *, first: bool
) -> None:
    """Make every readable table show only the rows of `clusters` in this cursor.

    With `first`, DuckDB hides rows before it computes anything else. It does not move conditions
    below a LIMIT, which therefore is a barrier; rows are then read by one thread and in full.
    """
    barrier = f" LIMIT {_EVERY_ROW}" if first else ""
    row = cursor.execute("SELECT current_database()").fetchone()
    database = str(row[0] if row else "").replace('"', '""')
    wanted = ", ".join("'" + cluster.replace("'", "''") + "'" for cluster in clusters) or "NULL"
    for table in TABLES:
        source = f'"{database}".main.{table}'
        # names come from the schema and the operator's file and are quoted; views cannot bind
        # values
        cursor.execute(
            f"CREATE TEMP VIEW {table} AS SELECT * FROM {source} WHERE cluster_id IN ({wanted})"
            f"{barrier}"
        )
