"""SQL of a user on a trace database: one read-only statement with limited time, rows and memory.

SQLite itself enforces this: the file is opened read-only, and an authorizer allows only reading
tables and calling known functions. The checks of the text before that only give clearer error
messages.
"""

import mmap
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from ingero.errors import MalformedInput, TooLarge, Unavailable
from ingero.storage.trace.reading import connect_readonly

DEFAULT_ROWS: Final = 1000
MAX_ROWS: Final = 10_000
Value: TypeAlias = str | int | float | None

_PROGRESS_STEPS: Final = 1000  # virtual machine steps between two checks of the time
_MAX_GROWTH_BYTES: Final = 512 * 2**20
_LIMITS: Final = {
    sqlite3.SQLITE_LIMIT_LENGTH: 256
    * 1024,  # length of one value, so that no function call runs long or takes much memory
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
_FUNCTIONS: Final = frozenset(
    # aggregates and windows
    "avg count group_concat max min sum total string_agg row_number rank dense_rank percent_rank "
    "cume_dist ntile lag lead first_value last_value nth_value median percentile percentile_cont "
    "percentile_disc "
    # scalars
    "abs char coalesce concat concat_ws format glob hex ifnull iif instr length like likely "
    "unlikely likelihood lower ltrim nullif octet_length printf quote random replace round rtrim "
    "sign substr substring trim typeof unicode upper changes sqlite_version "
    # dates, mathematics
    "date time datetime julianday strftime unixepoch timediff current_date current_time "
    "current_timestamp acos acosh asin asinh atan atan2 atanh ceil ceiling cos cosh degrees exp "
    "floor ln log log10 log2 mod pi pow power radians sin sinh sqrt tan tanh trunc "
    # JSON
    "json json_array json_array_length json_error_position json_extract json_insert json_object "
    "json_patch json_pretty json_quote json_remove json_replace json_set json_type json_valid "
    "json_group_array json_group_object json_each "
    "json_tree -> ->>".split()
)
_WIDEST: Final = 1000  # characters: the widest padding of printf, the longest text to search for
_CONVERSION: Final = re.compile(r"%([-+ #!0-9.,*l]*)")
_PRAGMAS: Final = frozenset(
    {"table_info", "table_xinfo", "table_list", "index_list", "index_info", "index_xinfo"}
)
_READS: Final = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE})
_FIRST_WORDS: Final = frozenset({"SELECT", "WITH", "EXPLAIN", "VALUES"})
_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|--[^\n]*|/\*.*?(?:\*/|\Z))|(?P<quoted>'(?:[^']|'')*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`|\[[^\]]*\])"""
    r"""|(?P<word>[A-Za-z_][\w$]*)|(?P<end>;)|(?P<other>.)""",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class QueryLimits:
    """What one query may cost."""

    timeout_s: float = 10.0
    max_rows: int = DEFAULT_ROWS
    max_bytes: int = 16 * 2**20


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The rows of a query; `truncated` if there were more rows than allowed."""

    columns: list[str]
    rows: list[list[Value]]
    truncated: bool


def check_statement(sql: str) -> str:
    """Return the one statement in `sql` without its semicolon; raise MalformedInput otherwise."""
    words: list[str] = []
    end: int | None = None
    for match in _TOKEN.finditer(sql):
        if match.lastgroup == "space":
            continue
        if end is not None and match.lastgroup != "end":
            raise MalformedInput(
                "only one statement is allowed, but more text follows the semicolon"
            )
        if match.lastgroup == "end":
            end = match.start() if end is None else end
        elif match.lastgroup == "word":
            words.append(match[0].upper())
        elif not words:
            words.append(match[0])  # a statement that begins with a parenthesis or a quote
    if not words:
        raise MalformedInput(
            "the query is empty; for example: SELECT op, count(*) FROM events GROUP BY op"
        )
    if words[0] not in _FIRST_WORDS:
        raise MalformedInput(
            f"only queries are allowed: begin with SELECT, WITH or EXPLAIN, not {words[0][:20]!r}"
        )
    return sql if end is None else sql[:end]


def run_query(
    path: Path,
    sql: str,
    limits: QueryLimits = QueryLimits(),  # noqa: B008 - frozen
    has_left: Callable[[], bool] = lambda: False,
) -> QueryResult:
    """Run one query on the trace database at `path`.

    It is stopped when `has_left` says that the client disconnected.
    """
    statement = check_statement(sql)
    if "\0" in statement:
        raise MalformedInput("the query contains a NUL character")
    connection = connect_readonly(path)
    text, watch = _BoundedText(), _Watch(limits.timeout_s, has_left)
    try:
        _guard(connection, text, watch, _names_operations(statement))
        return _run(connection, statement, limits, text, watch)
    finally:
        connection.close()
        text.close()


def _names_operations(statement: str) -> bool:
    words = (match[0].strip('"`[]').lower() for match in _TOKEN.finditer(statement))
    return "operations" in words


def _guard(
    connection: sqlite3.Connection,
    text: "_BoundedText",
    watch: "_Watch",
    needs_operations: bool = False,
) -> None:
    """Restrict a read-only connection to what a stranger's SQL may do."""
    connection.set_progress_handler(watch, _PROGRESS_STEPS)
    if needs_operations:
        from ingero.storage.operations import (  # noqa: PLC0415 - numpy is slow to load
            add_operations_table,
        )

        add_operations_table(connection)
    for statement in (
        "query_only = ON",
        "trusted_schema = OFF",
        "cell_size_check = ON",
        "temp_store = MEMORY",
    ):
        connection.execute(f"PRAGMA {statement}")
    for table in ("json_each", "json_tree", *(f"pragma_{name}" for name in sorted(_PRAGMAS))):
        # the first use declares the virtual table, which looks like a write
        connection.execute(f"SELECT 1 FROM {table}('[]')").close()
    for category, limit in _LIMITS.items():
        connection.setlimit(category, limit)
    text.replace_in(connection)
    connection.set_authorizer(_authorize)


def _run(
    connection: sqlite3.Connection,
    statement: str,
    limits: QueryLimits,
    text: "_BoundedText",
    watch: "_Watch",
) -> QueryResult:
    try:
        cursor = connection.execute(statement)
        columns = [column[0] for column in cursor.description or ()]
        rows, truncated = _collect(cursor, min(limits.max_rows, MAX_ROWS), limits.max_bytes)
    except sqlite3.OperationalError as error:
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT:
            raise Unavailable(
                f"the query was stopped: {watch.reason}; narrow it with WHERE timestamp > … or "
                "LIMIT"
            ) from None
        raise MalformedInput(
            f"the query failed: {text.refusal or error}{_way_on(connection, str(error))}"
        ) from None
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_AUTH:
            raise MalformedInput(f"refused: {error}; only reading tables is allowed here") from None
        raise MalformedInput(f"the query failed: {error}") from None
    return QueryResult(columns, rows, truncated)


def _way_on(connection: sqlite3.Connection, complaint: str) -> str:
    """Return a hint for a name that does not exist."""
    if complaint.startswith("no such column"):
        return "; `SELECT name FROM pragma_table_info('events')` lists the columns of a table"
    if not complaint.startswith("no such table"):
        return ""
    tables = connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name LIMIT 50"
    ).fetchall()
    return f"; the tables are: {', '.join(str(name) for (name,) in tables)}"


def _collect(
    cursor: sqlite3.Cursor, max_rows: int, max_bytes: int
) -> tuple[list[list[Value]], bool]:
    rows: list[list[Value]] = []
    size = 0
    for row in _rows(cursor):
        if len(rows) == max_rows:
            return rows, True
        values = [_plain(value) for value in row]
        size += sum(len(value) if isinstance(value, str) else 8 for value in values)
        if size > max_bytes:
            raise TooLarge(
                f"the result is larger than {max_bytes >> 20} MiB; ask for fewer columns or rows"
            )
        rows.append(values)
    return rows, False


def _rows(cursor: sqlite3.Cursor) -> Iterator[tuple[object, ...]]:
    while chunk := cursor.fetchmany(100):
        yield from chunk


def _plain(value: object) -> Value:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if value is None or isinstance(value, str | int | float):
        return value
    return str(value)


def _authorize(
    action: int, first: str | None, second: str | None, _schema: str | None, _trigger: str | None
) -> int:
    """Allow or deny one action; SQLite calls this while it prepares a statement."""
    if action in _READS:
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _FUNCTIONS:
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_PRAGMA and (first or "").lower() in _PRAGMAS:
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


class _BoundedText:
    """Bounded versions of text functions that could run for minutes inside a single step.

    SQLite checks its time limit only between steps.
    """

    def __init__(self) -> None:
        self.refusal: str | None = None
        self._engine = sqlite3.connect(":memory:", check_same_thread=False)
        self._engine.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LIMITS[sqlite3.SQLITE_LIMIT_LENGTH])

    def close(self) -> None:
        self._engine.close()

    def replace_in(self, connection: sqlite3.Connection) -> None:
        """Replace the functions of the engine by the bounded ones."""
        for name in ("printf", "format"):
            connection.create_function(name, -1, self.formatted, deterministic=True)
        connection.create_function("instr", 2, self.found, deterministic=True)
        connection.create_function("replace", 3, self.replaced, deterministic=True)
        connection.create_function(
            "trim", 2, lambda text, of: _stripped(str.strip, text, of), deterministic=True
        )
        connection.create_function(
            "ltrim", 2, lambda text, of: _stripped(str.lstrip, text, of), deterministic=True
        )
        connection.create_function(
            "rtrim", 2, lambda text, of: _stripped(str.rstrip, text, of), deterministic=True
        )

    def formatted(self, *values: Value | bytes) -> Value:
        """Format with the engine's own printf, after checking the padding."""
        for conversion in _CONVERSION.findall(str(values[0]) if values else ""):
            if "*" in conversion or any(
                int(digits[:9]) > _WIDEST for digits in re.findall("[0-9]+", conversion)
            ):
                self.refusal = (
                    f"printf may pad to at most {_WIDEST} characters, and takes no width from an "
                    "argument"
                )
                raise ValueError(self.refusal)
        return self._ask("printf", *values)

    def found(self, text: Value | bytes, part: Value | bytes) -> Value:
        """Search as the engine does, whose time is the product of both lengths."""
        if _is_short(part):
            return self._ask("instr", text, part)
        if isinstance(text, bytes) and isinstance(part, bytes):
            return text.find(part) + 1
        return None if text is None else str(_plain(text)).find(str(_plain(part))) + 1

    def replaced(self, text: Value | bytes, part: Value | bytes, new: Value | bytes) -> Value:
        """Replace as the engine does; a long part occurs so seldom that the result is bounded."""
        if _is_short(part):
            return self._ask("replace", text, part, new)
        if text is None or new is None:
            return None
        return str(_plain(text)).replace(str(_plain(part)), str(_plain(new)))

    def _ask(self, function: str, *values: Value | bytes) -> Value:
        try:
            row = self._engine.execute(
                f"SELECT {function}({', '.join('?' * len(values))})", values
            ).fetchone()
        except sqlite3.Error as error:
            self.refusal = str(error)
            raise
        found: Value = row[0]
        return found


def _is_short(value: Value | bytes) -> bool:
    return not isinstance(value, str | bytes) or len(value) <= _WIDEST


def _stripped(
    strip: Callable[[str, str], str], text: Value | bytes, characters: Value | bytes
) -> str | None:
    if text is None or characters is None:
        return None
    return strip(str(_plain(text)), str(_plain(characters)))


class _Watch:
    """Stops a statement that runs too long, needs too much memory, or has lost its client."""

    def __init__(self, timeout_s: float, has_left: Callable[[], bool]) -> None:
        self.reason = ""
        self._timeout_s = timeout_s
        self._has_left = has_left
        self._deadline_s = time.monotonic() + timeout_s
        self._ceiling_bytes = _resident_bytes() + _MAX_GROWTH_BYTES
        self._calls = 0

    def __call__(self) -> int:
        self._calls += 1
        if time.monotonic() > self._deadline_s:
            self.reason = f"it ran longer than {self._timeout_s:g} s"
        elif self._has_left():
            self.reason = "the client disconnected"
        elif self._calls % 50 == 0 and _resident_bytes() > self._ceiling_bytes:
            self.reason = f"it needed more than {_MAX_GROWTH_BYTES >> 20} MiB of memory"
        return int(bool(self.reason))


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
