"""Attributes of measured points, which senders write as numbers or as text."""

from typing import Final

from ingero.contract.collective import CollectiveSource
from ingero.contract.otlp.values import Plain

_SOURCES: Final = {str(source): source for source in CollectiveSource}


def integer(value: Plain) -> int:
    """Return a whole number sent as a number or as text; raises TypeError or ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError(f"{value!r} is not a whole number")
    return int(value)


def integer_or_none(value: Plain) -> int | None:
    """Return a whole number, or None for an attribute that is not there."""
    return None if value is None else integer(value)


def text_or_none(value: Plain) -> str | None:
    """Return a text, or None for an attribute that is not there."""
    return None if value is None else str(value)


def source_or_none(value: Plain) -> CollectiveSource | None:
    """Return the source of a measurement, or None for one that this version does not know."""
    return _SOURCES.get(str(value))
