"""Numbers with their noun."""

import pytest

from ingero.core.counted import counted


@pytest.mark.parametrize(
    ("number", "noun", "plural", "text"),
    [
        (0, "node", "", "0 nodes"),
        (1, "node", "", "1 node"),
        (12_000, "node", "", "12,000 nodes"),
        (2, "query", "queries", "2 queries"),
    ],
)
def test_one_is_singular(number: int, noun: str, plural: str, text: str) -> None:
    assert counted(number, noun, plural) == text
