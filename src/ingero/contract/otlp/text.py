"""OTLP values as JSON text, spelled the same by pure and compiled code."""

import base64
import json
import math
from collections.abc import Iterable

from ingero.contract.otlp.values import AnyValue, KeyValue

_encode_string = json.JSONEncoder(ensure_ascii=False).encode


def quote(text: str) -> str:
    """Return a JSON string in which only what JSON requires is escaped."""
    return _encode_string(text)


def number(value: float) -> str:
    """Return the shortest text that reads back the same; NaN and infinities become strings."""
    if math.isfinite(value):
        return repr(value)
    return '"NaN"' if math.isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'


def value_json(value: AnyValue | None) -> str:
    """Return any OTLP value as JSON: bytes as base64, an empty value as null."""
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
    """Return attributes as one object in the order sent, or None without any."""
    pairs = [f"{quote(attribute.key)}:{value_json(attribute.value)}" for attribute in attributes]
    return f"{{{','.join(pairs)}}}" if pairs else None


def object_json(fields: Iterable[tuple[str, str | None]]) -> str | None:
    """Join fields that are JSON already into an object; fields that are None are left out."""
    pairs = [f'"{name}":{text}' for name, text in fields if text is not None]
    return f"{{{','.join(pairs)}}}" if pairs else None


def array_json(items: Iterable[str]) -> str | None:
    """Join items that are JSON already into an array, or return None without any."""
    joined = ",".join(items)
    return f"[{joined}]" if joined else None
