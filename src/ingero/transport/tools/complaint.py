"""What is wrong with an argument of a question, in words instead of those of msgspec."""

import re
from collections.abc import Mapping
from typing import Any, Final

Properties = Mapping[str, Mapping[str, Any]]  # of a JSON Schema, by name

_KINDS: Final = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
}
_MISSING: Final = re.compile(r"Object missing required field `(\w+)`(?: - at `\$\.(\w+)[^`]*`)?$")
_EXPECTED: Final = re.compile(
    r"Expected `(?P<kinds>[^`]+)`(?P<length> of length)?"
    r"(?: (?P<sign>>=|<=|>|<) (?P<bound>\S+))?(?P<pattern> matching regex .*)?(?:, got `[^`]+`)?"
    r" - at `\$\.(?P<name>\w+)[^`]*`$",
    re.DOTALL,
)
_CHOICE: Final = re.compile(r"Invalid enum value .* - at `\$\.(?P<name>\w+)[^`]*`$", re.DOTALL)
_SIGNS: Final = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}
_SHOWN: Final = 60  # characters of a value


def complaint(properties: Properties, error: str, given: Mapping[str, Any]) -> str:
    """Return what is wrong with the arguments, what would be right, and what it is for."""
    if missing := _MISSING.match(error):
        if missing[2]:  # of an object that is an argument
            return f"{missing[2]} needs the field {missing[1]}{_meaning(properties, missing[2])}"
        return f"give {missing[1]}{_meaning(properties, missing[1])}"
    if wrong := _EXPECTED.match(error):
        name = wrong["name"]
        rule = "cannot be" if wrong["pattern"] else f"must be {_wanted(wrong)}, not"
        return f"{name} {rule} {_value(given, name)}{_meaning(properties, name)}"
    if wrong := _CHOICE.match(error):
        name = wrong["name"]
        there = ", ".join(map(str, _property(properties, name).get("enum", ())))
        rest = f"; there are: {there}" if there else ""
        return f"{name} cannot be {_value(given, name)}{rest}{_meaning(properties, name)}"
    return error


def _wanted(wrong: re.Match[str]) -> str:
    kinds = [_KINDS.get(kind, kind) for kind in wrong["kinds"].split(" | ") if kind != "null"]
    if not wrong["sign"]:
        return " or ".join(kinds)
    of = " of a length of " if wrong["length"] else " of "
    return f"{' or '.join(kinds)}{of}{_SIGNS[wrong['sign']]} {wrong['bound']}"


def _value(given: Mapping[str, Any], name: str) -> str:
    text = repr(given.get(name))
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def _property(properties: Properties, name: str) -> Mapping[str, Any]:
    found = properties.get(name, {})
    for part in found.get("anyOf", ()):
        if "enum" in part or "description" in part:
            return {**part, **found}
    return found


def _meaning(properties: Properties, name: str) -> str:
    """Return what the argument is for."""
    text = _property(properties, name).get("description")
    return f"; {name}: {text}" if text else ""
