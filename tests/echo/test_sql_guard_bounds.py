"""The guard of Echo's SQL: what it says, its exact limits, and constructs of the future."""

import re
from collections.abc import Iterator
from typing import Any

import duckdb
import pytest

from ingero.echo.sql_guard import MAX_SQL_BYTES, SqlRefused, check_sql
from ingero.echo.sql_tree import MAX_DEPTH, Kind, Reference, references

TABLES = ("events",)
ONLY = "only one SELECT or EXPLAIN SELECT is allowed"


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(":memory:") as opened:
        opened.execute("CREATE TABLE events (a INT); CREATE TABLE audit_log (a INT)")
        yield opened


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("INSERT INTO events VALUES (1)", f"INSERT is refused: {ONLY}"),
        ("SELECT 1; SELECT 2",
         f"2 statements; send one at a time: {ONLY} (PIVOT needs an explicit IN list)"),
        ("", "the statement is empty"),
        ("-- nothing", "the statement is empty"),
        ("EXPLAIN (FORMAT json) SELECT 1",
         'syntax error at or near "FORMAT": only one SELECT or EXPLAIN SELECT is allowed'),
        ("SELECT 1 +\n\n FROM", 'Parser Error: syntax error at or near "FROM"'),
        ("SELECT '\ud800'",
         "the statement contains half of a surrogate pair, which is no character"),
        ("SELECT '\0'", "the statement contains a NUL byte"),
        ("SELECT * FROM memory.main.events", "write events without the prefix 'memory.main'"),
        ("SHOW TABLES", "SHOW tables is refused; DESCRIBE works on: events"),
        ("SELECT * FROM unnest((SELECT list(a) FROM audit_log))",
         "no table 'audit_log'; the tables are: events"),
        ("SELECT * FROM generate_series(1, (SELECT max(a) FROM audit_log))",
         "no table 'audit_log'; the tables are: events"),
        ("SELECT * FROM generate_series(1, getenv('HOME')::INT)",
         "function 'getenv' is not allowed here"),
        ("SELECT * FROM main.range(3)", "function 'range' is not allowed in FROM; allowed: "
         "generate_series, json_each, json_tree, range, unnest"),
        ("SELECT * FROM system.main.range(3)", "function 'range' is not allowed in FROM; allowed: "
         "generate_series, json_each, json_tree, range, unnest"),
        ("SELECT system.main.abs(1)", "function 'abs' is not allowed here"),
        ("SELECT other.abs(1)", "function 'abs' is not allowed here"),
        ("SELECT " + "abs(" * 120 + "1" + ")" * 120, "the statement is nested too deeply"),
        ("SELECT " + "+".join(["1"] * 400), "the statement is nested too deeply"),
        ("SELECT " + "[" * 3000 + "]" * 3000, None),
    ],
    ids=lambda text: str(text)[:40].encode("ascii", "replace").decode(),
)  # fmt: skip
def test_refusals_say_why_in_one_line(
    connection: duckdb.DuckDBPyConnection, sql: str, said: str | None
) -> None:
    with pytest.raises(SqlRefused) as refused:
        check_sql(connection, sql, TABLES)
    assert "\n" not in str(refused.value)
    assert said is None or str(refused.value) == said


@pytest.mark.parametrize(
    ("sql", "checked"),
    [
        ("SELECT 1", ("SELECT 1", False)),
        ("explain SELECT 1", ("EXPLAIN  SELECT 1", True)),
        ("EXPLAIN ANALYZE SELECT 1", ("EXPLAIN ANALYZE  SELECT 1", True)),
        ("/* a\nb */ explain analyze SELECT 1", ("EXPLAIN ANALYZE  SELECT 1", True)),
    ],
)
def test_exactly_the_checked_text_may_run(
    connection: duckdb.DuckDBPyConnection, sql: str, checked: tuple[str, bool]
) -> None:
    found = check_sql(connection, sql, TABLES)
    assert (found.text, found.is_explain) == checked
    connection.execute(found.text).fetchall()


def test_a_statement_has_at_most_64_kib(connection: duckdb.DuckDBPyConnection) -> None:
    assert MAX_SQL_BYTES == 65_536
    start = "SELECT '"
    fits = start + "ä" * ((MAX_SQL_BYTES - len(start) - 2) // 2) + "x'"
    assert len(fits.encode()) == MAX_SQL_BYTES
    assert check_sql(connection, fits, TABLES).is_explain is False
    with pytest.raises(SqlRefused, match="longer than 65536 bytes"):
        check_sql(connection, fits + " ", TABLES)


def nested(levels: int, kind: type) -> Any:
    """Return a tree of so many levels, with a table at the bottom."""
    tree: Any = {"type": "BASE_TABLE", "catalog_name": "", "schema_name": "", "table_name": "t"}
    for _ in range(levels):
        tree = [tree] if kind is list else {"child": tree}
    return tree


@pytest.mark.parametrize("kind", [list, dict])
def test_a_tree_has_at_most_200_levels(kind: type) -> None:
    assert MAX_DEPTH == 200
    assert list(references(nested(MAX_DEPTH - 1, kind))) == [Reference(Kind.TABLE, "t")]
    with pytest.raises(RecursionError):
        list(references(nested(MAX_DEPTH + 1, kind)))


def test_the_levels_of_a_cte_count_too() -> None:
    entry = {"key": "x", "value": nested(MAX_DEPTH - 2, list)}
    tree = {"cte_map": {"map": [entry]}}
    assert list(references(tree)) == [Reference(Kind.TABLE, "t")]
    entry["value"] = nested(MAX_DEPTH, list)
    with pytest.raises(RecursionError):
        list(references(tree))


@pytest.mark.parametrize(
    ("node", "name"),
    [
        ({"type": "FUTURE_SOURCE"}, "FUTURE_SOURCE"),
        ({"class": "FUTURE_EXPRESSION", "type": "COLUMN_REF"}, "FUTURE_EXPRESSION"),
        ({"type": "TABLE_FUNCTION", "function": {"class": "SUBQUERY"}}, "SUBQUERY"),
        ({"left": {"inside": [{"type": "FUTURE_SOURCE"}]}}, "FUTURE_SOURCE"),
    ],
)
def test_what_a_later_duckdb_adds_is_reported_as_unknown(node: dict[str, Any], name: str) -> None:
    assert list(references(node)) == [Reference(Kind.UNKNOWN, name)]


def test_a_recursive_name_is_known_inside_its_recursion_only(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    recursion = "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 3) "
    assert check_sql(connection, recursion + "SELECT max(n) FROM r", TABLES)
    with pytest.raises(SqlRefused, match=re.escape("no table 'r'")):
        check_sql(connection, "WITH x AS (SELECT * FROM r), r AS (SELECT 1) FROM x", TABLES)
