"""A terminal that shows one picture in place: new lines replace the old ones."""

import re
import shutil
import sys
from collections.abc import Iterable
from types import TracebackType
from typing import Final, Self

from ingero.cli.show.table import columns_of

_OPEN: Final = "\x1b[?1049h\x1b[?25l"  # a screen of its own, which leaves the scrollback alone
_CLOSE: Final = "\x1b[?25h\x1b[?1049l"
_COLOUR: Final = re.compile(r"(\x1b\[[0-9;]*m)")


def fitted(lines: Iterable[str], columns: int, rows: int) -> list[str]:
    """Return lines that fit a terminal; if some are cut off, the last line says how many."""
    shown = [_cut(line, columns) for line in lines]
    while shown and not shown[-1]:
        shown.pop()
    if len(shown) <= rows:
        return shown
    left = len(shown) - (rows - 1)
    return [*shown[: rows - 1], _cut(f"… {left} more lines; this window is too small", columns)]


def _cut(line: str, columns: int) -> str:
    """Return a line that is no wider than the terminal; colours take no room."""
    parts, room = [], columns
    for at, part in enumerate(_COLOUR.split(line)):
        if at % 2:
            parts.append(part)
        elif columns_of(part) <= room:
            parts.append(part)
            room -= columns_of(part)
        else:
            kept = part[:room]
            while columns_of(kept) > room - 1:
                kept = kept[:-1]
            parts.append(f"{kept}…" if room else "")
            room = 0
    return "".join(parts)


class Screen:
    """Draws in place on a terminal, within `with`; the last picture stays when it ends."""

    def __init__(self) -> None:
        self._last: list[str] = []

    def __enter__(self) -> Self:
        print(_OPEN, end="", flush=True)
        return self

    def draw(self, lines: list[str]) -> None:
        """Show these lines; the terminal may have changed its size."""
        self._last = lines
        size = shutil.get_terminal_size()
        fit = fitted(lines, size.columns, size.lines)
        # each line is written over the one before it, so that nothing flickers
        print("\x1b[H" + "\x1b[K\n".join(fit) + "\x1b[K\x1b[J", end="", flush=True)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        print(_CLOSE, end="")
        print(*self._last, sep="\n")
        sys.stdout.flush()
