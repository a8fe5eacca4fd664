"""Text in lines that fit a terminal, and never broken inside a command.

A command that is cut in two cannot be pasted. One that is wider than the terminal keeps its line.
"""

import re
import shutil
import sys
import textwrap
from collections.abc import Iterable
from typing import Final

import click

_KEPT: Final = "\u00a0"  # a space at which no line is broken
# what stands in backticks, and in advice what follows a colon up to its remark in brackets
_PROGRAMS: Final = (
    "dmesg|echo|ethtool|ingero|ionice|iostat|iotop|ip|kubectl|lsblk|nstat|nvidia-smi|perf|ps|"
    "renice|smem|ss|sudo|systemctl|taskset"
)
_COMMAND: Final = re.compile(rf"`[^`\n]*`|(?:(?<=: )|^|(?<=; ))(?:{_PROGRAMS}) [^();]*[^();\s]")


def keep_commands(text: str) -> str:
    """Return the text with commands in one piece; `spaces_back` undoes it."""
    return _COMMAND.sub(lambda found: found[0].replace(" ", _KEPT), text)


def spaces_back(text: str) -> str:
    """Return the text with ordinary spaces."""
    return text.replace(_KEPT, " ")


def wrap(text: str, columns: int, indent: str = "") -> list[str]:
    """Return lines of at most `columns`, all but the first one indented."""
    lines = textwrap.wrap(
        keep_commands(text),
        max(columns, 20),
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [spaces_back(line) for line in lines] or [""]


def screen_columns() -> int | None:
    """Return the width of the terminal; None where the output goes elsewhere."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def on_screen(line: str, indent: str) -> str:
    """Return a line as a terminal shows it best: broken between words, what follows indented.

    Where the output goes elsewhere it stays one line, which programs can search.
    """
    columns = screen_columns()
    return line if columns is None else "\n".join(wrap(line, columns, indent))


class HelpFormatter(click.HelpFormatter):
    """Formats help texts without breaking commands."""

    def write_text(self, text: str) -> None:
        super().write_text(keep_commands(text))

    def write_dl(
        self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2
    ) -> None:
        kept = [(name, keep_commands(text)) for name, text in rows]
        super().write_dl(kept, col_max, col_spacing)

    def getvalue(self) -> str:
        return spaces_back(super().getvalue())
