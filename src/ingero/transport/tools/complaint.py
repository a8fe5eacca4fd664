"""Explains in plain words what is wrong with an argument of a question."""

import re
from collections.abc import Mapping
from typing import Any, Final

Properties = Mapping[str, Mapping[str, Any]]  # of a JSON Schema, by name
Path = tuple[str | int | None, ...]  # fields, positions, and None for a key that msgspec hides

_KINDS: Final = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
}
_PLACE: Final = re.compile(r" - at (?P<key>`key` in )?`\$(?P<path>[^`]*)`\Z")
_STEP: Final = re.compile(r"\.(?P<name>\w+)|\[(?P<position>\d+)\]|\[\.\.\.\]")
_MISSING: Final = re.compile(r"Object missing required field `(\w+)`\Z")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*)`\Z", re.DOTALL)
_EXPECTED: Final = re.compile(
    r"Expected `(?P<kinds>[^`]+)`(?P<length> of length)?"
    r"(?: (?P<sign>>=|<=|>|<)? ?(?P<bound>\d\S*?))?(?: that's a multiple of (?P<step>\S+?))?"
    r"(?P<pattern> matching regex .*)?(?:, got .*)?\Z",
    re.DOTALL,
)
_SIGNS: Final = {">=": "at least ", "<=": "at most ", ">": "more than ", "<": "less than "}
_SHOWN: Final = 60  # characters of a value


def complaint(properties: Properties, error: str, given: Mapping[str, Any]) -> str:
    """Return what is wrong with the arguments, what would fit, and what the argument is for."""
    place = _PLACE.search(error)
    text = error[: place.start()] if place else error
    path = _path(place["path"]) if place else ()
    name = _name(path)
    if missing := _MISSING.match(text):
        if path:  # of an object that is an argument, or is in one
            return f"{name} needs the field {missing[1]}{_meaning(properties, path)}"
        return f"give {missing[1]}{_meaning(properties, (missing[1],))}"
    if unknown := _UNKNOWN.match(text):
        return f"{name or 'it'} has no field {_shown(unknown[1])}{_meaning(properties, path)}"
    if not place:
        return error
    value = "" if place["key"] else _value(given, path)
    if place["key"]:
        name = f"a key of {name}"
    if (wrong := _EXPECTED.match(text)) and not wrong["pattern"]:
        instead = f", not {value}" if value else ""
        return f"{name} must be {_wanted(wrong)}{instead}{_meaning(properties, path)}"
    if not wrong and not text.startswith("Invalid"):
        return error
    there = ", ".join(map(str, _schema(properties, path).get("enum", ())))
    rest = f"; there are: {there}" if there else ""
    return f"{name} cannot be {value or 'what was given'}{rest}{_meaning(properties, path)}"


def _path(text: str) -> Path:
    steps = _STEP.finditer(text)
    return tuple(
        step["name"] or (None if step["position"] is None else int(step["position"]))
        for step in steps
    )


def _name(path: Path) -> str:
    """Return how a place in the arguments is written, such as `pids[0]`."""
    parts = [
        f".{step}" if isinstance(step, str) else f"[{'…' if step is None else step}]"
        for step in path
    ]
    return "".join(parts).removeprefix(".")


def _wanted(wrong: re.Match[str]) -> str:
    kinds = [_KINDS.get(kind, kind) for kind in wrong["kinds"].split(" | ") if kind != "null"]
    wanted = " or ".join(kinds) or "left out"
    if wrong["step"]:
        return f"{wanted} that is a multiple of {wrong['step']}"
    if not wrong["bound"]:
        return wanted
    of = " of a length of " if wrong["length"] else " of "
    return f"{wanted}{of}{_SIGNS.get(wrong['sign'], '')}{wrong['bound']}"


def _value(given: Any, path: Path) -> str:
    """Return the value at a place of the arguments; empty if the place is not known."""
    for step in path:
        try:
            given = given[step]
        except (KeyError, IndexError, TypeError):
            return ""
    return _shown(given)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def _schema(properties: Properties, path: Path) -> Mapping[str, Any]:
    """Return the schema of a place in the arguments; empty where there is none."""
    found: Mapping[str, Any] = {"properties": properties}
    for step in path:
        found = _one_of(_inner(found, step))
    return found


def _inner(schema: Mapping[str, Any], step: str | int | None) -> Mapping[str, Any]:
    if isinstance(step, str):
        found = schema.get("properties", {}).get(step, {})
    else:
        found = schema.get("items", schema.get("additionalProperties", {}))
    return found if isinstance(found, Mapping) else {}


def _one_of(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema merged with its first alternative that is not null."""
    for part in schema.get("anyOf", ()):
        if part.get("type") != "null":
            return {**part, **schema}
    return schema


def _meaning(properties: Properties, path: Path) -> str:
    """Return what the argument is for."""
    text = _schema(properties, path[:1]).get("description")
    return f"; {path[0]}: {text}" if text else ""
