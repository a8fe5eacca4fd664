"""The glossary: each term is defined once, in a module that exists."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "glossary.md"


def test_each_term_is_defined_once() -> None:
    terms = re.findall(r"^\| \*\*(.+?)\*\* \|", PAGE.read_text(), re.MULTILINE)
    assert len(terms) >= 20
    assert sorted(terms) == sorted(set(terms))


def test_the_modules_it_names_exist() -> None:
    paths = re.findall(r"`([a-z_]+/[\w/.]*)`", PAGE.read_text())
    assert [path for path in paths if not (ROOT / "src" / "ingero" / path).exists()] == []
