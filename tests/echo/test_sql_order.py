"""A scoped statement ends as if the rows of other clusters did not exist, errors included.

Otherwise a condition that fails for chosen rows of others would tell about them bit by bit. The
other tenant has the same tables full of values that functions fail for.
"""

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import duckdb
import pytest
from hypothesis import given, settings
from tests.support.sql_grammar import statements
from tests.support.stores import examples, open_test_store, some, writing
from tests.support.two_tenants import OURS, THEIRS, TwoTenants, keep_only_ours

from ingero.echo import sql_order
from ingero.echo.sql_guard import check_sql
from ingero.echo.store import sql
from ingero.storage.events.store import EventStore

ROWS = 130_000  # more than DuckDB keeps in one group, so that it reorders conditions
SCOPES = {
    "one": [OURS],
    "four": [OURS, "b", "c", "d"],
    "many": [OURS, *(f"c{number}" for number in range(20))],
}
_SEED = f"""
INSERT INTO events (seq, idx, ts, received_ts, cluster_id, node_id, metric_name, kind, value_double,
  value_int, cumulative_value, attrs)
SELECT range, 0, if(own, TIMESTAMP '2026-01-01', bad_ts), TIMESTAMP '2026-01-01',
  if(own, '{OURS}', '{THEIRS}'), if(own, (range % 10)::VARCHAR, 'canary' || range),
  if(own, 'm', '('), 'gauge', if(own, 65, bad_double), if(own, 65, bad_int), 65,
  if(own, '1', '{{"v":"canary"}}')
FROM (SELECT range, range % 3 = 0 AS own,
  [TIMESTAMP 'infinity', TIMESTAMP '-infinity', TIMESTAMP '2262-01-01',
   TIMESTAMP '1678-01-01'][1 + range % 4] AS bad_ts,
  [1e308, -1e308, 'nan'::DOUBLE, 'infinity'::DOUBLE, '-infinity'::DOUBLE, -1, 0][1 + range % 7]
  AS bad_double, [9223372036854775807, -9223372036854775807 - 1, -1, 0][1 + range % 4] AS bad_int
  FROM range({ROWS}));
INSERT INTO nccl_ops (seq, idx, cluster_id, node_id, op_type, bytes)
  SELECT seq, 0, cluster_id, node_id, node_id, value_int FROM events WHERE seq < 3000;
"""
OWN_ROW = """CREATE TABLE events AS SELECT '7' AS node_id, 'm' AS metric_name, 65::DOUBLE AS
value_double, 65::BIGINT AS value_int, TIMESTAMP_NS '2026-01-01' AS ts, 3::BIGINT AS seq"""
# Each fails for a row of the other tenant only, or for none.
ORACLES = (
    "chr(if(node_id LIKE 'canary%', -5, 65)) = 'A'",
    "chr(if(cluster_id = 'theirs', -5, 65)) IS NOT NULL",
    "string_split_regex('a', metric_name) IS NOT NULL",
    "to_timestamp(value_double) IS NOT NULL",
    "epoch_ms(value_int) > TIMESTAMP '1970-01-01'",
    "like_escape('a', 'a', if(value_double <> 65, 'zz', 'z')) IS NOT NULL",
    "regexp_replace('a', if(metric_name = '(', '(', 'a'), 'b') = 'b' AND metric_name = 'm'",
    "seq >= 0 AND to_base(greatest(value_int, 1) - if(node_id < 'b', 0, 9), 2) <> ''",
    "substring('abc', 1, value_int) <> ''",
    "node_id::INTEGER >= 0",
    "node_id > 5 OR node_id <= 5",
    "attrs",
    "attrs > 0",
    "json(metric_name) IS NULL OR metric_name = 'm'",
    "value_int + 9223372036854775700 > 0",
    "CASE WHEN node_id > 'b' THEN 'zz'::INTEGER = 1 ELSE true END",
    "CASE WHEN node_id > 'b' THEN chr(-5) = 'x' ELSE true END",
    "seq IN (SELECT seq FROM events WHERE chr(if(node_id > 'b', -5, 65)) = 'A')",
    "NOT EXISTS (FROM events i WHERE i.seq = events.seq AND chr(i.value_int::INTEGER) <> 'A')",
)
SHAPES = (
    "SELECT count(*) FROM events WHERE {}",
    "SELECT count(*) FROM (SELECT ({}) AS x, events.seq FROM events) WHERE x",
    "SELECT ({}) AS x, count(*) FROM events GROUP BY x HAVING x",
    "SELECT count(*) FROM (SELECT DISTINCT ({}) AS x, seq FROM events) WHERE x",
)
JOINED = (
    "SELECT count(*) FROM events JOIN nccl_ops USING (seq) WHERE chr(events.value_int::INT) = 'A'",
    "SELECT count(*) FROM events e, nccl_ops o WHERE chr(if(o.op_type > 'b', -5, 65)) = chr(e.seq)",
    "SELECT count(*) FROM events e ASOF JOIN nccl_ops o ON e.seq >= o.seq "
    "WHERE chr(if(o.op_type > 'b', -5, 65)) = 'A'",
    "WITH t AS (SELECT chr(if(node_id > 'b', -5, 65)) AS c FROM events) "
    "SELECT count(*) FROM t WHERE c = 'A'",
    "FROM events SELECT count(*) FILTER (chr(if(node_id > 'b', -5, 65)) = 'A')",
    "SELECT max(chr(if(node_id > 'b', -5, 65))) FROM events",
    "SELECT count(*) FROM counter_rates WHERE chr(if(node_id > 'b', -5, 65)) = 'A'",
    "SELECT count(*) FROM events WHERE chr(if(node_id > 'b', -5, 65)) = 'A' "
    "UNION ALL SELECT count(*) FROM nccl_ops WHERE chr(if(op_type > 'b', -5, 65)) = 'A'",
)


def opened(path: Path, *, alone: bool) -> EventStore:
    """Return a store with both tenants, or with ours alone."""
    store = open_test_store(path, 1 << 30, 2)
    with writing(store) as connection:
        connection.execute(_SEED)
    if alone:
        keep_only_ours(store, ("events", "nccl_ops"))
    store.checkpoint()
    return store


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TwoTenants, TwoTenants]]:
    """Our rows among those of others, and the same rows alone."""
    folder = tmp_path_factory.mktemp("order")
    with ExitStack() as stack:
        stores = [opened(folder / f"{alone}.db", alone=alone) for alone in (False, True)]
        for store in stores:
            stack.callback(store.close)
        yield TwoTenants(stores[0], folder), TwoTenants(stores[1], folder)


def test_the_oracle_works_without_the_barrier(
    both: tuple[TwoTenants, TwoTenants], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data shows the problem: DuckDB runs such conditions on the rows of others."""
    hide = sql.hide_other_clusters
    monkeypatch.setattr(
        sql,
        "hide_other_clusters",
        lambda cursor, clusters, first: hide(cursor, clusters, ()),
    )
    for scope in SCOPES.values():
        asked = [SHAPES[0].format(oracle) for oracle in ORACLES[:9]]
        assert "bad_sql" in {both[0].ask(statement, scope)[0] for statement in asked}


@pytest.mark.parametrize("scope", SCOPES.values(), ids=SCOPES.keys())
def test_a_statement_ends_as_if_others_did_not_exist(
    both: tuple[TwoTenants, TwoTenants], scope: list[str]
) -> None:
    among, alone = both
    asked = [shape.format(oracle) for shape in SHAPES for oracle in ORACLES] + list(JOINED)
    for statement in asked:
        assert among.ask(statement, scope) == alone.ask(statement, scope), statement


@settings(max_examples=examples(60))
@given(statement=statements())
def test_any_statement_ends_in_the_same_way(
    both: tuple[TwoTenants, TwoTenants], statement: str
) -> None:
    among, alone = both
    codes = {among.ask(statement, SCOPES["four"])[0], alone.ask(statement, SCOPES["four"])[0]}
    assert len(codes - {"timeout"}) <= 1


def test_no_function_of_plain_statements_tells_about_others(
    both: tuple[TwoTenants, TwoTenants],
) -> None:
    """Each with every column and a few constants that fit; these statements have no barrier."""
    tried = set()
    names = some(sorted(sql_order._FUNCTIONS))
    with closing(duckdb.connect()) as own:
        own.execute(OWN_ROW)
        for name in names:
            sound = [call for call in calls(name) if is_sound(own, call)]
            if sound:
                tried.add(name)
                conditions = " AND ".join(f"(({call}) IS NULL OR seq >= 0)" for call in sound)
                statement = f"SELECT count(*) FROM events WHERE {conditions}"
                assert check_sql(own, statement, sql.TABLES).is_plain
                assert both[0].ask(statement, [OURS])[0] == "ok", statement
    without_columns = {"current_date", "get_current_timestamp", "now", "today"}
    assert set(names) - tried <= without_columns


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM events POSITIONAL JOIN nccl_ops LIMIT 1",
        "SELECT * FROM events e, LATERAL (SELECT * FROM nccl_ops o WHERE o.seq = e.seq) LIMIT 1",
        "FROM (PIVOT events ON kind IN ('gauge') USING count(*) GROUP BY cluster_id)",
        "SELECT COLUMNS(c -> c LIKE '%id') FROM events LIMIT 1",
        "SUMMARIZE events",
        "SELECT array_agg(e) FROM (FROM events LIMIT 3) e",
    ],
)
def test_unusual_statements_show_own_rows_only(
    both: tuple[TwoTenants, TwoTenants], statement: str
) -> None:
    code, text = both[0].ask(statement, [OURS])
    assert code == "ok", text
    assert "canary" not in text
    assert THEIRS not in text


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT reduce(list(range), (a, b) -> a + b) FROM range(9)",
        "SELECT list_reduce([1, 2], (a, b) -> a + b)",
        "SELECT len(range(100000000))",
        "SELECT len(generate_series(1, 100000000))",
        "SELECT bitstring('1', 2000000000)",
    ],
)
def test_work_that_cannot_be_interrupted_is_refused(
    both: tuple[TwoTenants, TwoTenants], statement: str
) -> None:
    """Each of these ran for most of a minute with a limit of three seconds."""
    assert both[0].ask(statement, None)[0] == "sql_refused"


def calls(name: str) -> Iterator[str]:
    """Yield calls of a function or operator with one or two arguments, of which one is a column."""
    values = ("node_id", "metric_name", "value_double", "value_int", "ts", "seq")
    constants = ("'hour'", "'a%'", "2", "9223372036854775807", "INTERVAL 1 HOUR")
    for count in (1, 2):
        for first, *rest in itertools.product((*values, *constants), repeat=count):
            if first in values or set(rest) & set(values):
                is_operator = not name.isidentifier() and rest
                arguments = ", ".join((first, *rest))
                yield f"{first} {name} {rest[0]}" if is_operator else f"{name}({arguments})"


def is_sound(database: duckdb.DuckDBPyConnection, call: str) -> bool:
    """Return whether a call binds, and does not fail for our own rows."""
    try:
        database.execute(f"SELECT count({call}) FROM events").fetchall()
    except duckdb.Error:
        return False
    return True


PLAIN = {
    "a comparison": "SELECT count(*) FROM events WHERE seq > 3 AND node_id = 'a'",
    "a join": "SELECT count(*) FROM events e JOIN nccl_ops o ON e.seq = o.seq",
    "two tables": "SELECT count(*) FROM events, nccl_ops",
    "a function for a path": "SELECT json_extract_string(attrs, '$.op') FROM events",
    "a natural join": "SELECT count(*) FROM events NATURAL JOIN nccl_ops",
    "a literal with its type": "SELECT seq FROM events WHERE ts > TIMESTAMP '2026-01-01'",
    "an order": "SELECT node_id FROM events ORDER BY seq LIMIT 3",
    "orders": "SELECT node_id FROM events ORDER BY seq DESC NULLS LAST, node_id ASC",
    "distinct rows": "SELECT DISTINCT node_id FROM events",
    "an alias": "SELECT seq + 1 AS more FROM events ORDER BY more",
    "a JSON column that is shown": "SELECT attrs FROM events WHERE seq = 1",
    "all columns": "SELECT * FROM events WHERE seq = 1",
    "a path in a JSON column": "SELECT attrs->>'$.op' FROM events WHERE seq = 1",
    "a case": "SELECT CASE WHEN seq IN (1, 2) THEN 1 ELSE 0 END FROM events",
}
NOT_PLAIN = {
    "renamed columns": "SELECT seq FROM events AS e(seq) WHERE seq = 1",
    "a sample": "SELECT count(*) FROM events TABLESAMPLE 10 ROWS",
    "a table in parentheses": "SELECT seq FROM (SELECT seq FROM events)",
    "a sample of the result": "SELECT count(*) FROM events USING SAMPLE 50%",
    "a path in a computed value": "SELECT seq FROM events WHERE lower(attrs)->>'$.op' = 'x'",
    "an unknown column": "SELECT seq FROM events WHERE unknown = 'x'",
    "replaced columns": "SELECT * REPLACE (seq + 1 AS seq) FROM events",
    "chosen columns": "SELECT COLUMNS('s.*') FROM events",
    "a path in a text": "SELECT seq FROM events WHERE node_id->>'$.op' = 'x'",
    "a path that is a column": "SELECT seq FROM events WHERE attrs->>node_id = 'x'",
    "a JSON column that is compared": "SELECT seq FROM events WHERE attrs = '{}'",
    "a JSON column under another name": "SELECT attrs AS a FROM events WHERE a = '{}'",
    "a function that can fail": "SELECT count(*) FROM events WHERE sqrt(seq) > 1",
    "a part of a text": "SELECT count(*) FROM events WHERE node_id[1] = 'a'",
    "a cast": "SELECT count(*) FROM events WHERE CAST(node_id AS INTEGER) = 1",
    "a subquery": "SELECT seq FROM events WHERE seq = (SELECT max(seq) FROM nccl_ops)",
    "a common table": "WITH e AS (SELECT * FROM events) SELECT count(*) FROM e",
    "an as-of join": "SELECT e.seq FROM events e ASOF JOIN nccl_ops o ON e.seq >= o.seq",
    "two statements in one": "SELECT seq FROM events UNION SELECT seq FROM nccl_ops",
}


@pytest.mark.parametrize("statement", PLAIN.values(), ids=PLAIN.keys())
def test_plain_statements_keep_their_speed(statement: str) -> None:
    with closing(duckdb.connect()) as own:
        assert check_sql(own, statement, sql.TABLES).is_plain


@pytest.mark.parametrize("statement", NOT_PLAIN.values(), ids=NOT_PLAIN.keys())
def test_other_statements_run_behind_the_barrier(statement: str) -> None:
    with closing(duckdb.connect()) as own:
        assert not check_sql(own, statement, sql.TABLES).is_plain
