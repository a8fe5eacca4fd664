"""The value of a setting, parsed from the text of a file, a flag or a variable."""

import re
import types
import typing
from enum import Enum
from pathlib import Path
from typing import Any

from ingero.core.setting import Setting
from ingero.core.units import parse_duration_s, parse_size_bytes
from ingero.errors import ConfigError
from ingero.storage.caller import home
from ingero.transport.listen import parse_address

LOG_LEVELS = ("debug", "info", "warning", "error")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def parse_value(text: str, hint: Any, setting: Setting) -> Any:
    """Return the value that `text` states for a field of type `hint`; raise ValueError."""
    if setting.duration:
        return parse_duration_s(text)
    if setting.size:
        return parse_size_bytes(text)
    if hint is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError(f"must be true or false, not {text!r}")
        return text.lower() == "true"
    if hint in (int, float):
        if not _NUMBER.fullmatch(text) or (hint is int and not text.lstrip("+-").isdigit()):
            kind = "a whole number" if hint is int else "a number"
            raise ValueError(f"must be {kind}, not {text!r}")
        return hint(text)
    if isinstance(hint, type) and issubclass(hint, Enum):
        if text not in choices_of(hint, setting):
            allowed = ", ".join(choices_of(hint, setting))
            raise ValueError(f"must be one of {allowed}, not {text!r}")
        return hint(text)
    if hint is Path:
        if "\0" in text:
            raise ValueError(f"{text!r} is not a path")
        return home() / text[2:] if text.startswith("~/") else Path(text).expanduser()
    return text


def choices_of(hint: Any, setting: Setting) -> tuple[str, ...]:
    """Return the words that a setting accepts; empty where it accepts more than a list of them."""
    if isinstance(hint, type) and issubclass(hint, Enum):
        return tuple(str(member.value) for member in hint)
    return setting.choices or ()


def required_type(hint: Any) -> Any:
    """Return the type of `X | None` without its None; unions of sections give their first."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return next(arm for arm in typing.get_args(hint) if arm is not type(None))
    return hint


def check_address(key: str, address: str) -> None:
    """Raise ConfigError that names the setting where `address` is not one to listen on."""
    try:
        parse_address(address)
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from None
