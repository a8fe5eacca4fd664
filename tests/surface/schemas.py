"""Fields of requests and answers as lines of text, from the JSON Schema of their types."""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec


def field_lines(section: str, types: Iterable[type]) -> Iterator[str]:
    """Yield one line per field of these types and of every type that they contain."""
    _, definitions = msgspec.json.schema_components(tuple(types), ref_template="{name}")
    for name, schema in definitions.items():
        yield from schema_lines(f"{section} {name}", schema)


def schema_lines(name: str, schema: dict[str, Any]) -> Iterator[str]:
    """Yield one line per property of an object, or one line for anything else."""
    if "properties" not in schema:
        yield f"{name}: {type_text(schema)}"
        return
    required = schema.get("required", ())
    for key, inner in schema["properties"].items():
        presence = "required" if key in required else "optional"
        yield f"{name}.{key}: {type_text(inner)}, {presence}"


def type_text(schema: dict[str, Any]) -> str:
    """Return a type in words: `integer`, `array of Node`, `string or null`."""
    if "$ref" in schema:
        return str(schema["$ref"])
    if "anyOf" in schema:
        return " or ".join(type_text(inner) for inner in schema["anyOf"])
    if "enum" in schema:
        return "|".join(str(value) for value in schema["enum"])
    if "const" in schema:
        return f"always {schema['const']}"
    kind = str(schema.get("type", "anything"))
    if kind == "array" and "items" in schema:
        return f"array of {type_text(schema['items'] or {})}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"{kind} of {type_text(schema['additionalProperties'])}"
    if "properties" in schema:
        return f"{kind} with {', '.join(schema['properties'])}"
    return kind
