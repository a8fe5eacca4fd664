"""The effective configuration: a file, then environment variables, then flags; the last wins."""

import typing
from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from ingero.config.loader import Given, default_of, load_file, load_text
from ingero.config.values import required_type
from ingero.core.setting import Setting, declared, key_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Entry:
    """One setting of a configuration: its key from the root (`fleet.timeout`), type and default."""

    key: str
    type: Any
    default: Any
    setting: Setting
    is_required: bool


def entries_of(cls: type, default: Any = None, below: str = "") -> Iterator[Entry]:
    """Yield every setting of a configuration, in the order in which it is declared."""
    hints = typing.get_type_hints(cls)
    for field in fields(cls):
        inner = required_type(hints[field.name])
        value = getattr(default, field.name) if default is not None else default_of(field)
        key = f"{below}{key_of(field)}"
        if is_dataclass(inner):
            yield from entries_of(typing.cast(type, inner), value, f"{key}.")
        elif declared(field).components:
            for name, component in value.items():
                yield from entries_of(type(component), component, f"{key}.{name}.")
        else:
            yield Entry(key, inner, value, declared(field), _is_required(field))


def entry_of(cls: type, key: str) -> Entry:
    """Return the setting with this key."""
    return next(entry for entry in entries_of(cls) if entry.key == key)


def merged(
    cls: type[T],
    path: Path | None,
    environ: Mapping[str, str],
    flags: Mapping[str, Any],
    without: Mapping[str, str] | None = None,
) -> T:
    """Return the settings of a file with variables and flags laid over it. Raises ConfigError.

    `flags` are named as click names parameters; None is a flag that was not given. `without` are
    sections that a flag switches off, by key.
    """
    given = {key: Given(None, flag) for key, flag in (without or {}).items()}
    for entry in entries_of(cls):
        setting = entry.setting
        if setting.env and environ.get(setting.env):
            given[entry.key] = Given(environ[setting.env], f"${setting.env}")
        if setting.token_env and environ.get(setting.token_env):
            # the token itself is in the variable, so that the file of the configuration is not read
            given[entry.key] = Given(None, f"${setting.token_env}")
        if setting.flag and (value := flags.get(setting.parameter or "")) is not None:
            given[entry.key] = Given(value, setting.flag.partition("/")[0])
    return load_text(cls, "", "", given) if path is None else load_file(cls, path, given)


def _is_required(field: Field[Any]) -> bool:
    return field.default is field.default_factory  # both are missing
