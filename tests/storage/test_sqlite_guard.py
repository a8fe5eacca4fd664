"""User SQL may read the trace and can do nothing else."""

import sqlite3
import time
from pathlib import Path

import pytest
from tests.support.hostile_sql import ENDLESS
from tests.support.waiting import PATIENCE_S

from ingero.errors import IngeroError, MalformedInput, TooLarge, Unavailable
from ingero.sim.samples import write_samples
from ingero.storage.sqlite_guard import QueryLimits, check_statement, run_query
from ingero.storage.trace.database import TraceDb

LONG = "replace(printf('%.1000c', 'a'), 'a', printf('%.200c', 'b'))"  # 200,000 characters


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_samples(tmp_path_factory.mktemp("samples"), rows=None)[0]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1",
        "WITH x AS (SELECT 1) SELECT * FROM x;",
        "EXPLAIN SELECT 1",
        "EXPLAIN QUERY PLAN SELECT * FROM events",
        "VALUES (1), (2)",
        "select 1 ; ;\n -- a remark; DROP TABLE events\n /* ; */ ",
        "-- first a remark\nSELECT 1",
        "/* DELETE FROM events; */ SELECT 1",
        "SELECT 'UPDATE me; DELETE FROM events' AS text",
        "SELECT 'it''s; fine'",
        'SELECT 1 AS "drop table"',
        "SELECT replace(comm, 'a', 'b') FROM events LIMIT 1",
        "SELECT count(*) FROM events WHERE comm LIKE '%insert into%'",
        "SELECT name FROM pragma_table_info('events')",
        "SELECT name FROM sqlite_master",
        "SELECT * FROM operations LIMIT 1",
        'SELECT * FROM "Operations" LIMIT 1',
        "SELECT json_extract(recommendations, '$[0]') FROM causal_chains",
        "SELECT value FROM causal_chains, json_each(recommendations)",
        "SELECT sum(duration) OVER (ORDER BY timestamp) FROM events LIMIT 1",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10) "
        "SELECT sum(i) FROM n",
    ],
)
def test_questions_are_answered(trace: Path, sql: str) -> None:
    """V10: including a trailing semicolon, comments, and words that only look dangerous."""
    answer = run_query(trace, sql)
    assert answer.columns
    assert answer.rows, "an empty answer would show nothing"


@pytest.mark.parametrize(
    "sql",
    [
        "",
        "   -- only a remark",
        ";",
        "DELETE FROM events",
        "SELECT 1; SELECT 2",
        "SELECT 1;/* x */DROP TABLE events",
        "SELECT 1;--\nDROP TABLE events",
        "WITH x AS (DELETE\tFROM events RETURNING *) SELECT 1",
        "WITH x AS (SELECT 1) DELETE FROM events",
        "WITH x AS (SELECT 1) INSERT INTO events SELECT * FROM events",
        "WITH x AS (SELECT 1) UPDATE\nevents SET pid = 1",
        "EXPLAIN DELETE FROM events",
        "SELECT zeroblob(1073741824)",
        "SELECT randomblob(1073741824)",
        "SELECT load_extension('x')",
        "SELECT readfile('/etc/passwd')",
        "SELECT writefile('/tmp/x', 'y')",
        "SELECT fts3_tokenizer('simple')",
        "SELECT edit('x')",
        "SELECT sqlite_compileoption_get(1)",
        "ATTACH 'x' AS y",
        "DETACH main",
        "PRAGMA user_version = 3",
        "PRAGMA journal_mode = DELETE",
        "PRAGMA writable_schema = ON",
        "SELECT * FROM pragma_database_list",
        "SELECT * FROM pragma_user_version(3)",
        "SELECT * FROM pragma_wal_checkpoint",
        "VACUUM",
        "VACUUM INTO '/tmp/copy.db'",
        "REINDEX",
        "ANALYZE",
        "CREATE TABLE t (a)",
        "CREATE TEMP TABLE t AS SELECT 1",
        "CREATE TEMP VIEW v AS SELECT 1",
        "CREATE VIRTUAL TABLE t USING fts5(a)",
        "BEGIN",
        "SAVEPOINT s",
        "COMMIT",
        "REPLACE INTO events (id) VALUES (1)",
        "COPY events TO 'f'",
        "INSTALL httpfs",
        "SELECT * FROM read_csv('f')",
        "SELECT * FROM dbstat",
        "(SELECT 1)",
        "'SELECT'",
        "SELECT",
        "SELECT * FROM nowhere",
        "SELECT 'unfinished",
        "SELECT 1 /* unfinished ; DROP TABLE events",
        "\ufeffSELECT 1; DROP TABLE events",
        "SELECT 1\0; DROP TABLE events",
    ],
)
def test_everything_else_is_refused_in_a_sentence(trace: Path, sql: str) -> None:
    """V10b and similar statements."""
    before = trace.read_bytes()
    if sql == "SELECT 1 /* unfinished ; DROP TABLE events":
        assert run_query(trace, sql).rows == [[1]], (
            "SQLite ends an open comment at the end of the text"
        )
    else:
        with pytest.raises(MalformedInput):
            run_query(trace, sql)
    assert trace.read_bytes() == before
    assert [file.name for file in trace.parent.iterdir() if file.name.startswith(trace.name)] == [
        trace.name
    ]


def test_the_engine_refuses_even_when_the_text_check_is_passed(trace: Path) -> None:
    with pytest.raises(MalformedInput, match="refused: not authorized"):
        run_query(trace, "WITH x AS (SELECT 1) DELETE FROM events WHERE 1 IN (SELECT * FROM x)")


def test_truncation_is_told(trace: Path) -> None:
    """V10c."""
    numbers = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {}) SELECT i "
        "FROM n"
    )
    over = run_query(trace, numbers.format(1001))
    exact = run_query(trace, numbers.format(1000))
    assert (len(over.rows), over.truncated, len(exact.rows), exact.truncated) == (
        1000,
        True,
        1000,
        False,
    )
    assert run_query(trace, numbers.format(20_000), QueryLimits(max_rows=10**9)).truncated, (
        "10,000 is the most"
    )


def test_an_endless_statement_ends(trace: Path) -> None:
    with pytest.raises(Unavailable, match=r"longer than 0\.2 s"):
        run_query(trace, ENDLESS, QueryLimits(timeout_s=0.2))


def test_a_statement_ends_when_nobody_waits_for_it(trace: Path) -> None:
    looks = iter([False] * 20)
    with pytest.raises(Unavailable, match="the client disconnected"):
        run_query(trace, ENDLESS, QueryLimits(timeout_s=10 * PATIENCE_S), lambda: next(looks, True))


@pytest.mark.parametrize(
    "bomb",
    [
        f"SELECT replace({LONG}, 'b', {LONG})",
        "SELECT group_concat(a.id || b.id || c.id) FROM events a, events b, events c",
        "WITH RECURSIVE x(s) AS (SELECT 'aaaaaaaa' UNION ALL SELECT s || s FROM x) "
        "SELECT max(length(s)) FROM x",
        "SELECT json_group_array(a.id) FROM events a, events b",
        "SELECT " + ", ".join(["1"] * 600),
        "SELECT " + "(" * 1000 + "1" + ")" * 1000,
        "SELECT 1 " + "UNION ALL SELECT 1 " * 200,
        "SELECT " + "1" * 200_000,
    ],
)
def test_memory_bombs_are_errors(trace: Path, bomb: str) -> None:
    with pytest.raises(IngeroError):
        run_query(trace, bomb, QueryLimits(timeout_s=3))


def test_a_sort_that_would_not_fit_is_stopped(trace: Path) -> None:
    wide = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
        f"SELECT DISTINCT i || {LONG} FROM n ORDER BY 1"
    )
    with pytest.raises(Unavailable, match="more than 512 MiB of memory"):
        run_query(trace, wide, QueryLimits(timeout_s=200))


def test_a_large_answer_is_an_error_not_a_flood(trace: Path) -> None:
    wide = "SELECT printf('%.1000d%.1000d', pid, pid) FROM events LIMIT 900"
    with pytest.raises(TooLarge, match="larger than 1 MiB"):
        run_query(trace, wide, QueryLimits(max_bytes=2**20))


@pytest.mark.parametrize(
    "padded",
    [
        "printf('%.1000000000d', 1)",
        "printf('%.*c', 1000000000, 'x')",
        "printf('%1000000000lld', 1)",
        "printf('%-*s%*s', 9, 'a', 1000000000, 'b')",
        "format('%,0*d', 1000000000, 1)",
        "printf('%' || '9' || '99999999' || 'd', 1)",
        "printf(x'252e3130303030303030303063', 'x')",
    ],
)
def test_printf_does_not_pad_for_minutes_inside_one_step(trace: Path, padded: str) -> None:
    """Each conversion could take tens of seconds, and time limits apply only between steps."""
    with pytest.raises(MalformedInput, match="printf may pad to at most 1000 characters"):
        run_query(trace, f"SELECT length({padded})")


def test_a_search_does_not_take_seconds_inside_one_step(trace: Path) -> None:
    """Time limits apply between steps, and the engine compares every place with the whole part."""
    text = "replace(printf('%.1000c', 'a'), 'a', printf('%.250c', 'a'))"
    part = f"substr({text}, 1, 125000) || 'b'"
    searches = ", ".join([f"instr({text}, {part}), length(replace({text}, {part}, 'c'))"] * 20)
    began_s = time.monotonic()
    assert run_query(trace, f"SELECT {searches}").rows == [[0, 250_000] * 20]
    assert time.monotonic() - began_s < PATIENCE_S
    found = f"instr('é' || {text} || 'b', {part}), replace('é' || {text} || 'b', {part}, 'c')"
    assert run_query(trace, f"SELECT {found}").rows == [[125_002, "é" + "a" * 125_000 + "c"]]


def test_text_functions_answer_as_the_engine_does(trace: Path) -> None:
    own = sqlite3.connect(":memory:")
    for sql in (
        "SELECT printf('%5.2f|%-6s|%06d|%%|%x|%,d|%q', 3.14159, 'ab', 42, 255, 1234567, 'it''s')",
        "SELECT printf(NULL), printf('x'), printf('%s', NULL), printf('%d %s', 1), printf()",
        "SELECT format('%08.3e', 12345.678)",
        "SELECT instr('hello', 'l'), instr(x'00ff01', x'ff'), instr(NULL, 'x'), instr('x', NULL), "
        "instr(0.1 + 0.2, '3'), instr('é', x'a9'), instr('x', '')",
        "SELECT replace('aXa', 'a', 'é'), replace('x', '', 'y'), replace(12.50, '.', ','), "
        "replace(NULL, 'a', 'b'), replace('a', NULL, 'b'), replace('a', 'a', NULL)",
        "SELECT trim('xxhixx', 'x'), ltrim('xxhi', 'x'), rtrim('hixx', 'x'), trim('  hi '), "
        "trim('abc', '')",
        "SELECT trim(5, '5'), trim(NULL, 'x'), trim('x', NULL), trim('ééaé', 'é'), "
        "length(trim(1.50, '0'))",
    ):
        assert run_query(trace, sql).rows == [list(row) for row in own.execute(sql)]
    own.close()
    assert run_query(trace, f"SELECT trim({LONG}, {LONG} || 'a')").rows == [[""]]


def test_blobs_become_text(trace: Path) -> None:
    assert run_query(trace, "SELECT x'68ff69', 1, 2.5, NULL").rows == [["h\ufffdi", 1, 2.5, None]]


def test_statement_is_cut_at_its_semicolon() -> None:
    assert check_statement("SELECT ';' ;  -- x") == "SELECT ';' "


def test_a_hostile_view_cannot_use_forbidden_functions(tmp_path: Path) -> None:
    TraceDb(tmp_path / "t.db", "n").close()
    with sqlite3.connect(tmp_path / "t.db") as connection:
        connection.execute("CREATE VIEW v AS SELECT zeroblob(10), load_extension('x')")
    connection.close()
    with pytest.raises(MalformedInput):
        run_query(tmp_path / "t.db", "SELECT * FROM v")
