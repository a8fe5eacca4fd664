"""User SQL: what must be refused before it runs, and what analysts must be able to write (F093, F122, F123)."""

import contextlib
from collections.abc import Iterator

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero.echo.sql_guard import SqlRefused, check_sql

TABLES = ("events", "node_metrics", "nccl_ops")


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(":memory:") as opened:
        opened.execute(
            "CREATE TABLE events (ts TIMESTAMP, cluster_id VARCHAR, node_id VARCHAR, value_double DOUBLE, attrs JSON);"
            "CREATE TABLE node_metrics (node_id VARCHAR); CREATE TABLE nccl_ops (rank INT);"
            "CREATE TABLE audit_log (x INT);"
            "INSERT INTO events VALUES (now()::TIMESTAMP, 'a', 'n1', 0.3, '{\"x\": 1}')"
        )
        yield opened


REFUSED = [
    # V10b
    "DELETE FROM events",
    "SELECT 1; SELECT 2",
    "WITH x AS (DELETE\tFROM events RETURNING *) SELECT 1",
    "SELECT zeroblob(1073741824)",
    "ATTACH 'x' AS y",
    "COPY events TO 'f'",
    "SELECT * FROM read_csv('f')",
    "INSTALL httpfs",
    "",
    # files
    "SELECT * FROM 'x.csv'",
    'SELECT * FROM "/etc/passwd"',
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM read_blob('/etc/passwd')",
    "SELECT * FROM read_parquet(['x'])",
    "SELECT * FROM parquet_scan('x')",
    "SELECT * FROM read_json_auto('x')",
    "SELECT * FROM read_ndjson('x')",
    "SELECT * FROM glob('*')",
    "SELECT * FROM sniff_csv('x')",
    "FROM 'x.parquet'",
    "SELECT (SELECT count(*) FROM read_csv('f'))",
    "SELECT 1 WHERE EXISTS (FROM read_csv('f'))",
    "SELECT * FROM events, LATERAL (SELECT * FROM read_csv('f'))",
    "SELECT * FROM events WHERE node_id IN (SELECT content FROM read_text('x'))",
    # other statements
    "ATTACH ':memory:' AS m",
    "DETACH main",
    "COPY (SELECT 1) TO '/tmp/x'",
    "COPY events FROM '/tmp/x'",
    "EXPORT DATABASE 'x'",
    "IMPORT DATABASE 'x'",
    "INSERT INTO events SELECT * FROM events",
    "UPDATE events SET node_id = ''",
    "TRUNCATE events",
    "DROP TABLE events",
    "ALTER TABLE events ADD COLUMN x INT",
    "CREATE TABLE x AS SELECT 1",
    "CREATE TEMP TABLE x AS SELECT 1",
    "CREATE OR REPLACE VIEW events AS SELECT 1",
    "CREATE MACRO f(x) AS x",
    "CREATE SECRET (TYPE s3)",
    "PRAGMA database_list",
    "PRAGMA table_info('events')",
    "PRAGMA enable_profiling",
    "SET memory_limit='100GB'",
    "SET VARIABLE x = 1",
    "RESET memory_limit",
    "PREPARE p AS SELECT 1",
    "EXECUTE p",
    "DEALLOCATE p",
    "CHECKPOINT",
    "FORCE CHECKPOINT",
    "VACUUM",
    "BEGIN",
    "COMMIT",
    "LOAD httpfs",
    "CALL pragma_version()",
    "USE memory",
    "MERGE INTO events USING events e ON false WHEN MATCHED THEN DELETE",
    "PIVOT events ON node_id USING sum(value_double)",
    "EXPLAIN DELETE FROM events",
    "EXPLAIN ANALYZE INSERT INTO events SELECT * FROM events",
    "SHOW TABLES",
    "SHOW ALL TABLES",
    "SHOW DATABASES",
    # catalogue and other tenants
    "SELECT * FROM audit_log",
    "SELECT * FROM information_schema.tables",
    "SELECT * FROM information_schema.columns",
    "SELECT * FROM pg_catalog.pg_class",
    "SELECT * FROM sqlite_master",
    "SELECT * FROM duckdb_tables",
    "SELECT * FROM duckdb_tables()",
    "SELECT * FROM duckdb_settings()",
    "SELECT * FROM duckdb_secrets()",
    "SELECT * FROM duckdb_views()",
    "SELECT * FROM main.events",
    "SELECT * FROM memory.main.events",
    'SELECT * FROM "main"."events"',
    "DESCRIBE audit_log",
    "SUMMARIZE audit_log",
    "SELECT * FROM (DESCRIBE audit_log)",
    # common table expressions must not hide a real table
    "WITH a AS (SELECT * FROM audit_log), audit_log AS (SELECT 1) SELECT * FROM a",
    "SELECT * FROM (WITH audit_log AS (SELECT 1) SELECT * FROM audit_log) x, audit_log",
    "WITH RECURSIVE audit_log AS (SELECT * FROM audit_log) SELECT * FROM audit_log",
    "WITH RECURSIVE audit_log AS (SELECT * FROM audit_log UNION ALL SELECT 1) SELECT * FROM audit_log",
    # functions that reach out, run SQL, grow or wait
    "SELECT getenv('HOME')",
    "SELECT current_setting('memory_limit')",
    "SELECT * FROM query('SELECT 1')",
    "SELECT * FROM query_table('audit_log')",
    "SELECT json_execute_serialized_sql('{}')",
    "SELECT * FROM json_execute_serialized_sql('{}')",
    "SELECT json_serialize_sql('SELECT 1')",
    "SELECT getvariable('x')",
    "SELECT nextval('s')",
    "SELECT write_log('x')",
    "SELECT pg_sleep(100)",
    "SELECT sleep_ms(100000)",
    "SELECT repeat('x', 1500000000)",
    "SELECT lpad('x', 1500000000, 'y')",
    "SELECT list_resize([1], 1000000000)",
    "SELECT system.main.repeat('x', 10)",
    "SELECT 'x'.repeat(1000000000)",
    "SELECT list_transform([1], x -> repeat('x', 1000000000))",
    "SELECT sum(value_double) FILTER (getenv('x') = '') FROM events",
    "SELECT first_value(getenv('x')) OVER () FROM events",
    "SELECT * FROM events ORDER BY getenv('x')",
    "SELECT * FROM events LIMIT (SELECT length(getenv('x')))",
    "SELECT * REPLACE (getenv('x') AS node_id) FROM events",
    "SELECT COLUMNS(c -> getenv('x') = c) FROM events",
    # disguises
    "/* SELECT */ DELETE FROM events",
    "SELECT 1 /* ; */ ; DROP TABLE events --",
    "SELECT 1;;DROP TABLE events",
    "ＤＥＬＥＴＥ FROM events",
    'SELECT * FROM "audit_log"',
    "SELECT \"getenv\"('HOME')",
    "SELECT GeTeNv('HOME')",
    "EXPLAIN EXPLAIN SELECT 1",
    "SELECT 1\x00; DROP TABLE events",
    "SELECT " + "abs(" * 500 + "1" + ")" * 500,
    "SELECT '" + "x" * 70000 + "'",
]


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
    "SELECT node_id, row_number() OVER (PARTITION BY cluster_id ORDER BY ts) AS r FROM events QUALIFY r = 1",
    "SELECT attrs->>'$.x', attrs->'x', json_extract(attrs, '$.x') FROM events",
    "SELECT list_transform([1, 2], x -> x + 1), [x * 2 FOR x IN [1, 2] IF x > 1], {'a': 1}.a, map {'k': 1}['k']",
    "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 5) SELECT max(n) FROM t",
    "SELECT time_bucket(INTERVAL '1 minute', ts), quantile_cont(value_double, 0.99) FROM events GROUP BY ALL",
    "SELECT median(value_double), mad(value_double), stddev(value_double) FROM events",
    "SELECT * EXCLUDE (attrs) FROM events ORDER BY ALL LIMIT 5",
    "SELECT e.node_id FROM events e ASOF JOIN events f ON e.ts >= f.ts",
    "SELECT count(*) FILTER (value_double > 0.1), arg_min(node_id, value_double) FROM events",
    "SELECT * FROM generate_series(1, 10) g(i), unnest([1, 2]) u(v)",
    "UNPIVOT (SELECT node_id, value_double FROM events) ON value_double INTO NAME k VALUE v",
    "SELECT strftime(ts, '%H'), epoch_ns(ts), ts::DATE, now() - INTERVAL 1 HOUR FROM events",
    "SELECT printf('%.2f', value_double) FROM events",
    "SELECT CASE WHEN value_double < 0.4 THEN 'slow' END, coalesce(node_id, ''), node_id LIKE 'n%' FROM events",
    "SELECT node_id ~ 'n' FROM events",
    "SELECT node_id FROM events UNION ALL BY NAME SELECT node_id FROM node_metrics",
]


@pytest.mark.parametrize("sql", ALLOWED, ids=lambda sql: sql[:60])
def test_analytics_work(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    connection.execute(check_sql(connection, sql, TABLES).text).fetchall()


def test_refusals_say_what_there_is(connection: duckdb.DuckDBPyConnection) -> None:
    with pytest.raises(
        SqlRefused, match="no table 'audit_log'; there are: events, nccl_ops, node_metrics"
    ):
        check_sql(connection, "SELECT * FROM audit_log", TABLES)
    with pytest.raises(SqlRefused, match="PIVOT needs an explicit IN list"):
        check_sql(connection, "PIVOT events ON node_id USING sum(value_double)", TABLES)


@given(st.text(max_size=60))
def test_any_text_is_judged_without_surprise(text: str) -> None:
    with duckdb.connect(":memory:") as connection, contextlib.suppress(SqlRefused):
        check_sql(connection, text, TABLES)
