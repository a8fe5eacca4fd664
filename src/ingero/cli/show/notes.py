"""Merges notes that say the same of many files into one line."""

import re
from collections.abc import Sequence
from typing import Final

from ingero.core.counted import counted

_NOTE: Final = re.compile(r"(?P<file>.+): (?P<number>\d[\d,]{0,18}) (?P<what>\D+)")
_MOST_SINGLE: Final = 2  # files that are named one by one


def merged_notes(notes: Sequence[str]) -> list[str]:
    """Return the notes; those that differ only in file and number become one.

    The line stands where the first of them stood. It names the range of the numbers.
    """
    alike: dict[str, list[tuple[str, int]]] = {}
    for note in notes:
        if found := _NOTE.fullmatch(note):
            number = int(found["number"].replace(",", ""))
            alike.setdefault(_plural(found["what"]), []).append((found["file"], number))
    lines: list[str] = []
    for note in notes:
        found = _NOTE.fullmatch(note)
        group = alike.get(_plural(found["what"]), []) if found else []
        if found is None or len({file for file, _ in group}) <= _MOST_SINGLE:
            lines.append(note)
        elif group[0][0] == found["file"]:
            lines.append(_merged(_plural(found["what"]), group))
    return list(dict.fromkeys(lines))


def _plural(what: str) -> str:
    """Return the text in the plural: `record was left` becomes `records were left`."""
    return re.sub(r"(\w)(?<!s) was\b", r"\1s were", what)


def _merged(what: str, group: Sequence[tuple[str, int]]) -> str:
    least, most = min(number for _, number in group), max(number for _, number in group)
    numbers = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    files = counted(len({file for file, _ in group}), "file")
    return f"in each of {files}, {numbers} {what}"
