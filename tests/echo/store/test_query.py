"""The size of an answer: no value makes it larger than its limit."""

import dataclasses
from collections.abc import Iterator

import duckdb
import pytest

from ingero.echo.store.api import QueryFailed, QueryLimits
from ingero.echo.store.query import Descriptions, run_query

LIMITS = QueryLimits(rows=1000, size_bytes=100_000, seconds=10)
MANY = "FROM range(30000)"


@pytest.fixture(scope="module")
def cursor() -> Iterator[duckdb.DuckDBPyConnection]:
    connection = duckdb.connect()
    yield connection
    connection.close()


@pytest.mark.parametrize(
    "value",
    [
        f"SELECT list(range) {MANY}",
        f"SELECT list([range]) {MANY}",
        f"SELECT [[list(range)]] {MANY}",
        f"SELECT {{'a': {{'b': list(range)}}}} {MANY}",
        f"SELECT map_from_entries(list((range, range))) {MANY}",
        f"SELECT histogram(range) {MANY}",
        f"SELECT string_agg(range::VARCHAR, '') {MANY}",
        f"SELECT to_json(list(range)) {MANY}",
        f"SELECT encode(string_agg(range::VARCHAR, '')) {MANY}",
        "SELECT bitstring_agg(range, 0, 200000) FROM range(200000)",
        f"SELECT list(range)::INTEGER[30000] {MANY}",
        f"SELECT 1, TIMESTAMP '2026-01-01', list(make_timestamp(range)) {MANY}",
        "SELECT repeat('é', 60000)",
    ],
)
def test_a_value_beyond_the_limit_is_an_error(
    cursor: duckdb.DuckDBPyConnection, value: str
) -> None:
    """A list of three million numbers became an answer of 6 MB, and others of 50 MB."""
    with pytest.raises(QueryFailed, match="a row of the result is larger than 0 MiB") as failed:
        run_query(cursor, value, [], LIMITS)
    assert failed.value.code == "sql_refused"


def test_an_answer_is_cut_before_its_limit(cursor: duckdb.DuckDBPyConnection) -> None:
    large = f"SELECT [0] UNION ALL SELECT list(range) {MANY}"
    cut = run_query(cursor, large, [], LIMITS)
    assert (cut.rows, cut.truncated) == ([[[0]]], True), "what fits is returned"
    found = run_query(cursor, "SELECT repeat('é', 400) AS x, 1 FROM range(900)", [], LIMITS)
    assert found.truncated
    assert len(found.rows) == 100_000 // (800 + 16)
    assert found.columns == ["x", "1"]
    rows = run_query(cursor, "SELECT range FROM range(5000)", [], LIMITS)
    assert (len(rows.rows), rows.truncated, rows.rows[-1]) == (1000, True, [999])


def test_the_number_of_columns_is_limited(cursor: duckdb.DuckDBPyConnection) -> None:
    """DuckDB takes minutes for tens of thousands, in which nothing can interrupt it."""
    values = ["now()", "'x'", "[1]", "1"] * 250
    assert len(run_query(cursor, f"SELECT {', '.join(values)}", [], LIMITS).rows[0]) == 1000
    with pytest.raises(QueryFailed, match="the result has 1001 columns; at most 1000 are allowed"):
        run_query(cursor, f"SELECT {', '.join(values)}, 1", [], LIMITS)


def test_rows_are_what_they_were(cursor: duckdb.DuckDBPyConnection) -> None:
    """Values of every kind, NULL, an order, and names that are given twice."""
    sql = """SELECT * FROM (VALUES (2, 'b', [1, NULL], {'k': 'v'}, TIMESTAMP_NS '2026-01-01', 1.5,
      NULL, 'x'::BLOB, MAP {'a': 1}), (1, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL))
      AS t(a, b, c, d, e, f, "a", g, h) ORDER BY 1"""
    found = run_query(cursor, sql, [], LIMITS)
    assert found.rows == [
        [1, None, None, None, None, None, None, None, None],
        [
            2,
            "b",
            [1, None],
            {"k": "v"},
            "2026-01-01T00:00:00.000000000Z",
            1.5,
            None,
            "78",
            {"a": 1},
        ],
    ]
    plan = run_query(cursor, "EXPLAIN SELECT 1", [], LIMITS)
    assert plan.columns == ["explain_key", "explain_value"]
    small = dataclasses.replace(LIMITS, rows=1)
    assert run_query(cursor, sql, [], small).truncated


def test_statements_that_differ_in_numbers_are_described_once(
    cursor: duckdb.DuckDBPyConnection,
) -> None:
    known = Descriptions()
    first = "SELECT range AS n, 'x' AS p99 FROM range(10) WHERE range > 7 AND range < $1"
    assert run_query(cursor, first, [9], LIMITS, known.of).rows == [[8, "x"]]
    closed = duckdb.connect()
    closed.close()
    assert known.of(closed, first.replace("7", "123456789012"), [9]) == (
        ["n", "p99"],
        ["BIGINT", "VARCHAR"],
    )
    for other in ("p99", "p50"), ("'x'", "8.5"), ("$1", "$2"):
        with pytest.raises(duckdb.ConnectionException):
            known.of(closed, first.replace(*other), [9])
    with pytest.raises(QueryFailed, match="no_such"):
        run_query(cursor, "SELECT no_such FROM range(3)", [], LIMITS, known.of)
