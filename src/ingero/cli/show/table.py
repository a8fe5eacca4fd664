"""Aligned tables and safe text: what every command prints with."""

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from unicodedata import combining, east_asian_width

_SEVERITY_COLOURS = {"HIGH": "31;1", "CRITICAL": "31;1", "MEDIUM": "33", "LOW": "36"}


def printable(value: object) -> str:
    """Text of any origin without control characters: a traced process may call itself an escape sequence."""
    if value is None:
        return ""
    text = _number(value) if isinstance(value, float) else str(value)
    return (
        text
        if text.isprintable()
        else "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
    )


def _number(value: float) -> str:
    """Six digits, and large ones whole: nobody compares nanoseconds as 1.18551e+06."""
    return f"{value:.0f}" if 1e6 <= abs(value) < 1e15 else f"{value:.6g}"


def render_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Header, rule and rows, two spaces apart; numbers as they are."""
    texts = [[printable(value) for value in row] for row in rows]
    heads = [printable(column) for column in columns]
    widths = [max(map(columns_of, column)) for column in zip(heads, *texts, strict=True)]
    lines = [heads, ["-" * width for width in widths], *texts]
    return "\n".join(aligned(line, widths) for line in lines)


def columns_of(text: str) -> int:
    """How many columns a terminal gives to a text: two to each wide character of East Asia, none to an accent."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


def aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    """One line of a table."""
    padded = (
        cell + " " * (width - columns_of(cell)) for cell, width in zip(cells, widths, strict=True)
    )
    return "  ".join(padded).rstrip()


def print_json(value: Any) -> None:
    """Indented, UTF-8, one document."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_summaries(heads: tuple[str, str], summaries: Mapping[str, str], as_json: bool) -> None:
    """What can be asked, one line each."""
    if as_json:
        print_json([dict(zip(heads, row, strict=True)) for row in summaries.items()])
    else:
        print(render_table(heads, summaries.items()))


def coloured(text: str, code: str) -> str:
    """In colour on a terminal, plain everywhere else and where $NO_COLOR is set."""
    return (
        f"\x1b[{code}m{text}\x1b[0m"
        if sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        else text
    )


def severity_tag(severity: str) -> str:
    """`[HIGH]`, red on a terminal."""
    return coloured(f"[{printable(severity)}]", _SEVERITY_COLOURS.get(severity, "0"))
