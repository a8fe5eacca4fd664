"""JSON in the columns of trace databases.

Other recorders write them too, so damaged JSON is treated as empty.
"""

from typing import Any, Final

import msgspec

MAX_CHARACTERS: Final = 1 << 20


def json_list(text: object) -> list[Any]:
    """Return the list in a column; other recorders write `null` for an empty one."""
    value = _value(text)
    return value if isinstance(value, list) else []


def json_object(text: object) -> dict[str, Any] | None:
    value = _value(text)
    return value if isinstance(value, dict) else None


def _value(text: object) -> object:
    if not isinstance(text, str) or len(text) > MAX_CHARACTERS:
        return None
    try:
        value: object = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return value
