"""The recorded public surface: one line per entry, compared with what the code has.

Additions are recorded in the commit that makes them. An entry that is gone breaks somebody, so
it leaves the record only when *Unreleased* in the changelog names it.
"""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
RECORD = Path(__file__).with_name("surface.txt")
COMMAND = "make surface"


def recorded() -> set[str]:
    """Return the recorded lines."""
    return set(RECORD.read_text(encoding="utf-8").splitlines())


def difference(before: set[str], now: set[str]) -> str:
    """Return what is gone and what is new, and what to do about it; empty if nothing is."""
    gone, new = sorted(before - now), sorted(now - before)
    if not gone and not new:
        return ""
    lines = [f"gone or changed: {line}" for line in gone] + [f"new: {line}" for line in new]
    advice = f"`{COMMAND}` records this; what is gone must be named in CHANGELOG.md first"
    return "\n".join([*lines, advice])


def unnamed(gone: set[str], changelog: str) -> list[str]:
    """Return the lines that are gone although *Unreleased* does not name them.

    A line is named by its entry, by the last word of it or by what it belongs to, in backticks:
    `ingero status --json`, `--json` or `ingero status` for `command ingero status --json: flag`.
    """
    unreleased = changelog.partition("## Unreleased")[2].partition("\n## ")[0]
    named = set(re.findall(r"`([^`]+)`", unreleased))
    return sorted(line for line in gone if named.isdisjoint(_names(line)))


def _names(line: str) -> set[str]:
    """Return what may stand for a line in the changelog."""
    _, _, entry = line.partition(": ")[0].partition(" ")
    parent, last = re.fullmatch(r"(?:(.*)[ .])?([^ .]*)", entry).groups("")
    return {entry, parent, *last.split("/"), f"{parent} {last.split('/')[0]}"} - {""}


def update(now: set[str]) -> str:
    """Record the surface as it is; return why not where a line is gone without a word."""
    before = recorded() if RECORD.exists() else set()
    missing = unnamed(before - now, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    if missing:
        return "\n".join([*missing, "gone; name it under Unreleased in CHANGELOG.md, in backticks"])
    RECORD.write_text("".join(f"{line}\n" for line in sorted(now)), encoding="utf-8")
    return ""
