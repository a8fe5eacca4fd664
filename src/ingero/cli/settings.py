"""Command-line options that are derived from settings: name, type, help, default and range."""

from pathlib import Path
from typing import Any

import click

from ingero.cli.params import Decorator, stacked
from ingero.config.ingero import IngeroConfig
from ingero.config.merge import Entry, entries_of, entry_of
from ingero.config.values import choices_of, parse_value
from ingero.core.setting import Setting


def options_of(config: type) -> Decorator:
    """Return one option for each setting with a flag; a flag that is not given is None."""
    return stacked(
        *(
            _option(entry, entry.setting.flag)
            for entry in entries_of(config)
            if entry.setting.flag is not None
        )
    )


def option_of(config: type, key: str, *names: str, **attributes: Any) -> Decorator:
    """Return the option of one setting under the names that a single command uses for it."""
    return _option(entry_of(config, key), *names, **attributes)


def node_option(key: str, *names: str) -> Decorator:
    """Return the option by which a command on a node overrides one setting of `ingero.yaml`."""
    entry = entry_of(IngeroConfig, key)
    return _option(entry, *names, help=f"{entry.setting.help} Wins over `{key}` of ingero.yaml.")


def _option(entry: Entry, *names: str, **attributes: Any) -> Decorator:
    is_flag = entry.type is bool
    kind: Any = bool if is_flag else SettingType(entry)
    defaults = {"help": help_text(entry.setting), "default": None, "is_flag": is_flag}
    return click.option(
        *names, cls=SettingOption, entry=entry, type=kind, **{**defaults, **attributes}
    )


class SettingOption(click.Option):
    """An option whose help ends with the default and range of its setting."""

    def __init__(self, *args: Any, entry: Entry, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.entry = entry

    def get_help_extra(self, ctx: click.Context) -> Any:
        """Return what click shows in brackets behind a help text."""
        setting = self.entry.setting
        extra: dict[str, Any] = {}
        if setting.env:
            extra["envvars"] = (setting.env,)
        if default := default_text(self.entry).replace("`", ""):
            extra["default"] = default
        if setting.allowed():
            extra["range"] = setting.allowed()
        return extra


class SettingType(click.ParamType[Any]):
    """The type of a setting: what its file accepts, its flag accepts, with the same words."""

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        setting, kind = entry.setting, entry.type
        if setting.duration or setting.size:
            self.name = "duration" if setting.duration else "size"
        else:
            self.name = {int: "integer", float: "number", Path: "file"}.get(kind, "text")

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:
        """Return the placeholder of the value, or the list of words that it can be."""
        choices = self.choices()
        return f"[{'|'.join(choices)}]" if choices else self._entry.setting.metavar

    def choices(self) -> tuple[str, ...]:
        """Return the values that the setting may have, if they are few; completion offers them."""
        return choices_of(self._entry.type, self._entry.setting)

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        if not isinstance(value, str):
            return value
        try:
            parsed = parse_value(value, self._entry.type, self._entry.setting)
        except ValueError as error:
            return self.fail(str(error), param, ctx)
        choices = self._entry.setting.choices
        if choices and parsed not in choices:
            return self.fail(f"must be one of {', '.join(choices)}, not {value!r}", param, ctx)
        return parsed


def help_text(setting: Setting) -> str:
    """Return the help of a setting, with the variable that can hold its token."""
    if setting.token_env is None:
        return setting.help
    order = f"A token in {setting.token_env} wins over the file's, the flag over both."
    return f"{setting.help} {order}"


def default_text(entry: Entry) -> str:
    """Return the default as help texts and docs/configuration.md state it; empty for none."""
    if entry.setting.computed is not None:
        return entry.setting.computed
    if entry.default is None or entry.default is False or entry.default in ((), {}):
        return ""
    return entry.setting.text(entry.default)


TRACE_DB = node_option("store.path", "-d", "--db")
LOG_LEVEL = option_of(IngeroConfig, "agent.log_level", "--log-level", default="info")
