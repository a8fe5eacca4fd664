"""How requests are numbered in the tables: writers of one lake never share a number.

A writer's number is above the numbers of its requests. In a file there is one writer, number 0.
"""

from typing import Final

NUMBER_SHIFT: Final = 48
REQUEST_COLUMNS: Final = frozenset({"seq", "first_seq", "last_seq", "until_seq"})


def stored_from(writer: int) -> int:
    """Return the number below the first request of a writer."""
    return writer << NUMBER_SHIFT


def own_key(key: str, writer: int) -> str:
    """Return the key of `meta` under which a writer of a lake notes a value."""
    return f"{key}/{writer}"
