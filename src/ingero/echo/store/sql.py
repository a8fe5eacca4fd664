"""User SQL in the store process: checked by the guard and limited to the allowed clusters."""

from collections.abc import Collection, Sequence
from typing import Final

import duckdb

from ingero.echo.sql_guard import CheckedSql, SqlRefused, check_sql
from ingero.echo.store.api import QueryFailed, QueryLimits, QueryResult
from ingero.echo.store.query import explained, run_query
from ingero.storage.events.schema import READABLE

TABLES: Final = tuple(table.name for table in READABLE)
# the same value; DuckDB cannot know that and therefore copies it
_COPIED: Final = {
    table.name: ", ".join(
        f"coalesce(CASE WHEN random() < 0 THEN {column} END, {column}) AS {column}"
        for column in (column[0] for column in table.columns)
    )
    for table in READABLE
}
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
        _refuse_with_scope(checked)
        barrier = frozenset() if checked.is_plain else checked.tables
        hide_other_clusters(cursor, clusters, barrier)
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


def _refuse_with_scope(checked: CheckedSql) -> None:
    """Refuse what tells how many rows of others there are."""
    if checked.is_explain:
        what = "EXPLAIN shows statistics of all clusters; it"
    elif checked.is_sampled:  # by blocks of stored rows, whoever owns them
        what = "a sample depends on the rows of all clusters (write WHERE random() < 0.1); it"
    else:
        return
    raise QueryFailed("sql_refused", f"{what} needs a token without a cluster scope")


def hide_other_clusters(
    cursor: duckdb.DuckDBPyConnection, clusters: Sequence[str], first: Collection[str]
) -> None:
    """Make every readable table show only the rows of `clusters` in this cursor.

    In the tables of `first`, DuckDB hides rows before it computes anything else. It does not move
    conditions below a LIMIT, which therefore is a barrier; rows are then read by one thread and in
    full. Texts are stored with dictionaries, and DuckDB runs many functions on a whole dictionary,
    values of hidden rows included; a copy of a column has none.
    """
    row = cursor.execute("SELECT current_database()").fetchone()
    database = str(row[0] if row else "").replace('"', '""')
    wanted = ", ".join("'" + cluster.replace("'", "''") + "'" for cluster in clusters) or "NULL"
    for table in TABLES:
        source = f'"{database}".main.{table}'
        columns, barrier = "*", ""
        if table in first:
            columns, barrier = f"* REPLACE ({_COPIED[table]})", f" LIMIT {_EVERY_ROW}"
        # names come from the schema and the operator's file and are quoted; views cannot bind
        # values
        cursor.execute(
            f"CREATE TEMP VIEW {table} AS SELECT {columns} FROM {source} "
            f"WHERE {source}.cluster_id IN ({wanted}){barrier}"
        )
