"""User SQL: statements that are refused before they run, and statements that must work.

F093, F122 and F123.
"""

import contextlib
from collections.abc import Iterator

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.hostile_sql import REFUSED

from ingero.echo.sql_guard import SqlRefused, check_sql

TABLES = ("events", "node_metrics", "nccl_ops")


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(":memory:") as opened:
        opened.execute(
            "CREATE TABLE events (ts TIMESTAMP, cluster_id VARCHAR, node_id VARCHAR, value_double "
            "DOUBLE, attrs JSON);CREATE TABLE node_metrics (node_id VARCHAR); CREATE TABLE "
            "nccl_ops (rank INT);CREATE TABLE audit_log (x INT);INSERT INTO events VALUES "
            "(now()::TIMESTAMP, 'a', 'n1', 0.3, '{\"x\": 1}')"
        )
        yield opened


@pytest.mark.parametrize("sql", REFUSED, ids=lambda sql: sql[:60])
def test_refused_before_it_runs(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    with pytest.raises(SqlRefused):
        check_sql(connection, sql, TABLES)


ALLOWED = [
    "SELECT 1",
    "WITH x AS (SELECT 1) SELECT * FROM x;",
    "EXPLAIN SELECT 1",
    "EXPLAIN ANALYZE SELECT count(*) FROM events",
    "SELECT node_id FROM events WHERE value_double < 0.4 -- planted",
    "/* why */ SELECT 1 ; -- done",
    "SELECT 'DELETE FROM events', replace(node_id, 'a', 'b') FROM events",
    "FROM events SELECT node_id",
    "VALUES (1)",
    "DESCRIBE events",
    "DESCRIBE SELECT * FROM events",
    "SUMMARIZE events",
    "PIVOT events ON node_id IN ('n1', 'n2') USING avg(value_double)",
    "SELECT * FROM events PIVOT (sum(value_double) FOR node_id IN ('n1'))",
    "SELECT node_id, row_number() OVER (PARTITION BY cluster_id ORDER BY ts) AS r "
    "FROM events QUALIFY r = 1",
    "SELECT attrs->>'$.x', attrs->'x', json_extract(attrs, '$.x') FROM events",
    "SELECT list_transform([1, 2], x -> x + 1), [x * 2 FOR x IN [1, 2] IF x > 1], {'a': 1}.a, map "
    "{'k': 1}['k']",
    "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 5) SELECT max(n) "
    "FROM t",
    "SELECT time_bucket(INTERVAL '1 minute', ts), quantile_cont(value_double, 0.99) FROM events "
    "GROUP BY ALL",
    "SELECT median(value_double), mad(value_double), stddev(value_double) FROM events",
    "SELECT * EXCLUDE (attrs) FROM events ORDER BY ALL LIMIT 5",
    "SELECT e.node_id FROM events e ASOF JOIN events f ON e.ts >= f.ts",
    "SELECT count(*) FILTER (value_double > 0.1), arg_min(node_id, value_double) FROM events",
    "SELECT * FROM generate_series(1, 10) g(i), unnest([1, 2]) u(v)",
    "UNPIVOT (SELECT node_id, value_double FROM events) ON value_double INTO NAME k VALUE v",
    "SELECT strftime(ts, '%H'), epoch_ns(ts), ts::DATE, now() - INTERVAL 1 HOUR FROM events",
    "SELECT printf('%.2f', value_double) FROM events",
    "SELECT CASE WHEN value_double < 0.4 THEN 'slow' END, coalesce(node_id, ''), node_id LIKE 'n%' "
    "FROM events",
    "SELECT node_id ~ 'n' FROM events",
    "SELECT histogram(node_id), unnest([1, 2]), formatReadableSize(1) FROM events",
    "SELECT user FROM (SELECT 'ada' AS user)",
    "WITH É_x AS (SELECT 1) SELECT * FROM É_X",
    "SELECT x.key FROM events, json_each(attrs) AS x ORDER BY 1 DESC, count(*) OVER () ASC",
    "SELECT DISTINCT ON (node_id) node_id::VARCHAR COLLATE nocase FROM events TABLESAMPLE 50% "
    "ORDER BY node_id LIMIT 10%",
    "SELECT {'a': 1}::STRUCT(a INT), [1]::INT[1], 1::DECIMAL(4, 2), TRY_CAST('x' AS ENUM('x'))",
    "SELECT [x + 1 FOR x IN [1]], list_transform([1, 2], lambda x: x + 1), COLUMNS('node.*') "
    "FROM events",
    "SELECT node_id, GROUPING(node_id) FROM events GROUP BY CUBE (node_id) ORDER BY #1",
    "SELECT node_id FROM events UNION ALL BY NAME SELECT node_id FROM node_metrics",
]


@pytest.mark.parametrize("sql", ALLOWED, ids=lambda sql: sql[:60])
def test_analytics_work(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    connection.execute(check_sql(connection, sql, TABLES).text).fetchall()


def test_refusals_say_what_there_is(connection: duckdb.DuckDBPyConnection) -> None:
    with pytest.raises(
        SqlRefused, match="no table 'audit_log'; the tables are: events, nccl_ops, node_metrics"
    ):
        check_sql(connection, "SELECT * FROM audit_log", TABLES)
    with pytest.raises(SqlRefused, match="PIVOT needs an explicit IN list"):
        check_sql(connection, "PIVOT events ON node_id USING sum(value_double)", TABLES)


@given(st.text(max_size=60))
def test_any_text_is_judged_without_surprise(text: str) -> None:
    with duckdb.connect(":memory:") as connection, contextlib.suppress(SqlRefused):
        check_sql(connection, text, TABLES)


def test_what_a_statement_reads_is_known() -> None:
    with contextlib.closing(duckdb.connect()) as own:
        checked = check_sql(own, "WITH e AS (FROM Events) SELECT abs(seq) FROM e, nccl_ops", TABLES)
        assert checked.tables == {"events", "nccl_ops"}
        assert not checked.is_sampled
        assert check_sql(own, "FROM events TABLESAMPLE 10%", TABLES).is_sampled
