"""Line tables of CPython: which source line a position in the bytecode belongs to.

A table is memory of another process. A line that no file can have is None.
"""

from typing import Final

_NO_LINE: Final = 15
_LONG: Final = 14
_NO_COLUMN: Final = 13
_ONE_LINE: Final = 10
_MAX_SHIFT: Final = 30  # of the last piece of a number
_MAX_LINE: Final = 1 << 24


def line_of(table: bytes, first: int, unit: int) -> int | None:
    """Return the line of a code unit in the location table of 3.11 and later.

    Raises IndexError where the table ends within a number.
    """
    line, at, position = first, 0, 0
    while position < len(table):
        head = table[position]
        kind, length = head >> 3 & 15, (head & 7) + 1
        has_line = kind != _NO_LINE
        if kind in (_LONG, _NO_COLUMN):
            delta = _signed(table, position + 1)
            if delta is None:
                return None
            line += delta
        elif _ONE_LINE <= kind < _NO_COLUMN:
            line += kind - _ONE_LINE
        if at <= unit < at + length:
            return line if has_line and 0 <= line < _MAX_LINE else None
        at += length
        position += 1
        while position < len(table) and not table[position] & 0x80:
            position += 1
    return None


def _signed(table: bytes, at: int) -> int | None:
    """Return a number; None for one of any length."""
    value, shift = 0, 0
    while True:
        byte = table[at]
        value |= (byte & 63) << shift
        shift += 6
        at += 1
        if not byte & 64:
            break
        if shift > _MAX_SHIFT:
            return None
    return -(value >> 1) if value & 1 else value >> 1


def line_of_310(table: bytes, first: int, offset: int) -> int | None:
    """Return the line of a byte offset in the line table of 3.10."""
    line, end = first, 0
    for index in range(0, len(table) - 1, 2):
        start, delta = end, table[index + 1]
        end += table[index]
        known = delta != 0x80
        if known:
            line += delta - 256 if delta > 127 else delta
        if start <= offset < end:
            return line if known and 0 <= line < _MAX_LINE else None
    return None
