"""YAML to frozen dataclasses: a wrong key, type or value is an error that names file, line, key and what is allowed.

A field may carry metadata: ``key`` (its name in the file), ``range`` (inclusive low and high, None is open),
``choices``, ``duration`` (`10s`, `1h30m`, seconds), ``size`` (`10g`, bytes) and ``components`` (a mapping whose keys
are a type or `type/name`, each with its own settings). Core policies annotate themselves the same way, so a range is
written once, beside the number it limits. A complaint of a dataclass that begins with `field: ` is put on that line.
"""

import dataclasses
import difflib
import re
import types
import typing
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

import yaml

from ingero.core.units import parse_duration_s, parse_size_bytes
from ingero.errors import ConfigError
from ingero.storage.caller import home
from ingero.transport.listen import parse_address

T = TypeVar("T")
MAX_CONFIG_BYTES = 1 << 20
LOG_LEVELS = ("debug", "info", "warning", "error")


def setting(
    default: Any,
    *,
    key: str | None = None,
    range: tuple[float | None, float | None] | None = None,
    choices: tuple[str, ...] | None = None,
    duration: bool = False,
    size: bool = False,
    components: Mapping[str, type] | None = None,
) -> Any:
    """A dataclass field that the loader checks."""
    limits = {
        "range": range,
        "choices": choices,
        "duration": duration,
        "size": size,
        "components": components,
    }
    metadata = {"key": key, **limits}
    if isinstance(default, list | dict) or dataclasses.is_dataclass(default):
        return dataclasses.field(default_factory=lambda: default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def load_file(cls: type[T], path: Path) -> T:
    """Read one configuration file."""
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise ConfigError(
                f"{path} is larger than {MAX_CONFIG_BYTES} bytes; this is not a configuration file"
            )
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text") from None
    return load_text(cls, text, str(path))


def load_text(cls: type[T], text: str, source: str) -> T:
    """Build `cls` from YAML text; `source` is named in errors."""
    try:
        root = yaml.compose(
            text, Loader=yaml.CSafeLoader if hasattr(yaml, "CSafeLoader") else yaml.SafeLoader
        )
        return cls() if root is None else typing.cast(T, _Reader(source).value(root, cls, "", {}))
    except (yaml.YAMLError, RecursionError) as error:
        raise yaml_complaint(source, error) from None


def yaml_complaint(source: str, error: Exception) -> ConfigError:
    """What is wrong with text that is not YAML, in one line, with its place where that is known."""
    if isinstance(error, RecursionError):
        return ConfigError(f"{source}: nested too deeply")
    mark = getattr(error, "problem_mark", None)
    where = f"{source}:{mark.line + 1}" if mark else source
    problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
    return ConfigError(f"{where}: not valid YAML: {problem}")


def check_address(key: str, address: str) -> None:
    """Raises ConfigError that names the setting."""
    try:
        parse_address(address)
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from None


def to_mapping(config: Any) -> dict[str, Any]:
    """The effective configuration as the file would say it, for `--print-config`."""
    result: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        name = field.metadata.get("key") or field.name
        if dataclasses.is_dataclass(value):
            result[name] = to_mapping(value)
        elif isinstance(value, Mapping):
            result[name] = {
                k: to_mapping(v) if dataclasses.is_dataclass(v) else v for k, v in value.items()
            }
        elif isinstance(value, tuple | list):
            result[name] = [
                to_mapping(item) if dataclasses.is_dataclass(item) else item for item in value
            ]
        elif field.metadata.get("duration") and value is not None:
            result[name] = f"{value:.12g}s"
        elif isinstance(value, Enum | Path):
            result[name] = str(value)
        elif value is not None:
            result[name] = value
    return result


class _Reader:
    """Walks YAML nodes along type hints, so that every complaint knows its line."""

    def __init__(self, source: str) -> None:
        self.source = source

    def fail(self, node: yaml.Node, key: str, problem: str) -> ConfigError:
        where = f"{self.source}:{node.start_mark.line + 1}"
        return ConfigError(f"{where}: {key}: {problem}" if key else f"{where}: {problem}")

    def value(self, node: yaml.Node, hint: Any, key: str, metadata: Mapping[str, Any]) -> Any:
        origin = typing.get_origin(hint)
        if origin in (typing.Union, types.UnionType):
            arms = [arm for arm in typing.get_args(hint) if arm is not type(None)]
            if (
                isinstance(node, yaml.ScalarNode)
                and node.tag.endswith(":null")
                and not dataclasses.is_dataclass(arms[0])
            ):
                return None
            return self.value(node, arms[0], key, metadata)
        if hint is object:  # a block that is somebody else's: taken as it is
            return _plain(node)
        if dataclasses.is_dataclass(hint):
            return self.dataclass(node, typing.cast(type, hint), key)
        if origin in (list, tuple):
            return self.sequence(node, hint, key, metadata)
        if origin in (dict, Mapping):
            return self.mapping(node, typing.get_args(hint)[1], key, metadata.get("components"))
        return self.scalar(node, hint, key, metadata)

    def dataclass(self, node: yaml.Node, cls: type, key: str) -> Any:
        hints = typing.get_type_hints(cls)
        fields = {
            field.metadata.get("key") or field.name: field for field in dataclasses.fields(cls)
        }
        values = {}
        for name, name_node, child in self.pairs(node, key):
            path = f"{key}.{name}" if key else name
            if name not in fields:
                close = difflib.get_close_matches(name, fields, n=1)
                hint = (
                    f"did you mean {close[0]}?"
                    if close
                    else f"allowed: {', '.join(sorted(fields))}"
                )
                raise self.fail(name_node, path, f"unknown key; {hint}")
            field = fields[name]
            values[field.name] = self.value(child, hints[field.name], path, field.metadata)
        try:
            return cls(**values)
        except (ConfigError, ValueError) as error:
            raise self.complaint(node, key, str(error)) from None
        except TypeError:
            required = [
                name for name, f in fields.items() if _is_required(f) and f.name not in values
            ]
            raise self.fail(node, key, f"missing: {', '.join(required)}") from None

    def complaint(self, node: yaml.Node, key: str, problem: str) -> ConfigError:
        """What a dataclass said about its values, on the line of the field it named first."""
        path, separator, rest = problem.partition(": ")
        found: yaml.Node | None = node
        for name in path.split(".") if separator else ():
            children = found.value if isinstance(found, yaml.MappingNode) else ()
            found = next((child for name_node, child in children if name_node.value == name), None)
        if not separator or found is None:
            return self.fail(node, key, problem)
        return self.fail(found, f"{key}.{path}" if key else path, rest)

    def pairs(self, node: yaml.Node, key: str) -> list[tuple[str, yaml.Node, yaml.Node]]:
        if isinstance(node, yaml.ScalarNode) and node.tag.endswith(":null"):
            return []  # `otlp:` with nothing below it means its defaults
        if not isinstance(node, yaml.MappingNode):
            raise self.fail(node, key, "must be a mapping of keys to values")
        seen: set[str] = set()
        result = []
        for name_node, child in node.value:
            name = str(name_node.value)
            if name in seen:
                raise self.fail(name_node, f"{key}.{name}" if key else name, "given twice")
            seen.add(name)
            result.append((name, name_node, child))
        return result

    def sequence(self, node: yaml.Node, hint: Any, key: str, metadata: Mapping[str, Any]) -> Any:
        if not isinstance(node, yaml.SequenceNode):
            raise self.fail(node, key, "must be a list")
        item = typing.get_args(hint)[0]
        values = [
            self.value(child, item, f"{key}[{i}]", metadata) for i, child in enumerate(node.value)
        ]
        return tuple(values) if typing.get_origin(hint) is tuple else values

    def mapping(
        self, node: yaml.Node, hint: Any, key: str, components: Mapping[str, type] | None = None
    ) -> dict[str, Any]:
        values = {}
        for name, name_node, child in self.pairs(node, key):
            if components is not None:
                kind, slash, suffix = name.partition("/")
                if kind not in components or (slash and not suffix.strip()):
                    allowed = ", ".join(sorted(components))
                    raise self.fail(
                        name_node,
                        f"{key}.{name}",
                        f"unknown; allowed: {allowed}, each also as TYPE/NAME",
                    )
                hint = components[kind]
            values[name] = self.value(child, hint, f"{key}.{name}", {})
        return values

    def scalar(self, node: yaml.Node, hint: Any, key: str, metadata: Mapping[str, Any]) -> Any:
        if not isinstance(node, yaml.ScalarNode):
            raise self.fail(node, key, "must be a single value, not a list or mapping")
        try:
            value = _parse_scalar(node, hint, metadata)
        except ValueError as error:
            raise self.fail(node, key, str(error)) from None
        check_limits(value, metadata, lambda problem: self.fail(node, key, problem))
        return value


def _plain(node: yaml.Node) -> object:
    if isinstance(node, yaml.MappingNode):
        return {str(name.value): _plain(child) for name, child in node.value}
    if isinstance(node, yaml.SequenceNode):
        return [_plain(child) for child in node.value]
    return node.value


def _parse_scalar(node: yaml.ScalarNode, hint: Any, metadata: Mapping[str, Any]) -> Any:
    text = node.value
    if metadata.get("duration"):
        return parse_duration_s(text)
    if metadata.get("size"):
        return parse_size_bytes(text)
    if hint is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError(f"must be true or false, not {text!r}")
        return text.lower() == "true"
    if hint in (int, float):
        if not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text) or (
            hint is int and not text.lstrip("+-").isdigit()
        ):
            raise ValueError(
                f"must be {'a whole number' if hint is int else 'a number'}, not {text!r}"
            )
        return hint(text)
    if isinstance(hint, type) and issubclass(hint, Enum):
        if text not in [member.value for member in hint]:
            raise ValueError(
                f"must be one of {', '.join(str(m.value) for m in hint)}, not {text!r}"
            )
        return hint(text)
    if hint is Path:
        return home() / text[2:] if text.startswith("~/") else Path(text).expanduser()
    return text


def check_limits(
    value: Any, metadata: Mapping[str, Any], fail: typing.Callable[[str], ConfigError]
) -> None:
    """Raise what `fail` makes of the complaint when a value is outside its field's choices or range."""
    if (choices := metadata.get("choices")) and value not in choices:
        raise fail(f"must be one of {', '.join(choices)}, not {value!r}")
    if limits := metadata.get("range"):
        low, high = limits
        if (low is not None and value < low) or (high is not None and value > high):
            unit = "s" if metadata.get("duration") else ""
            least, most = (
                f"{low:g}{unit}" if low is not None else "",
                f"{high:g}{unit}" if high is not None else "",
            )
            allowed = (
                f"{least} to {most}"
                if least and most
                else f"at least {least}"
                if least
                else f"at most {most}"
            )
            raise fail(f"{value:g}{unit} is out of range; allowed: {allowed}")


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
