"""One read-only query in the store process, limited in time, rows and bytes."""

import contextlib
import logging
import math
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import date, timedelta
from datetime import time as time_of_day
from decimal import Decimal
from typing import Any, Final, Literal

import duckdb
import numpy as np

from ingero.echo.store.api import QueryFailed, QueryLimits, QueryResult

log = logging.getLogger(__name__)

MAX_COLUMNS: Final = 1000
_BATCH_ROWS: Final = 64  # converted at once; each row has at most `QueryLimits.size_bytes`
_INT64: Final = 2**63
_EPOCHS: Final[dict[str, tuple[str, Literal["us", "ns", "ms", "s"]]]] = {
    "TIMESTAMP_NS": ("epoch_ns", "ns"),
    "TIMESTAMP": ("epoch_us", "us"),
    "TIMESTAMP WITH TIME ZONE": ("epoch_us", "us"),
    "TIMESTAMP_MS": ("epoch_ms", "ms"),
    "TIMESTAMP_S": ("epoch", "s"),
}
_PLAIN: Final = frozenset({"VARCHAR", "JSON", "BOOLEAN", "INTEGER", "BIGINT", "SMALLINT"})
_TEXTS: Final = frozenset({"VARCHAR", "JSON"})
_SHORT: Final = frozenset(
    "BOOLEAN TINYINT SMALLINT INTEGER BIGINT HUGEINT UTINYINT USMALLINT UINTEGER UBIGINT UHUGEINT "
    "FLOAT DOUBLE DATE TIME UUID INTERVAL".split()
)
# lists and structures become one object of Python for each of their values
_NESTED_WEIGHT: Final = 8
_NUMBER: Final = re.compile(r"(?<![\w$.'])\d+(?![\w.'])")  # not of a name or a parameter
_MOST_KINDS: Final = 1000
Describe = Callable[[duckdb.DuckDBPyConnection, str, list[Any]], tuple[list[str], list[str]]]
_MEMORY_SIGNS: Final = (
    "failed to allocate",
    "bad_alloc",
    "cannot allocate",
    "worker thread",
    "start new thread",
)
_QUERY_ERRORS: Final = (
    duckdb.Error,
    MemoryError,
    RuntimeError,
    # values that Python cannot hold: structs with two fields of one name, dates before year 1
    ValueError,
    OverflowError,
)


def described(
    cursor: duckdb.DuckDBPyConnection, sql: str, params: list[Any]
) -> tuple[list[str], list[str]]:
    """Return names and types of the columns without running a statement.

    Nothing is returned for a statement that DuckDB cannot describe or bind. Running it gives an
    error that its author can understand.
    """
    try:
        cursor.execute(f"DESCRIBE {sql}", params)
    except duckdb.Error:
        _end(cursor)
        cursor.execute("BEGIN TRANSACTION READ ONLY")
        return [], []
    found = cursor.fetchall()
    return [str(row[0]) for row in found], [str(row[1]) for row in found]


class Descriptions:
    """Names and types of the columns of our own statements.

    To describe a statement takes as long as to plan it, most of the time of a small one. Numbers
    of requests and times stand in the text, so that DuckDB can skip blocks; they change no type.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[list[str], list[str]]] = {}

    def of(
        self, cursor: duckdb.DuckDBPyConnection, sql: str, params: list[Any]
    ) -> tuple[list[str], list[str]]:
        """Return what `described` returns, and ask DuckDB only once for each kind of statement."""
        kind = _NUMBER.sub("0", sql)
        if kind not in self._known:
            found = described(cursor, sql, params)
            if not found[0]:
                return found
            if len(self._known) >= _MOST_KINDS:
                self._known.clear()
            self._known[kind] = found
        return self._known[kind]


def run_query(
    cursor: duckdb.DuckDBPyConnection,
    sql: str,
    params: list[Any],
    limits: QueryLimits,
    describe: Describe = described,
) -> QueryResult:
    """Run one statement in a read-only transaction; raise QueryFailed."""
    started = time.perf_counter()
    with bounded(cursor, limits):
        columns, types = describe(cursor, sql, params)
        is_measured = bool(columns)
        if not is_measured:
            _refuse_settings(cursor, sql)
        cursor.execute(_for_json(sql, types, limits), params)
        if not columns:
            columns, types = _description(cursor)
        rows, truncated = _read(cursor, types, limits, is_measured)
    elapsed_ms = (time.perf_counter() - started) * 1e3
    return QueryResult(
        columns=columns,
        types=types,
        rows=rows,
        truncated=truncated,
        elapsed_ms=elapsed_ms,
    )


def _refuse_settings(cursor: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Refuse to change a setting: the memory limit is not locked, because the loader changes it."""
    if any(each.type == duckdb.StatementType.SET for each in cursor.extract_statements(sql)):
        raise QueryFailed("bad_sql", "settings cannot be changed")


def _description(cursor: duckdb.DuckDBPyConnection) -> tuple[list[str], list[str]]:
    found = cursor.description or []
    return [str(column[0]) for column in found], [str(column[1]) for column in found]


def _for_json(sql: str, types: list[str], limits: QueryLimits) -> str:
    """Return a statement that gives times as whole numbers, and the size of each row last.

    Python's times have no nanoseconds. A value can be larger than all memory that converting it to
    Python may take, so of rows that are too large only the size is given.
    """
    if not types:
        return sql
    if len(types) > MAX_COLUMNS:
        raise QueryFailed(
            "sql_refused", f"the result has {len(types)} columns; at most {MAX_COLUMNS} are allowed"
        )
    sizes = [_size(number, kind) for number, kind in enumerate(types, 1) if not _is_short(kind)]
    size = " + ".join([str(8 * len(types)), *(f"coalesce({one}, 0)" for one in sizes)])
    last = f"#{len(types) + 1}"
    columns = [
        _value(number, kind, f"CASE WHEN {last} <= {limits.size_bytes} THEN #{number} END")
        for number, kind in enumerate(types, 1)
    ]
    return f"SELECT {', '.join(columns)}, {last} FROM (SELECT *, {size} FROM ({sql}\n))"


def _is_short(kind: str) -> bool:
    return kind in _SHORT or kind in _EPOCHS or kind.startswith("DECIMAL(")


def _size(number: int, kind: str) -> str:
    if kind in _TEXTS:
        return f"strlen(#{number})"
    return f"{_NESTED_WEIGHT} * strlen(CAST(#{number} AS VARCHAR))"


def _value(number: int, kind: str, if_it_fits: str) -> str:
    if kind in _EPOCHS:
        return f"{_EPOCHS[kind][0]}(#{number})"
    return f"#{number}" if _is_short(kind) else if_it_fits


@contextlib.contextmanager
def bounded(cursor: duckdb.DuckDBPyConnection, limits: QueryLimits) -> Iterator[None]:
    """Yield a read-only transaction that ends after its time; errors become QueryFailed."""
    watchdog = threading.Timer(limits.seconds, cursor.interrupt)
    watchdog.daemon = True
    cursor.execute("BEGIN TRANSACTION READ ONLY")
    try:
        watchdog.start()
        yield
    except _QUERY_ERRORS as error:
        raise explained(error, limits) from None
    finally:
        watchdog.cancel()
        _end(cursor)


def _end(cursor: duckdb.DuckDBPyConnection) -> None:
    try:
        cursor.execute("ROLLBACK")
    except duckdb.Error:  # the failed statement has already ended the transaction
        return


def _read(
    cursor: duckdb.DuckDBPyConnection, types: list[str], limits: QueryLimits, is_measured: bool
) -> tuple[list[list[Any]], bool]:
    """Return rows up to a limit, and whether any were left out.

    With `is_measured` the last column is the size of the row, see `_for_json`.
    """
    rows: list[list[Any]] = []
    size = 0
    while batch := cursor.fetchmany(_BATCH_ROWS):
        found = list(zip(*batch, strict=True))
        sizes = found.pop() if is_measured else (0,) * len(batch)
        columns = [column_values(column, kind) for column, kind in zip(found, types, strict=True)]
        for row_size, row in zip(sizes, zip(*columns, strict=True), strict=True):
            size += row_size
            if len(rows) >= limits.rows or (size > limits.size_bytes and rows):
                return rows, True
            if row_size > limits.size_bytes:
                raise QueryFailed(
                    "sql_refused",
                    f"a row of the result is larger than {limits.size_bytes >> 20} MiB; select "
                    "fewer columns, cut texts with left(…), or return lists as rows with unnest(…)",
                )
            rows.append(list(row))
    return rows, False


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the process has used up its memory.

    DuckDB and threads each report that differently.
    """
    text = str(error).lower()
    return isinstance(error, duckdb.OutOfMemoryException | MemoryError) or any(
        sign in text for sign in _MEMORY_SIGNS
    )


def is_unreachable(error: BaseException) -> bool:
    """Return whether the files or the catalogue of the store do not answer.

    What PostgreSQL reports about a lake has no class of its own.
    """
    return isinstance(error, duckdb.IOException) or type(error) is duckdb.Error


def explained(error: Exception, limits: QueryLimits) -> QueryFailed:
    """Return the error as its asker should read it."""
    text = str(error).split("\n\n")[0].strip() or type(error).__name__
    if isinstance(error, duckdb.InterruptException):
        return QueryFailed(
            "timeout",
            f"the query took longer than {limits.seconds:g} s; narrow its time range or its rows",
        )
    if is_out_of_memory(error):
        return QueryFailed(
            "out_of_memory",
            "the query needs more memory than the store may use; aggregate or narrow it",
        )
    if isinstance(error, duckdb.FatalException | duckdb.InternalException):
        return QueryFailed("store_failed", text)
    if is_unreachable(error):
        log.warning("store_unreachable reason=%r", text)
        return QueryFailed("unavailable", "the store does not answer; nothing is lost, try again")
    return QueryFailed("bad_sql", text)


def column_values(column: Sequence[Any], kind: str) -> list[Any]:
    """Return a column as JSON values; times are whole numbers since 1970, see `_EPOCHS`."""
    if kind in _EPOCHS:
        unit = _EPOCHS[kind][1]
        times = np.array([0 if value is None else value for value in column], np.int64)
        texts = np.datetime_as_string(times.view(f"M8[{unit}]"), unit=unit).tolist()
        return [
            None if value is None else text + "Z" for value, text in zip(column, texts, strict=True)
        ]
    if kind in _PLAIN:
        return list(column)
    return [plain_value(value) for value in column]


def plain_value(value: Any) -> Any:
    """Convert any value of a result to a JSON value."""
    for kind, convert in _CONVERTERS:
        if isinstance(value, kind):
            return convert(value)
    return value if value is None or isinstance(value, str | bool) else str(value)


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _integer(value: int) -> int | str:
    return value if -_INT64 <= value < 2 * _INT64 else str(value)


def _decimal(value: Decimal) -> Any:
    return _integer(int(value)) if value == value.to_integral_value() else float(value)


_CONVERTERS: Final[tuple[tuple[Any, Callable[[Any], Any]], ...]] = (
    (bool, bool),
    (int, _integer),
    (float, _number),
    (Decimal, _decimal),
    (bytes, bytes.hex),
    (dict, lambda value: {str(key): plain_value(item) for key, item in value.items()}),
    (list, lambda value: [plain_value(item) for item in value]),
    (tuple, lambda value: [plain_value(item) for item in value]),
    (timedelta, lambda value: f"{value.total_seconds()}s"),
    ((date, time_of_day), lambda value: value.isoformat()),
)
