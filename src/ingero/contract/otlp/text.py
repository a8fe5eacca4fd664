"""OTLP values as JSON text: one spelling for the pure and the compiled path."""

import base64
import json
import math
from collections.abc import Iterable

from ingero.contract.otlp.values import AnyValue, KeyValue

_encode_string = json.JSONEncoder(ensure_ascii=False).encode


def quote(text: str) -> str:
    """A JSON string; only what JSON requires is escaped."""
    return _encode_string(text)


def number(value: float) -> str:
    """The shortest text that reads back the same; what JSON has no number for becomes a string."""
    if math.isfinite(value):
        return repr(value)
    return '"NaN"' if math.isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'


def value_json(value: AnyValue | None) -> str:
    """Any OTLP value; bytes as base64, an empty value as null."""
    if value is None:
        return "null"
    if value.string_value is not None:
        return quote(value.string_value)
    if value.int_value is not None:
        return str(value.int_value)
    if value.double_value is not None:
        return number(value.double_value)
    if value.bool_value is not None:
        return "true" if value.bool_value else "false"
    if value.bytes_value is not None:
        return quote(base64.b64encode(value.bytes_value).decode())
    if value.array_value is not None:
        return f"[{','.join(value_json(item) for item in value.array_value.values)}]"
    return (
        "null" if value.kvlist_value is None else attributes_json(value.kvlist_value.values) or "{}"
    )


def attributes_json(attributes: Iterable[KeyValue]) -> str | None:
    """Attributes as one object in the order sent; None when there are none."""
    pairs = [f"{quote(attribute.key)}:{value_json(attribute.value)}" for attribute in attributes]
    return f"{{{','.join(pairs)}}}" if pairs else None


def object_json(fields: Iterable[tuple[str, str | None]]) -> str | None:
    """An object of fields that are JSON already; a field that is None is left out."""
    pairs = [f'"{name}":{text}' for name, text in fields if text is not None]
    return f"{{{','.join(pairs)}}}" if pairs else None


def array_json(items: Iterable[str]) -> str | None:
    """A list of items that are JSON already; None when empty."""
    joined = ",".join(items)
    return f"[{joined}]" if joined else None
