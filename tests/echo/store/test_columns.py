"""Columns of a result: every value arrives, whatever its type and however it was packed."""

from collections.abc import Iterator
from typing import Any

import duckdb
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingero.echo.store import columns
from ingero.echo.store.api import ColumnResult, QueryLimits
from ingero.echo.store.columns import run_columns
from ingero.echo.tools.asker import unpack

LIMITS = QueryLimits(rows=1000, size_bytes=1 << 20, seconds=10)


@pytest.fixture(scope="module")
def cursor() -> Iterator[duckdb.DuckDBPyConnection]:
    connection = duckdb.connect()
    connection.execute("CREATE TABLE t (text VARCHAR, whole BIGINT, real DOUBLE)")
    yield connection
    connection.close()


rows = st.lists(
    st.tuples(
        st.none() | st.sampled_from(["", "a", "it's", "a\0b", "é"]) | st.text(max_size=4),
        st.none() | st.sampled_from([0, 127, 128, -129, 40_000]) | st.integers(0, 2**62),
        st.none() | st.floats(allow_nan=False),
    ),
    max_size=20,
)


@settings(deadline=None, max_examples=60)
@given(rows=rows, most=st.sampled_from([1, 20_000]), characters=st.sampled_from([3, 1 << 20]))
def test_columns_hold_what_the_rows_hold(
    cursor: duckdb.DuckDBPyConnection, rows: list[tuple[Any, ...]], most: int, characters: int
) -> None:
    cursor.execute("DELETE FROM t")
    if rows:
        cursor.executemany("INSERT INTO t VALUES (?, ?, ?)", rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "MOST_CODED", most)
        patch.setattr(columns, "MOST_CHARACTERS", characters)
        packed = run_columns(cursor, "SELECT * FROM t", [], LIMITS)
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(packed), type=ColumnResult)
    found = unpack(sent)
    text, whole, real = found["text"], found["whole"].data, found["real"].data
    texts = [None if code < 0 else (text.values or [])[code] for code in text.data]
    assert texts == [row[0] for row in rows]
    assert whole.tolist() == [-1 if row[1] is None else row[1] for row in rows]
    assert [None if np.isnan(value) else value for value in real] == [row[2] for row in rows]


def test_numbers_take_the_bytes_that_they_need(cursor: duckdb.DuckDBPyConnection) -> None:
    """A hundred thousand collectives were 15 MB on their way through the event loop."""
    sql = "SELECT 7 AS same, range % 100 AS small, format('n{}', range % 9) AS text FROM range(900)"
    packed = run_columns(cursor, sql, [], LIMITS)
    assert {name: len(column.data) for name, column in packed.columns.items()} == {
        "same": 1,
        "small": 900,
        "text": 900,
    }
    cut = run_columns(cursor, "SELECT range % 2 AS x FROM range(5000)", [], LIMITS)
    assert (cut.rows, cut.truncated, len(unpack(cut)["x"].data)) == (1000, True, 1000)


def test_long_texts_do_not_become_a_part_of_a_statement(
    cursor: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "_coded", lambda name, known: known)
    sql = "SELECT repeat('x', 100000) || range AS text FROM range(20)"
    packed = run_columns(cursor, sql, [], LIMITS)
    assert len(packed.columns["text"].values or ()) == 20
