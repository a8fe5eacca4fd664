"""Aligned tables, safe text, colour and JSON, for every command."""

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from unicodedata import combining, east_asian_width

from ingero.cli.show.safe_output import visible_json
from ingero.cli.show.wrap import on_screen, screen_columns
from ingero.core.csv_cell import printed

_SEVERITY_COLOURS = {"HIGH": "31;1", "CRITICAL": "31;1", "MEDIUM": "33", "LOW": "36"}


def printable(value: object) -> str:
    """Return a text without control characters, which a process name could contain."""
    if value is None:
        return ""
    text = _number(value) if isinstance(value, float) else str(value)
    return printed(text)


def _number(value: float) -> str:
    """Return six digits, but large numbers whole, so that nanoseconds can be compared."""
    return f"{value:.0f}" if 1e6 <= abs(value) < 1e15 else f"{value:.6g}"


def render_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table of header, rule and rows, with two spaces between columns."""
    texts = [[printable(value) for value in row] for row in rows]
    heads = [printable(column) for column in columns]
    widths = [max(map(columns_of, column)) for column in zip(heads, *texts, strict=True)]
    lines = [heads, ["-" * width for width in widths], *texts]
    return "\n".join(aligned(line, widths) for line in lines)


def columns_of(text: str) -> int:
    """Return the width of a text on a terminal: two columns per wide character, none per accent."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


def aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Return one line of a table."""
    padded = (
        cell + " " * (width - columns_of(cell)) for cell, width in zip(cells, widths, strict=True)
    )
    return "  ".join(padded).rstrip()


def print_json(value: Any) -> None:
    """Print one indented JSON document."""
    print(visible_json(json.dumps(value, indent=2, ensure_ascii=False)))


def print_summaries(heads: tuple[str, str], summaries: Mapping[str, str], as_json: bool) -> None:
    """Print names and their summaries, one line each."""
    if as_json:
        print_json([dict(zip(heads, row, strict=True)) for row in summaries.items()])
    else:
        width = max(map(len, (heads[0], *summaries)))
        indent = " " * (width + 2)
        longest = max(map(len, (heads[1], *summaries.values())))
        rule = "-" * min(longest, (screen_columns() or longest + len(indent)) - len(indent))
        for name, summary in (heads, ("-" * width, rule), *summaries.items()):
            print(on_screen(f"{name:<{width}}  {summary}", indent))


def coloured(text: str, code: str) -> str:
    """Return the text in colour on a terminal, unless $NO_COLOR is set; else as it is."""
    return (
        f"\x1b[{code}m{text}\x1b[0m"
        if sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        else text
    )


def severity_tag(severity: str) -> str:
    """Return a severity such as `[HIGH]`, in colour on a terminal."""
    return coloured(f"[{printable(severity)}]", _SEVERITY_COLOURS.get(severity, "0"))
