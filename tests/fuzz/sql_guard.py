"""SQL of a bearer with a scope on a real DuckDB: no row of others, no file, no changed setting."""

import atexit
from contextlib import closing
from functools import cache

from tests.support.fuzzing import folder, worded
from tests.support.sql_grammar import COLUMNS, CTES, FORBIDDEN, READERS, TABLES, TYPES
from tests.support.two_tenants import CANARY, OURS, THEIRS, TwoTenants, two_tenants

from ingero.echo.sql_functions import IN_EXPRESSIONS, IN_FROM
from ingero.echo.store.api import QueryFailed, QueryLimits
from ingero.echo.store.sql import run_user_sql

LIMITS = QueryLimits(seconds=0.5)
_SYNTAX = (
    "SELECT FROM WHERE ( ) , * AND OR NOT AS WITH RECURSIVE UNION ALL EXCEPT JOIN USING ON LATERAL "
    "GROUP BY ORDER LIMIT QUALIFY OVER PARTITION EXISTS IN CASE WHEN THEN ELSE END CAST :: [ ] { } "
    ": . = < > || -> ->> + - ; -- /* */ DESCRIBE SUMMARIZE SHOW EXPLAIN PIVOT UNPIVOT VALUES TABLE "
    "CREATE INSERT INTO COPY TO ATTACH SET PRAGMA CALL LOAD INSTALL EXPORT IMPORT UPDATE DELETE "
    "DROP USE RESET PREPARE EXECUTE ? $1 x y 1 -1 'x' NULL true COLUMNS FILTER EXCLUDE REPLACE "
    "TABLESAMPLE POSITIONAL ASOF DISTINCT HAVING INTERVAL"
).split()
WORDS = (
    *_SYNTAX, *COLUMNS, *TABLES, *TYPES, *(f'"{name}"' for name in CTES), *FORBIDDEN, *READERS,
    "secret.csv", "'secret.csv'", "read_text('secret.csv')", *sorted(IN_FROM),
    *sorted(name for name in IN_EXPRESSIONS if name[0].isalpha())[::9],
)  # fmt: skip


@cache
def _opened() -> TwoTenants:
    (folder() / "secret.csv").write_text(f"{CANARY}-file\n")
    opening = two_tenants(folder())
    opened = opening.__enter__()
    atexit.register(opening.__exit__, None, None, None)
    return opened


def _state(tenants: TwoTenants) -> tuple[object, ...]:
    with closing(tenants.store.cursor()) as cursor:
        settings = cursor.execute("SELECT md5(string_agg(value, '|')) FROM duckdb_settings()")
        return (*settings.fetchall(), *sorted(path.name for path in folder().iterdir()))


def fuzz(data: bytes) -> None:
    """The first byte chooses between a text and a text made of words."""
    if not data:
        return
    sql = worded(data[1:], WORDS) if data[0] % 2 else data[1:].decode("utf-8", "replace")
    if CANARY in sql.lower() or THEIRS in sql.lower():
        return
    tenants = _opened()
    before = _state(tenants)
    with closing(tenants.store.cursor()) as cursor:
        try:
            found = run_user_sql(cursor, sql, [OURS], LIMITS)
            text = f"{found.columns} {found.types} {found.rows}"
        except QueryFailed as error:
            text = str(error)
    assert CANARY not in text, sql
    assert THEIRS not in text, sql
    assert _state(tenants) == before, sql
