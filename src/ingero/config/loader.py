"""YAML files become frozen dataclasses; errors name file, line, key and what is allowed.

What a field accepts is declared by `ingero.core.setting.setting`. Values that come from flags and
environment variables are laid over the file before a dataclass checks how its fields fit together,
so that a flag can complete a file. An error of a dataclass that begins with `field: ` is reported
on the line of that field, or with the name of its flag.
"""

import dataclasses
import typing
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

import yaml

from ingero.config.values import parse_value, required_type
from ingero.core.setting import Setting, declared, key_of
from ingero.errors import ConfigError

T = TypeVar("T")
MAX_CONFIG_BYTES = 1 << 20
_MAX_DEPTH = 100
_PLAIN = Setting()


@dataclasses.dataclass(frozen=True, slots=True)
class Given:
    """A value that wins over the file's, and the flag or variable it came from."""

    value: Any
    source: str


def load_file(cls: type[T], path: Path, given: Mapping[str, Given] | None = None) -> T:
    """Read one configuration file, with `given` values (by key, `fleet.timeout`) laid over it."""
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
    return load_text(cls, text, str(path), given)


def load_text(cls: type[T], text: str, source: str, given: Mapping[str, Given] | None = None) -> T:
    """Build `cls` from YAML text, with `given` laid over it; `source` is named in errors."""
    loader = yaml.CSafeLoader if hasattr(yaml, "CSafeLoader") else yaml.SafeLoader
    try:
        _require_shallow(yaml.parse(text, Loader=loader))
        root = yaml.compose(text, Loader=loader)
        return typing.cast(T, _Reader(source, given or {}).value(root, cls, "", _PLAIN))
    except (yaml.YAMLError, RecursionError) as error:
        raise yaml_complaint(source, error) from None


def _require_shallow(events: Iterable[object]) -> None:
    """Raise RecursionError for deep nesting, by which the compiled composer would crash."""
    depth = 0
    for event in events:
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_DEPTH:
            raise RecursionError


def yaml_complaint(source: str, error: Exception) -> ConfigError:
    """Return one line about text that is not YAML, with the line number where that is known."""
    if isinstance(error, RecursionError):
        return ConfigError(f"{source}: nested too deeply")
    mark = getattr(error, "problem_mark", None)
    where = f"{source}:{mark.line + 1}" if mark else source
    problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
    return ConfigError(f"{where}: not valid YAML: {problem}")


def to_mapping(config: Any) -> dict[str, Any]:
    """Return the effective configuration as a file would state it, for `--print-config`."""
    result: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value, name = getattr(config, field.name), key_of(field)
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
        elif declared(field).duration and value is not None:
            result[name] = f"{value:.12g}s"
        elif isinstance(value, Enum | Path):
            result[name] = str(value)
        elif value is not None:
            result[name] = value
    return result


def default_of(field: dataclasses.Field[Any]) -> Any:
    """Return the default of a field; None where it has none."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None if field.default is dataclasses.MISSING else field.default


class _Reader:
    """Walks YAML nodes along type hints, so that every error has its line.

    A node is None where the file does not have the section and a value below it is given.
    """

    def __init__(self, source: str, given: Mapping[str, Given]) -> None:
        self.source = source
        self.given = given

    def fail(self, node: yaml.Node | None, key: str, problem: str) -> ConfigError:
        where = f"{self.source}:{node.start_mark.line + 1}" if node is not None else ""
        return ConfigError(": ".join(part for part in (where, key, problem) if part))

    def value(
        self, node: yaml.Node | None, hint: Any, key: str, setting: Setting, default: Any = None
    ) -> Any:
        inner = required_type(hint)
        is_null = isinstance(node, yaml.ScalarNode) and node.tag.endswith(":null")
        if inner is not hint and is_null and not dataclasses.is_dataclass(inner):
            return None
        origin = typing.get_origin(inner)
        if dataclasses.is_dataclass(inner):
            return self.section(node, typing.cast(type, inner), key, default)
        if origin in (dict, Mapping):
            hint_of_items = typing.get_args(inner)[1]
            return self.mapping(node, hint_of_items, key, setting, default)
        assert node is not None
        if inner is object:  # a block of another program is kept as it is
            return _plain(node)
        if origin in (list, tuple):
            return self.sequence(node, inner, key, setting)
        return self.scalar(node, inner, key, setting)

    def section(self, node: yaml.Node | None, cls: type, key: str, default: Any) -> Any:
        hints = typing.get_type_hints(cls)
        fields = {key_of(field): field for field in dataclasses.fields(cls)}
        node = _in_full(node, cls)
        values: dict[str, Any] = {}
        if node is None and default is not None:
            values = {name: getattr(default, name) for name in hints}
        for name, name_node, child in self.pairs(node, key):
            path = f"{key}.{name}" if key else name
            if name not in fields:
                import difflib  # noqa: PLC0415 - only for a file that is wrong

                close = difflib.get_close_matches(name, fields, n=1)
                known = ", ".join(sorted(fields))
                allowed = f"allowed: {known}" if known else f"{key} has no settings here; remove it"
                hint = f"did you mean {close[0]}?" if close else allowed
                raise self.fail(name_node, path, f"unknown key; {hint}")
            field = fields[name]
            values[field.name] = self.value(child, hints[field.name], path, declared(field))
        in_file = {name for name, *_ in self.pairs(node, key)}
        for name, field in fields.items():
            path = f"{key}.{name}" if key else name
            if path in self.given:
                values[field.name] = self.taken(path, hints[field.name], declared(field))
            elif name not in in_file and self.is_given_below(path):
                base = values.get(field.name, default_of(field))
                hint = hints[field.name]
                values[field.name] = self.value(None, hint, path, declared(field), base)
        return self.built(cls, values, node, key)

    def built(self, cls: type, values: dict[str, Any], node: yaml.Node | None, key: str) -> Any:
        try:
            return cls(**values)
        except (ConfigError, ValueError) as error:
            raise self.complaint(node, key, str(error)) from None
        except TypeError:
            missing = [
                key_of(field)
                for field in dataclasses.fields(cls)
                if field.default is field.default_factory is dataclasses.MISSING
                and field.name not in values
            ]
            raise self.fail(node, key, f"missing: {', '.join(missing)}") from None

    def taken(self, path: str, hint: Any, setting: Setting) -> Any:
        """Return a value that a flag or variable gave, by the same rules as the file's."""
        value, source = self.given[path].value, self.given[path].source
        if isinstance(value, str):
            try:
                value = parse_value(value, required_type(hint), setting)
            except ValueError as error:
                raise ConfigError(f"{source}: {error}") from None
        problem = setting.problem(value) if value is not None else None
        if problem is not None:
            raise ConfigError(f"{source}: {problem}")
        return value

    def is_given_below(self, path: str) -> bool:
        return any(other.startswith(f"{path}.") for other in self.given)

    def complaint(self, node: yaml.Node | None, key: str, problem: str) -> ConfigError:
        """Put what a dataclass refused on the flag or line of the field it names first."""
        path, separator, rest = problem.partition(": ")
        full = f"{key}.{path}" if key else path
        if separator and full in self.given:
            return ConfigError(f"{self.given[full].source}: {rest}")
        found = node
        for name in path.split(".") if separator else ():
            children = found.value if isinstance(found, yaml.MappingNode) else ()
            found = next((child for name_node, child in children if name_node.value == name), None)
        if separator and found is not None:
            return self.fail(found, full, rest)
        flags = [
            each.source
            for other, each in self.given.items()
            if other in problem or (key and other.startswith(f"{key}."))
        ]
        where = node if key or not self.given else None  # line 1 would blame the file
        return self.fail(where, key, f"{problem} (with {', '.join(flags)})" if flags else problem)

    def pairs(self, node: yaml.Node | None, key: str) -> list[tuple[str, yaml.Node, yaml.Node]]:
        if node is None or (isinstance(node, yaml.ScalarNode) and node.tag.endswith(":null")):
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

    def sequence(self, node: yaml.Node, hint: Any, key: str, setting: Setting) -> Any:
        if not isinstance(node, yaml.SequenceNode):
            raise self.fail(node, key, "must be a list")
        item = typing.get_args(hint)[0]
        values = [
            self.value(child, item, f"{key}[{i}]", setting) for i, child in enumerate(node.value)
        ]
        return tuple(values) if typing.get_origin(hint) is tuple else values

    def mapping(
        self,
        node: yaml.Node | None,
        hint: Any,
        key: str,
        setting: Setting,
        default: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        components = setting.components
        values = dict(default or {}) if node is None else {}
        nodes = {name: (name_node, child) for name, name_node, child in self.pairs(node, key)}
        below = [path[len(key) + 1 :] for path in self.given if path.startswith(f"{key}.")]
        for name in dict.fromkeys([*nodes, *(path.partition(".")[0] for path in below)]):
            name_node, child = nodes.get(name, (None, None))
            if components is not None:
                kind, slash, suffix = name.partition("/")
                if kind in (setting.elsewhere or {}):
                    raise self.fail(name_node, f"{key}.{name}", (setting.elsewhere or {})[kind])
                if kind not in components or (slash and not suffix.strip()):
                    allowed = f"{', '.join(sorted(components))}, each also as TYPE/NAME"
                    raise self.fail(name_node, f"{key}.{name}", f"unknown; allowed: {allowed}")
                hint = components[kind]
            values[name] = self.value(child, hint, f"{key}.{name}", _PLAIN, values.get(name))
        return values

    def scalar(self, node: yaml.Node, hint: Any, key: str, setting: Setting) -> Any:
        if not isinstance(node, yaml.ScalarNode):
            raise self.fail(node, key, "must be a single value, not a list or mapping")
        try:
            value = parse_value(node.value, hint, setting)
        except ValueError as error:
            raise self.fail(node, key, str(error)) from None
        problem = setting.problem(value)
        if problem is not None:
            raise self.fail(node, key, problem)
        return value


def _in_full(node: yaml.Node | None, cls: type) -> yaml.Node | None:
    """Return a section whose file gives a plain value, its most important setting, in full."""
    short = getattr(cls, "SHORT", None)
    if short is None or not isinstance(node, yaml.ScalarNode) or node.tag.endswith(":null"):
        return node
    marks = node.start_mark, node.end_mark
    name = yaml.ScalarNode("tag:yaml.org,2002:str", short, *marks)
    return yaml.MappingNode("tag:yaml.org,2002:map", [(name, node)], *marks)


def _plain(node: yaml.Node) -> object:
    if isinstance(node, yaml.MappingNode):
        return {str(name.value): _plain(child) for name, child in node.value}
    if isinstance(node, yaml.SequenceNode):
        return [_plain(child) for child in node.value]
    return node.value
