"""One read-only query in the store process, limited in time, rows and bytes."""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from datetime import time as time_of_day
from decimal import Decimal
from typing import Any, Final

import duckdb
import pyarrow as pa

from ingero.echo.store.api import ColumnResult, PackedColumn, QueryFailed, QueryLimits, QueryResult

_BATCH_ROWS: Final = 2048
_INT64: Final = 2**63
_MEMORY_SIGNS: Final = (
    "failed to allocate",
    "bad_alloc",
    "cannot allocate",
    "worker thread",
    "start new thread",
)
_QUERY_ERRORS: Final = (
    duckdb.Error,
    pa.ArrowException,
    MemoryError,
    RuntimeError,
    # values that Python cannot hold: structs with two fields of one name, dates before year 1
    ValueError,
    OverflowError,
)


def run_query(
    cursor: duckdb.DuckDBPyConnection, sql: str, params: list[Any], limits: QueryLimits
) -> QueryResult:
    """Run one statement in a read-only transaction; raise QueryFailed."""
    started = time.perf_counter()
    with _bounded(cursor, limits):
        reader = cursor.execute(sql, params).to_arrow_reader(_BATCH_ROWS)
        types = [str(column[1]) for column in cursor.description or []]
        rows, truncated = _read(reader, limits)
    elapsed_ms = (time.perf_counter() - started) * 1e3
    return QueryResult(
        columns=list(reader.schema.names),
        types=types,
        rows=rows,
        truncated=truncated,
        elapsed_ms=elapsed_ms,
    )


def run_columns(
    cursor: duckdb.DuckDBPyConnection, sql: str, params: list[Any], limits: QueryLimits
) -> ColumnResult:
    """Run one statement and return columns, with text as codes; at most `limits.rows` rows."""
    with _bounded(cursor, limits):
        table = cursor.execute(
            f"SELECT * FROM ({sql}) LIMIT {limits.rows + 1}", params
        ).to_arrow_table()
        kept = table.slice(0, limits.rows)
        columns = {name: _packed(kept.column(name)) for name in kept.column_names}
    return ColumnResult(columns=columns, rows=kept.num_rows, truncated=table.num_rows > limits.rows)


@contextlib.contextmanager
def _bounded(cursor: duckdb.DuckDBPyConnection, limits: QueryLimits) -> Iterator[None]:
    """Yield a read-only transaction that ends after its time; errors become QueryFailed."""
    watchdog = threading.Timer(limits.seconds, cursor.interrupt)
    watchdog.daemon = True
    cursor.execute("BEGIN TRANSACTION READ ONLY")
    try:
        watchdog.start()
        yield
    except _QUERY_ERRORS as error:
        raise _explain(error, limits) from None
    finally:
        watchdog.cancel()
        _end(cursor)


def _packed(column: pa.ChunkedArray) -> PackedColumn:
    """Pack a column: integers with -1 for NULL, reals with NaN, text as codes with -1 for NULL."""
    whole = column.combine_chunks()
    if isinstance(whole, pa.ChunkedArray):  # an empty column stays chunked
        whole = pa.concat_arrays(whole.chunks) if whole.num_chunks else pa.array([], whole.type)
    if pa.types.is_string(whole.type):
        encoded = whole.dictionary_encode()
        codes = encoded.indices.cast(pa.int64()).fill_null(-1)
        return PackedColumn(
            codes.to_numpy(zero_copy_only=False).tobytes(), "i8", encoded.dictionary.to_pylist()
        )
    if pa.types.is_floating(whole.type):
        return PackedColumn(
            whole.cast(pa.float64()).fill_null(math.nan).to_numpy(zero_copy_only=False).tobytes(),
            "f8",
        )
    return PackedColumn(
        whole.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False).tobytes(), "i8"
    )


def _end(cursor: duckdb.DuckDBPyConnection) -> None:
    try:
        cursor.execute("ROLLBACK")
    except duckdb.Error:  # the failed statement has already ended the transaction
        return


def _read(reader: pa.RecordBatchReader, limits: QueryLimits) -> tuple[list[list[Any]], bool]:
    """Return rows up to a limit, and whether any were left out."""
    rows: list[list[Any]] = []
    size = 0
    for batch in reader:
        columns = [column_values(column) for column in batch.columns]
        size_per_row = batch.nbytes / max(1, batch.num_rows)
        for row in zip(*columns, strict=True):
            if len(rows) >= limits.rows or (size > limits.size_bytes and rows):
                return rows, True
            rows.append(list(row))
            size += int(size_per_row) + 8 * len(row)
    return rows, False


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the process has used up its memory.

    DuckDB, Arrow and threads each report that differently.
    """
    text = str(error).lower()
    return isinstance(error, duckdb.OutOfMemoryException | MemoryError) or any(
        sign in text for sign in _MEMORY_SIGNS
    )


def _explain(error: Exception, limits: QueryLimits) -> QueryFailed:
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
    return QueryFailed("bad_sql", text)


def column_values(column: pa.Array) -> list[Any]:
    """Return a column as JSON values."""
    if pa.types.is_timestamp(column.type):
        texts = column.cast(pa.timestamp(column.type.unit)).cast(pa.string()).to_pylist()
        return [None if text is None else text.replace(" ", "T") + "Z" for text in texts]
    if (
        pa.types.is_string(column.type)
        or pa.types.is_boolean(column.type)
        or pa.types.is_integer(column.type)
    ):
        values: list[Any] = column.to_pylist()
        return values
    return [plain_value(value) for value in column.to_pylist()]


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
