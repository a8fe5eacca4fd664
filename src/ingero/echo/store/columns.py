"""One of our own statements as columns of numbers, for arithmetic on many rows.

A first pass over the rows finds the range of each column. A column that is the same in all rows is
then not read again, and the others take as few bytes as they need: to get memory from the kernel
takes longer than the arithmetic. Text becomes codes inside DuckDB, because an object of Python for
each text of each row would take most of the time.
"""

import math
from dataclasses import dataclass
from typing import Any, Final

import duckdb
import numpy as np
from numpy.typing import NDArray

from ingero.echo.store.api import ColumnResult, PackedColumn, QueryLimits
from ingero.echo.store.query import Describe, bounded, described

# distinct texts of a column, and their characters, which become a part of a statement; with more,
# they are numbered here
MOST_CODED, MOST_CHARACTERS = 20_000, 1 << 20
_TEXT: Final = "VARCHAR"
_REAL: Final = "DOUBLE"
_NUMBERS: Final = (
    ("i1", 1 << 7, "TINYINT"),
    ("i2", 1 << 15, "SMALLINT"),
    ("i4", 1 << 31, "INTEGER"),
    ("i8", 1 << 63, "BIGINT"),
)


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of the statement, and what the first pass found in it.

    `present` counts the rows with a value. `texts` are the distinct texts in order, or None if
    there are too many for DuckDB to number. `low` and `high` are the range of its numbers.
    """

    name: str
    type: str
    rows: int
    present: int
    low: Any
    high: Any
    texts: list[str] | None = None

    def once(self) -> PackedColumn | None:
        """Return the column without reading it, if all rows are the same; else None."""
        if not self._is_coded or self.present not in (0, self.rows):
            return None
        is_same = self.low == self.high or (self.type == _REAL and math.isnan(self.low))
        if self.present and not is_same:
            return None
        value = self.low if self.present else self._nothing
        kind, _ = self._number()
        return PackedColumn(np.full(min(self.rows, 1), value, kind).tobytes(), kind, self.texts)

    def selected(self) -> str:
        """Return what to select: numbers in as few bytes as they need."""
        if not self._is_coded:
            return self.name
        value = self.name if self.texts is None else _coded(self.name, self.texts)
        if self.present < self.rows:
            value = f"coalesce({value}, {self._nothing!r})"  # NULLs take a mask, and two copies
        return f"{value}::{self._number()[1]} AS {self.name}"

    def packed(self, found: NDArray[Any]) -> PackedColumn:
        """Return what was read."""
        if not self._is_coded:
            return _numbered(found)
        return PackedColumn(found.tobytes(), self._number()[0], self.texts)

    @property
    def _is_coded(self) -> bool:
        return self.type != _TEXT or self.texts is not None

    @property
    def _nothing(self) -> float | str:
        return "nan" if self.type == _REAL else -1

    def _number(self) -> tuple[str, str]:
        """Return the kind of number for numpy and for DuckDB."""
        if self.type == _REAL:
            return "f8", _REAL
        low = min(-1 if self.present < self.rows else 0, self.low or 0)
        high = self.high or 0
        return next((kind, name) for kind, most, name in _NUMBERS if -most <= low and high < most)


def run_columns(
    cursor: duckdb.DuckDBPyConnection,
    sql: str,
    params: list[Any],
    limits: QueryLimits,
    describe: Describe = described,
) -> ColumnResult:
    """Run one statement and return columns, with text as codes; at most `limits.rows` rows."""
    with bounded(cursor, limits):
        columns, found = _survey(cursor, sql, params, describe)
        packed = {column.name: column.once() for column in columns}
        read = [column for column in columns if packed[column.name] is None]
        if read:
            selected = ", ".join(column.selected() for column in read)
            limit = f" LIMIT {limits.rows}" if found > limits.rows else ""  # which takes time
            table = cursor.execute(f"SELECT {selected} FROM ({sql}){limit}", params).fetchnumpy()
            packed |= {column.name: column.packed(table[column.name]) for column in read}
    kept = {name: column for name, column in packed.items() if column is not None}
    return ColumnResult(columns=kept, rows=min(found, limits.rows), truncated=found > limits.rows)


def _survey(
    cursor: duckdb.DuckDBPyConnection, sql: str, params: list[Any], describe: Describe
) -> tuple[list[_Column], int]:
    """Return what the columns hold, and the number of rows."""
    names, types = describe(cursor, sql, params)
    asked = ["count(*)", *(_range(name, kind) for name, kind in zip(names, types, strict=True))]
    cursor.execute(f"SELECT {', '.join(asked)} FROM ({sql})", params)
    ((rows, *answers),) = cursor.fetchall()
    columns = [
        _text_column(name, rows, known or [])
        if kind == _TEXT
        else _Column(name, kind, rows, *known)
        for name, kind, known in zip(names, types, answers, strict=True)
    ]
    return columns, rows


def _text_column(name: str, rows: int, known: list[str | None]) -> _Column:
    texts = sorted(text for text in known if text is not None)
    some = rows - 1 if texts else 0  # how many have none does not matter
    present = rows if None not in known else some
    coded = texts if _may_be_written(texts) else None
    return _Column(name, _TEXT, rows, present, 0, max(len(texts) - 1, 0), coded)


def _range(name: str, kind: str) -> str:
    if kind == _TEXT:
        return f"list(DISTINCT {name})"
    return f"[count({name}), min({name}), max({name})]"


def _may_be_written(known: list[str]) -> bool:
    is_small = len(known) <= MOST_CODED and sum(map(len, known)) <= MOST_CHARACTERS
    return is_small and not any("\0" in text for text in known)


def _coded(name: str, known: list[str]) -> str:
    if len(known) == 1:
        return f"CASE WHEN {name} IS NOT NULL THEN 0 END"
    listed = ", ".join("'" + text.replace("'", "''") + "'" for text in known)
    return f"enum_code({name}::ENUM({listed}))"


def _numbered(column: NDArray[Any]) -> PackedColumn:
    values = np.ma.getdata(column).copy()
    values[np.ma.getmaskarray(column)] = None
    texts = values.tolist()
    known = [text for text in dict.fromkeys(texts) if text is not None]
    code_of = {None: -1, **{text: code for code, text in enumerate(known)}}
    codes = np.fromiter(map(code_of.__getitem__, texts), "i4", len(texts))
    return PackedColumn(codes.tobytes(), "i4", known)
