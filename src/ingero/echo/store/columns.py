"""One of our own statements as columns of numbers, for arithmetic on many rows.

Text becomes codes inside DuckDB: an object of Python for each text of each row would take most of
the time.
"""

import math
from typing import Any, Final

import duckdb
import numpy as np
from numpy.typing import NDArray

from ingero.echo.store.api import ColumnResult, PackedColumn, QueryLimits
from ingero.echo.store.query import bounded, described

# distinct texts of a column, and their characters, which become a part of a statement; with more,
# they are numbered here
MOST_CODED, MOST_CHARACTERS = 20_000, 1 << 20
_TEXT: Final = "VARCHAR"
_KINDS: Final = (("i1", 1 << 7), ("i2", 1 << 15), ("i4", 1 << 31))


def run_columns(
    cursor: duckdb.DuckDBPyConnection, sql: str, params: list[Any], limits: QueryLimits
) -> ColumnResult:
    """Run one statement and return columns, with text as codes; at most `limits.rows` rows."""
    with bounded(cursor, limits):
        types = dict(zip(*described(cursor, sql, params), strict=True))
        texts = _distinct(cursor, sql, params, [name for name in types if types[name] == _TEXT])
        selected = ", ".join(_selected(name, texts.get(name)) for name in types) or "*"
        cursor.execute(f"SELECT {selected} FROM ({sql}) LIMIT {limits.rows + 1}", params)
        table = cursor.fetchnumpy()
        found = max((len(column) for column in table.values()), default=0)
        columns = {
            name: _packed(column[: limits.rows], types[name], texts.get(name))
            for name, column in table.items()
        }
    rows = min(found, limits.rows)
    return ColumnResult(columns=columns, rows=rows, truncated=found > limits.rows)


def _distinct(
    cursor: duckdb.DuckDBPyConnection, sql: str, params: list[Any], names: list[str]
) -> dict[str, list[str]]:
    """Return the texts of each column in order, of columns whose texts DuckDB can number."""
    if not names:
        return {}
    lists = ", ".join(
        f"list_sort(list(DISTINCT {name}) FILTER ({name} IS NOT NULL))" for name in names
    )
    found = cursor.execute(f"SELECT {lists} FROM ({sql})", params).fetchone()
    texts = zip(names, found or (), strict=False)
    return {name: known for name, known in texts if known and _may_be_written(known)}


def _may_be_written(known: list[str]) -> bool:
    is_small = len(known) <= MOST_CODED and sum(map(len, known)) <= MOST_CHARACTERS
    return is_small and not any("\0" in text for text in known)


def _selected(name: str, known: list[str] | None) -> str:
    if known is None:
        return name
    if len(known) == 1:
        return f"CASE WHEN {name} IS NOT NULL THEN 0 END AS {name}"
    listed = ", ".join("'" + text.replace("'", "''") + "'" for text in known)
    return f"enum_code({name}::ENUM({listed})) AS {name}"


def _packed(column: NDArray[Any], kind: str, known: list[str] | None) -> PackedColumn:
    """Pack a column: integers with -1 for NULL, reals with NaN, text as codes with -1 for NULL."""
    missing = np.ma.getmaskarray(column)
    values = np.ma.getdata(column)
    if values.dtype == object:
        return _numbered(values, missing)
    if values.dtype.kind == "f" and kind != "HUGEINT":  # a sum of integers is a HUGEINT
        reals = values.astype("f8")
        reals[missing] = math.nan
        return PackedColumn(_once(reals.view("i8")).tobytes(), "f8")
    if missing.any():
        values = values.astype("i8")
        values[missing] = -1
    return _narrow(values, known)


def _narrow(values: NDArray[Any], known: list[str] | None) -> PackedColumn:
    """Pack whole numbers in as few bytes as they need: a copy less for each process on the way."""
    values = _once(values)
    low, high = int(values.min(initial=0)), int(values.max(initial=0))
    kind = next((kind for kind, most in _KINDS if -most <= low and high < most), "i8")
    return PackedColumn(values.astype(kind).tobytes(), kind, known)


def _once(values: NDArray[Any]) -> NDArray[Any]:
    """Return one number of a column in which all are the same."""
    return values[:1] if len(values) and (values == values[0]).all() else values


def _numbered(values: NDArray[Any], missing: NDArray[np.bool_]) -> PackedColumn:
    values = values.copy()
    values[missing] = None
    texts = values.tolist()
    known = [text for text in dict.fromkeys(texts) if text is not None]
    code_of = {None: -1, **{text: code for code, text in enumerate(known)}}
    codes = np.fromiter(map(code_of.__getitem__, texts), np.int64, len(texts))
    return _narrow(codes, known)
