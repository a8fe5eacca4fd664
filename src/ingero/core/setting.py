"""The declaration of a setting: everything that files, flags, help texts and errors need to know.

A setting is a field of a frozen dataclass. Its type, default, unit, range, help text, flag and
environment variable are written once, in `setting(...)`; the loader, the command-line options and
the tables of docs/configuration.md are derived from it.
"""

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from enum import Enum
from typing import Any

from ingero.core.units import format_duration, format_size
from ingero.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is declared about one field, besides its type and default."""

    key: str | None = None  # name in the file, where it differs from the field's
    help: str = ""
    flag: str | None = None
    env: str | None = None  # variable that holds the value; it wins over the file
    token_env: str | None = None  # variable that holds the token which the file would hold
    computed: str | None = None  # words for a default that is computed when it is needed
    metavar: str | None = None
    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    choices: tuple[str, ...] | None = None
    duration: bool = False
    size: bool = False
    components: Mapping[str, type] | None = None  # keys are TYPE or TYPE/NAME
    elsewhere: Mapping[str, str] | None = None  # types that are refused, and what to do instead

    @property
    def parameter(self) -> str | None:
        """The name under which click passes the flag's value."""
        return self.flag and self.flag.partition("/")[0].lstrip("-").replace("-", "_")

    def text(self, value: Any) -> str:
        """Return a value as a file or a flag would state it, with its unit."""
        if isinstance(value, Enum):
            value = value.value
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, tuple | list):
            return ", ".join(self.text(each) for each in value)
        if self.duration:
            return format_duration(value)
        if self.size:
            return format_size(value)
        return f"{value:.12g}" if isinstance(value, float) else str(value)

    def allowed(self) -> str:
        """Return the range in words, `1s to 1h` or `0 to below 0.5`; empty where all is allowed."""
        low = self.text(self.least) if self.least is not None else ""
        high = self.text(self.most) if self.most is not None else ""
        if self.above is not None:
            low = f"above {self.text(self.above)}"
        if self.below is not None:
            high = f"below {self.text(self.below)}"
        if not high:
            return low if self.above is not None else f"{low} or more" if low else ""
        if not low:
            return high if self.below is not None else f"at most {high}"
        if self.above is None:
            return f"{low} to {high}"
        return f"{low} and {high}" if self.below is not None else f"{low}, at most {high}"

    def problem(self, value: Any) -> str | None:
        """Return what is wrong with a value, or None; NaN is outside of every range."""
        if self.choices and value not in self.choices:
            return f"must be one of {', '.join(self.choices)}, not {value!r}"
        if (
            (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        ):
            return None
        return f"{self.text(value)} is out of range; allowed: {self.allowed()}"


_UNDECLARED = Setting()


def setting(
    default: Any = MISSING,
    *,
    range: tuple[float | None, float | None] = (None, None),
    **declared: Any,
) -> Any:
    """Declare a dataclass field as a setting; `range` is inclusive, `above` and `below` are not."""
    least, most = range
    metadata = {"setting": Setting(least=least, most=most, **declared)}
    if isinstance(default, list | dict) or is_dataclass(default):
        return field(default_factory=lambda: default, metadata=metadata)
    return field(default=default, metadata=metadata)


def same_setting(policy: type, name: str) -> Any:
    """Declare a field exactly as `policy` declares its own: default, range, help and all."""
    other = next(each for each in fields(policy) if each.name == name)
    return field(default=other.default, metadata=other.metadata)


def declared(field: Field[Any]) -> Setting:
    """Return what is declared about a field."""
    found: Setting = field.metadata.get("setting", _UNDECLARED)
    return found


def key_of(field: Field[Any]) -> str:
    """Return a field's name in a configuration file."""
    return declared(field).key or field.name


def check_settings(policy: Any) -> None:
    """Raise ConfigError that names the first setting of a policy outside its range."""
    for each in fields(policy):
        problem = declared(each).problem(getattr(policy, each.name))
        if problem is not None:
            raise ConfigError(f"{key_of(each)}: {problem}")
