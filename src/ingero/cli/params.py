"""What several commands take: durations, sizes, moments, a trace database, JSON, a log level."""

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import click

from ingero.config.values import LOG_LEVELS
from ingero.core.units import parse_duration_s, parse_size_bytes

Decorator: TypeAlias = Callable[[Any], Any]  # click's own are untyped

AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
TRACE_DB = click.option(
    "-d",
    "--db",
    type=click.Path(path_type=Path),
    help="Trace database [default: ~/.ingero/ingero.db].",
)


def log_level_option(default: str | None = "info") -> Decorator:
    """--log-level, for everything that runs as a service."""
    return click.option(
        "--log-level",
        type=click.Choice(LOG_LEVELS),
        default=default,
        help="What goes to standard error.",
    )


def stacked(*options: Decorator) -> Decorator:
    """Several options as one decorator, shown by --help in this order."""

    def apply(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return apply


class Duration(click.ParamType[float]):
    """`500ms`, `10s`, `1h30m`, `2d` as seconds."""

    name = "duration"

    def __init__(self, *, above_zero: bool = False) -> None:
        self._above_zero = above_zero

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, float):
            return value
        try:
            seconds = parse_duration_s(str(value))
        except ValueError as error:
            return self.fail(str(error), param, ctx)
        return (
            seconds
            if seconds or not self._above_zero
            else self.fail("must be longer than nothing", param, ctx)
        )


class Size(click.ParamType[int]):
    """`500m`, `10g` as bytes."""

    name = "size"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        try:
            return parse_size_bytes(str(value))
        except ValueError as error:
            return self.fail(str(error), param, ctx)


class Moment(click.ParamType[int]):
    """`2026-01-15 12:00`, `2026-01-15T12:00:00Z` or `12:00` today, in Unix nanoseconds; local time by default."""

    name = "time"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        text = str(value)
        try:
            if len(text) <= 8 and ":" in text:
                at = datetime.datetime.combine(
                    datetime.date.today(), datetime.time.fromisoformat(text)
                )
            else:
                at = datetime.datetime.fromisoformat(text)
        except ValueError:
            return self.fail(
                f"{text!r} is not a time such as 12:30 or 2026-01-15T12:30", param, ctx
            )
        return int(at.timestamp()) * 1_000_000_000 + at.microsecond * 1000
