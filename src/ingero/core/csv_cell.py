"""Cells of CSV files that hold text of strangers, for terminals and for spreadsheets."""

import re
from typing import Final

_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "|", "%")
_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def csv_cell(value: object) -> object:
    """Return a cell; a text that a spreadsheet would run as a formula gets a `'`.

    Characters that cannot be seen become escapes. Numbers stay numbers, also those written as text.
    """
    if not isinstance(value, str):
        return value
    text = printed(value)
    return f"'{text}" if value.startswith(_FORMULA) and not _NUMBER.fullmatch(value) else text


def printed(text: str) -> str:
    """Return a text with visible escapes in place of characters that cannot be printed."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else escaped(c) for c in text)


def escaped(character: str) -> str:
    """Return the visible escape of one character."""
    number = ord(character)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"
