"""The feature list: which capability each id (F001 …) stands for, and the tests that prove it.

`docs/reference/features.md` is the list. Its first two columns are written by hand; the third is
found by reading the tests. `python -m tests.support.features` brings the page up to date.
"""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "features.md"
MAX_TESTS_SHOWN = 3
PLANNED = "planned"
_ROW = re.compile(r"^\| F(\d{3}) \| ([^|]+?) \| ([^|]*?) \|$", re.MULTILINE)
_CITATION = re.compile(r"(?i)(?<![0-9a-z])f(\d{3})(?: to f(\d{3}))?(?!\d)")


def listed() -> dict[int, tuple[str, str]]:
    """Return capability and tests of every feature on the page, by number."""
    return {int(number): (text, tests) for number, text, tests in _ROW.findall(PAGE.read_text())}


def cited() -> dict[int, list[str]]:
    """Return the tests and benchmarks that cite each feature, by number."""
    found: dict[int, list[str]] = {}
    for folder in ("tests", "bench"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            if file.name != Path(__file__).name:
                for number in sorted(set(_numbers(file.read_text()))):
                    found.setdefault(number, []).append(str(file.relative_to(ROOT)))
    return found


def _numbers(text: str) -> Iterator[int]:
    for first, last in _CITATION.findall(text.replace("_", " ")):
        yield from range(int(first), int(last or first) + 1)


def tests_cell(files: list[str]) -> str:
    """Return the third column for the files that cite a feature."""
    if not files:
        return PLANNED
    more = len(files) - MAX_TESTS_SHOWN
    shown = ", ".join(f"`{file}`" for file in files[:MAX_TESTS_SHOWN])
    return f"{shown} and {more} more" if more > 0 else shown


def updated_page() -> str:
    """Return the page with the third column as the tests are now."""
    proofs = cited()

    def row(match: re.Match[str]) -> str:
        number, text = match[1], match[2]
        return f"| F{number} | {text} | {tests_cell(proofs.get(int(number), []))} |"

    return _ROW.sub(row, PAGE.read_text())


if __name__ == "__main__":
    PAGE.write_text(updated_page())
