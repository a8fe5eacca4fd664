"""The guard of SQL on recordings: every limit, every permission and every answer, exactly."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from ingero.errors import MalformedInput, TooLarge, Unavailable
from ingero.storage import sqlite_guard
from ingero.storage.sqlite_guard import QueryLimits, QueryResult, check_statement, run_query
from ingero.storage.trace.database import TraceDb

BEGIN = "only queries are allowed: begin with SELECT, WITH or EXPLAIN, not"
LONG = 1001  # characters, from which texts are searched by other code


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("guard") / "t.db"
    with TraceDb(path, "n1"):
        return path


@pytest.fixture
def guarded(trace: Path) -> Iterator[sqlite3.Connection]:
    """A connection as it is restricted for a stranger, but free to be asked."""
    connection = sqlite_guard.connect_readonly(trace)
    text = sqlite_guard._BoundedText()
    sqlite_guard._guard(connection, text, sqlite_guard._Watch(60.0, lambda: False))
    connection.set_authorizer(None)
    yield connection
    connection.close()
    text.close()


def test_every_limit_of_sqlite_is_lowered(guarded: sqlite3.Connection) -> None:
    wanted = {
        sqlite3.SQLITE_LIMIT_LENGTH: 262_144,
        sqlite3.SQLITE_LIMIT_SQL_LENGTH: 100_000,
        sqlite3.SQLITE_LIMIT_COLUMN: 500,
        sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 200,
        sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 100,
        sqlite3.SQLITE_LIMIT_VDBE_OP: 250_000,
        sqlite3.SQLITE_LIMIT_ATTACHED: 0,
        sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 1000,
        sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
        sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
    }
    assert {category: guarded.getlimit(category) for category in wanted} == wanted
    assert QueryLimits() == QueryLimits(timeout_s=10.0, max_rows=1000, max_bytes=16_777_216)
    assert sqlite_guard.MAX_ROWS == 10_000


def test_the_connection_is_read_only_and_trusts_no_schema(guarded: sqlite3.Connection) -> None:
    names = ("query_only", "trusted_schema", "cell_size_check", "temp_store")
    assert [guarded.execute(f"PRAGMA {name}").fetchone()[0] for name in names] == [1, 0, 1, 2]


def test_slow_functions_of_the_engine_are_replaced(guarded: sqlite3.Connection) -> None:
    deterministic = 0x800
    own = guarded.execute(
        "SELECT name, narg FROM pragma_function_list WHERE NOT builtin AND flags & ?",
        [deterministic],
    ).fetchall()
    assert set(own) >= {
        ("printf", -1), ("format", -1), ("instr", 2), ("replace", 3), ("trim", 2), ("ltrim", 2),
        ("rtrim", 2),
    }  # fmt: skip


OK, DENY = sqlite3.SQLITE_OK, sqlite3.SQLITE_DENY


@pytest.mark.parametrize(
    ("action", "first", "second", "answer"),
    [
        (sqlite3.SQLITE_SELECT, None, None, OK),
        (sqlite3.SQLITE_READ, "events", "id", OK),
        (sqlite3.SQLITE_RECURSIVE, None, None, OK),
        (sqlite3.SQLITE_FUNCTION, None, "COUNT", OK),
        (sqlite3.SQLITE_FUNCTION, None, "load_extension", DENY),
        (sqlite3.SQLITE_FUNCTION, None, None, DENY),
        (sqlite3.SQLITE_PRAGMA, "table_info", "events", OK),
        (sqlite3.SQLITE_PRAGMA, "TABLE_INFO", "events", OK),
        (sqlite3.SQLITE_PRAGMA, "database_list", None, DENY),
        (sqlite3.SQLITE_PRAGMA, None, None, DENY),
        (sqlite3.SQLITE_INSERT, "table_info", None, DENY),
        (sqlite3.SQLITE_INSERT, None, "count", DENY),
        (sqlite3.SQLITE_ATTACH, "other.db", None, DENY),
        (sqlite3.SQLITE_CREATE_TEMP_TABLE, "x", None, DENY),
        (sqlite3.SQLITE_TRANSACTION, "BEGIN", None, DENY),
    ],
)
def test_reading_is_allowed_and_nothing_else(
    action: int, first: str | None, second: str | None, answer: int
) -> None:
    assert sqlite_guard._authorize(action, first, second, "main", None) == answer


def test_an_answer_has_columns_rows_and_whether_it_is_whole(trace: Path) -> None:
    found = run_query(trace, "SELECT 1 AS a, 'x' AS b, NULL AS c, 2.5 AS d, x'41ff' AS e")
    assert found == QueryResult(["a", "b", "c", "d", "e"], [[1, "x", None, 2.5, "A\ufffd"]], False)
    two = "SELECT 1 AS a UNION ALL SELECT 2"
    assert run_query(trace, two, QueryLimits(max_rows=2)) == QueryResult(["a"], [[1], [2]], False)
    assert run_query(trace, two, QueryLimits(max_rows=1)) == QueryResult(["a"], [[1]], True)


@pytest.mark.parametrize(("sql", "size"), [("SELECT 'abcd'", 4), ("SELECT 7, 'ab', NULL", 18)])
def test_a_result_is_refused_when_it_is_a_byte_too_large(trace: Path, sql: str, size: int) -> None:
    assert run_query(trace, sql, QueryLimits(max_bytes=size)).rows
    with pytest.raises(TooLarge, match="the result is larger than"):
        run_query(trace, sql, QueryLimits(max_bytes=size - 1))


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("", "the query is empty; for example: SELECT op, count(*) FROM events GROUP BY op"),
        ("(SELECT 1)", f"{BEGIN} '('"),
        ("'x' SELECT", f'{BEGIN} "\'x\'"'),
        ("DROP TABLE x", f"{BEGIN} 'DROP'"),
        ("SELECT 1; SELECT 2",
         "only one statement is allowed, but more text follows the semicolon"),
        ("SELECT '\0'", "the query contains a NUL character"),
        ("SELECT absent FROM events",
         "the query failed: no such column: absent; `SELECT name FROM "
         "pragma_table_info('events')` lists the columns of a table"),
        ("SELECT 1 FROM (SELECT", "the query failed: incomplete input"),
    ],
)  # fmt: skip
def test_refusals_say_why(trace: Path, sql: str, said: str) -> None:
    with pytest.raises(MalformedInput) as refused:
        run_query(trace, sql)
    assert str(refused.value) == said


def test_a_missing_table_is_answered_with_those_there_are(trace: Path) -> None:
    with pytest.raises(
        MalformedInput, match=r"no such table: x; the tables are: .*events.*"
    ) as told:
        run_query(trace, "SELECT * FROM x")
    assert "None" not in str(told.value)


def test_the_text_before_the_first_semicolon_is_run() -> None:
    assert check_statement("SELECT ';' ; -- x\n;") == "SELECT ';' "
    assert check_statement("SELECT 1") == "SELECT 1"


LONG_TEXT = "ab" * 600


@pytest.mark.parametrize(
    "call",
    [
        "instr(:text, :part)", "instr(CAST(:text AS BLOB), CAST(:part AS BLOB))",
        "instr(CAST(:text AS BLOB), :part)", "instr(:text, CAST(:part AS BLOB))",
        "instr(NULL, :part)", "instr(:text, NULL)", "replace(:text, :part, '-')",
        "replace(NULL, :part, '-')", "replace(:text, :part, NULL)", "replace(:text, NULL, '-')",
        "trim(:text, 'xab')", "ltrim(:text, 'x')", "rtrim(:text, 'x')", "ltrim(:text, NULL)",
        "rtrim(NULL, 'x')", "trim(5, 5)",
    ],
)  # fmt: skip
@pytest.mark.parametrize("length", [3, LONG - 1, LONG])
def test_bounded_functions_answer_like_those_of_the_engine(
    guarded: sqlite3.Connection, call: str, length: int
) -> None:
    part = LONG_TEXT[:length]
    values = {"text": f"xx{part}yy{part}x", "part": part}
    plain = sqlite3.connect(":memory:")
    expected = plain.execute(f"SELECT {call}", values).fetchone()
    plain.close()
    assert guarded.execute(f"SELECT {call}", values).fetchone() == expected


def test_a_text_that_a_function_makes_is_bounded(trace: Path) -> None:
    row = "replace(printf('%.1000c', 'a'), 'a', printf('%.{}c', 'b'))"
    assert run_query(trace, f"SELECT length({row.format(262)})").rows == [[262_000]]
    with pytest.raises(MalformedInput, match="string or blob too big"):
        run_query(trace, f"SELECT length({row.format(263)})")


@pytest.mark.parametrize(
    ("width", "fits"), [("1000", True), ("1001", False), ("9999999999", False)]
)
def test_padding_has_a_widest_value(trace: Path, width: str, fits: bool) -> None:
    sql = f"SELECT length(printf('%{width}d', 1))"
    if fits:
        assert run_query(trace, sql).rows == [[1000]]
        return
    with pytest.raises(MalformedInput, match="printf may pad to at most 1000 characters"):
        run_query(trace, sql)


def test_a_query_leaves_no_file_and_nothing_open(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    opened: list[sqlite3.Connection] = []
    original = sqlite3.connect

    def noted(*arguments: object, **options: object) -> sqlite3.Connection:
        opened.append(original(*arguments, **options))  # type: ignore[arg-type]
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", noted)
    run_query(trace, "SELECT printf('%d', 1)")
    assert list(tmp_path.iterdir()) == []
    assert len(opened) == 2
    for connection in opened:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.execute("SELECT 1")


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"


def test_a_statement_ends_when_its_client_has_left_or_memory_grows(
    trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Unavailable, match="the client disconnected"):
        run_query(trace, ENDLESS, QueryLimits(timeout_s=60.0), lambda: True)
    with pytest.raises(Unavailable, match=r"it ran longer than 0\.05 s"):
        run_query(trace, ENDLESS, QueryLimits(timeout_s=0.05))
    sizes = iter([0, *[600 << 20] * 100_000])
    monkeypatch.setattr(sqlite_guard, "_resident_bytes", lambda: next(sizes))
    with pytest.raises(Unavailable, match="it needed more than 512 MiB of memory"):
        run_query(trace, ENDLESS, QueryLimits(timeout_s=60.0))


def test_memory_is_looked_at_every_fifty_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(sqlite_guard, "_resident_bytes", lambda: asked.append(1) or 0)
    watch = sqlite_guard._Watch(600.0, lambda: False)
    assert [watch() for _ in range(150)] == [0] * 150
    assert len(asked) == 1 + 3
