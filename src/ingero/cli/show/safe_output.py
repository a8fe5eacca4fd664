"""Output of every command: text of strangers cannot control the terminal that shows it.

Commands make names and messages printable where they print them. These streams are the second
line: whatever else is written, control characters and invisible ones arrive as visible escapes.
"""

import contextlib
import re
import sys
from collections.abc import Iterator
from typing import Any, Final, TextIO, cast

from ingero.core.csv_cell import escaped

# Control characters except tab and newline; soft hyphens, marks of direction, joiners, separators
# of lines, tags and other characters without a shape; halves of surrogate pairs.
_UNSAFE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u08e2\u180e\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
# What commands themselves send to a terminal: colours, a cleared screen, a line written again, a
# screen of their own without a cursor, and lines over the older ones.
_OWN: Final = re.compile(
    r"(\x1b\[[0-9;]*m|\x1b\[H\x1b\[2J|\r\x1b\[K|\x1b\[[HJK]|\x1b\[\?(?:1049|25)[hl])"
)


def visible(text: str) -> str:
    """Return the text with escapes such as `\\x1b` in place of unsafe characters."""
    return _UNSAFE.sub(_escaped, text) if _UNSAFE.search(text) else text


def visible_json(text: str) -> str:
    """Return a JSON document with escapes of JSON in place of unsafe characters."""
    return _UNSAFE.sub(_escaped_in_json, text) if _UNSAFE.search(text) else text


def _escaped_in_json(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def _escaped(match: re.Match[str]) -> str:
    return escaped(match[0])


class SafeStream:
    """A text stream whose text is visible; a terminal also gets the sequences of the commands."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()

    def write(self, text: str) -> int:
        """Write the text and return its length, as a text stream does."""
        if _UNSAFE.search(text):
            parts = _OWN.split(text) if self._is_terminal else [text]  # every second one is own
            parts[::2] = map(visible, parts[::2])
            self._stream.write("".join(parts))
        else:
            self._stream.write(text)
        return len(text)

    def writelines(self, lines: Iterator[str]) -> None:
        """Write each text."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def safe_output() -> Iterator[None]:
    """Make standard output and standard error safe within the block."""
    out, err = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = cast(TextIO, SafeStream(out)), cast(TextIO, SafeStream(err))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = out, err
