"""A tool: one typed question, offered over HTTP, over MCP and as a `key=value` command."""

import difflib
import inspect
import typing
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import msgspec

from ingero.errors import IngeroError
from ingero.transport.tools.complaint import complaint

Context = TypeVar("Context")
LONGEST_NAME: Final = 200


class ToolRefused(IngeroError):
    """A question that cannot be answered: `code` for programs, a message, an HTTP `status`.

    `choices` are values of which the question must name one.
    """

    def __init__(
        self,
        code: str,
        message: str,
        status: int = 400,
        retry_after_s: int | None = None,
        choices: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message)
        self.choices = choices
        self.code = code
        self.status = status
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class Tool(Generic[Context]):
    """One question: its input, its output and the function that answers.

    The docstring of `answer` tells an assistant when to ask. A tool that `acts` changes something,
    so assistants ask their user first.
    """

    name: str
    input: type[msgspec.Struct]
    output: type[msgspec.Struct]
    answer: Callable[[Context, Any], Awaitable[Any]]
    to_text: Callable[[Any], str] | None = None
    acts: bool = False

    @property
    def description(self) -> str:
        return inspect.getdoc(self.answer) or ""

    @property
    def summary(self) -> str:
        return self.description.split("\n", 1)[0]


def tool(
    name: str,
    answer: Callable[[Context, Any], Awaitable[Any]],
    to_text: Callable[[Any], str] | None = None,
    *,
    acts: bool = False,
) -> Tool[Context]:
    """Return the tool of an async function `(context, Question) -> Answer` of msgspec structs."""
    hints = typing.get_type_hints(answer)
    question = list(inspect.signature(answer).parameters)[1]
    return Tool(name, hints[question], hints["return"], answer, to_text, acts)


async def call(
    asked: Tool[Context], context: Context, arguments: Mapping[str, Any], *, lax: bool = False
) -> msgspec.Struct:
    """Answer one question; raise ToolRefused with the name of a wrong argument.

    `lax` also reads numbers, lists and objects from text.
    """
    unknown = set(arguments) - {field.encode_name for field in msgspec.structs.fields(asked.input)}
    if unknown:
        known = (
            ", ".join(field.encode_name for field in msgspec.structs.fields(asked.input)) or "none"
        )
        raise ToolRefused(
            "bad_argument",
            f"{asked.name} has no argument {sorted(unknown)[0]!r}; it takes: {known}",
        )
    given = _whole_numbers(arguments)
    if lax:
        given = _from_text(given, asked.input)
    try:
        question = msgspec.convert(given, asked.input, strict=not lax)
    except msgspec.ValidationError as error:
        properties = self_contained_schema(asked.input).get("properties", {})
        wrong = complaint(properties, str(error), given)
        raise ToolRefused("bad_argument", f"{asked.name}: {wrong}") from None
    return typing.cast(msgspec.Struct, await asked.answer(context, question))


def _whole_numbers(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Convert 5.0 to 5, because JSON Schema counts both as integers."""
    return {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in arguments.items()
    }


def _from_text(arguments: Mapping[str, Any], kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Decode lists and objects of a command line: `pids=42`, `custom_details={"job": "a"}`."""
    found = dict(arguments)
    for field in msgspec.structs.fields(kind):
        value = found.get(field.encode_name)
        plain = (
            typing.get_args(field.type)[0]
            if typing.get_origin(field.type) is typing.Annotated
            else field.type
        )
        if (
            isinstance(value, str)
            and typing.get_origin(plain) is list
            and not value.startswith("[")
        ):
            found[field.encode_name] = [value]
        elif isinstance(value, str) and typing.get_origin(plain) in (list, dict):
            try:
                found[field.encode_name] = msgspec.json.decode(value)
            except msgspec.DecodeError as error:
                raise ToolRefused(
                    "bad_argument", f"{field.encode_name} is not JSON: {error}"
                ) from None
    return found


def by_name(tools: Iterable[Tool[Context]], name: str) -> Tool[Context]:
    """Return the tool of that name; raise ToolRefused with the names there are."""
    listed = list(tools)
    for candidate in listed:
        if candidate.name == name:
            return candidate
    names = [tool.name for tool in listed]
    if len(name) > LONGEST_NAME:  # comparing it would take long
        raise ToolRefused("unknown_tool", f"no tool has a name of {len(name)} characters", 404)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]}?" if close else f"there are: {', '.join(names)}"
    raise ToolRefused("unknown_tool", f"no tool {name!r}; {hint}", status=404)


def parse_pairs(pairs: Iterable[str]) -> dict[str, Any]:
    """Parse `key=value` arguments of a command line; a repeated key makes a list."""
    arguments: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ToolRefused("bad_argument", f"{pair!r} is not key=value")
        if key in arguments:
            earlier = arguments[key]
            arguments[key] = [*(earlier if isinstance(earlier, list) else [earlier]), value]
        else:
            arguments[key] = value
    return arguments


def schemas(
    types: Iterable[type], reference: str = "#/$defs/{name}"
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the JSON Schemas (2020-12) of several types, and their shared definitions."""
    found, definitions = msgspec.json.schema_components(tuple(types), ref_template=reference)
    return list(found), definitions


def self_contained_schema(of: type) -> dict[str, Any]:
    """Return one schema without outside references, with an object at the top, for MCP."""
    (schema,), definitions = schemas([of])
    top = definitions.pop(schema["$ref"].rsplit("/", 1)[-1]) if "$ref" in schema else schema
    return {**top, "$defs": definitions} if definitions else top
