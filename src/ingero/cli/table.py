"""Aligned tables and safe text: what every command prints with."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_SEVERITY_COLOURS = {"HIGH": "31;1", "CRITICAL": "31;1", "MEDIUM": "33", "LOW": "36"}


def printable(value: object) -> str:
    """Text of any origin without control characters: a traced process may call itself an escape sequence."""
    if value is None:
        return ""
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if text.isprintable() else "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


def render_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Header, rule and rows, two spaces apart; numbers as they are."""
    texts = [[printable(value) for value in row] for row in rows]
    heads = [printable(column) for column in columns]
    widths = [max([len(head), *(len(row[i]) for row in texts)]) for i, head in enumerate(heads)]
    lines = [heads, ["-" * width for width in widths], *texts]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def print_json(value: Any) -> None:
    """Indented, UTF-8, one document."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_tools(heads: tuple[str, str], summaries: Mapping[str, str], as_json: bool) -> None:
    """What can be asked, one line each."""
    if as_json:
        print_json([dict(zip(heads, row, strict=True)) for row in summaries.items()])
    else:
        print(render_table(heads, summaries.items()))


def coloured(text: str, code: str) -> str:
    """In colour on a terminal, plain everywhere else."""
    return f"\x1b[{code}m{text}\x1b[0m" if sys.stdout.isatty() else text


def severity_tag(severity: str) -> str:
    """`[HIGH]`, red on a terminal."""
    return coloured(f"[{printable(severity)}]", _SEVERITY_COLOURS.get(severity, "0"))
