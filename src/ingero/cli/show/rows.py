"""Rows as table, JSON or CSV, printed as they arrive and with bounded memory."""

import csv
import json
import sys
from collections.abc import Sequence
from typing import Any

from ingero.cli.show.safe_output import visible_json
from ingero.cli.show.table import aligned, columns_of, printable
from ingero.core.csv_cell import csv_cell

LOOK_AHEAD_ROWS = 2000  # column widths are measured on these rows and used for all others
WIDEST = 200  # a longer cell is printed whole, but no other row is padded to its width


class RowPrinter:
    """Prints rows; call `begin` once, `rows` as often as needed, and `end` once."""

    def __init__(self, form: str) -> None:
        self.form = form
        self.printed = 0
        self._header: list[str] = []
        self._waiting: list[list[str]] = []
        self._widths: list[int] | None = None
        self._csv = csv.writer(sys.stdout, lineterminator="\n")

    def begin(self, header: Sequence[str]) -> None:
        """Take the names of the columns."""
        self._header = _keys(header) if self.form == "json" else list(header)
        if self.form == "csv":
            self._csv.writerow([csv_cell(name) for name in header])

    def rows(self, rows: Sequence[Sequence[Any]]) -> None:
        """Print more rows."""
        if self.form == "csv":
            self._csv.writerows([csv_cell(value) for value in row] for row in rows)
        elif self.form == "json":
            for row in rows:
                text = json.dumps(
                    dict(zip(self._header, row, strict=True)), ensure_ascii=False, indent=2
                )
                lines = visible_json(text).split("\n")
                print("[" if not self.printed else ",", *lines, sep="\n  ", end="")
                self.printed += 1
            return
        else:
            self._table([[printable(value) for value in row] for row in rows])
        self.printed += len(rows)

    def end(self) -> None:
        """Print what is still held back."""
        if self.form == "json":
            print("\n]" if self.printed else "[]")
        elif self.form == "table":
            self._flush_table()
        sys.stdout.flush()

    def _table(self, texts: list[list[str]]) -> None:
        if self._widths is not None:
            self._print_lines(texts)
            return
        self._waiting += texts
        if len(self._waiting) >= LOOK_AHEAD_ROWS:
            self._flush_table()

    def _flush_table(self) -> None:
        if self._widths is None and self._waiting:
            header = [printable(name) for name in self._header]
            columns = zip(header, *self._waiting, strict=True)
            self._widths = [min(max(map(columns_of, column)), WIDEST) for column in columns]
            self._print_lines([header, ["-" * width for width in self._widths]])
        self._print_lines(self._waiting)
        self._waiting = []

    def _print_lines(self, lines: Sequence[Sequence[str]]) -> None:
        for line in lines:
            print(aligned(line, self._widths or []))


def _keys(header: Sequence[str]) -> list[str]:
    """Return the column names as distinct keys of a JSON object: `id`, `id_2`."""
    keys: dict[str, None] = {}
    for name in header:
        key, number = name, 1
        while key in keys:
            number += 1
            key = f"{name}_{number}"
        keys[key] = None
    return list(keys)
