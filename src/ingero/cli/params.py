"""Options and types that several commands share: durations, sizes, points in time, JSON."""

import datetime
from collections.abc import Callable
from typing import Any, TypeAlias

import click

from ingero.core.units import parse_duration_s, parse_size_bytes

Decorator: TypeAlias = Callable[[Any], Any]  # click's own are untyped

AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


def stacked(*options: Decorator) -> Decorator:
    """Return several options as one decorator; --help shows them in this order."""

    def apply(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return apply


class Duration(click.ParamType[float]):
    """A duration such as `500ms`, `10s`, `1h30m` or `2d`, in seconds."""

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
            else self.fail("must not be zero", param, ctx)
        )


class Size(click.ParamType[int]):
    """A size such as `500m` or `10g`, in bytes."""

    name = "size"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        try:
            return parse_size_bytes(str(value))
        except ValueError as error:
            return self.fail(str(error), param, ctx)


class Moment(click.ParamType[int]):
    """A point in time, in Unix nanoseconds: `2026-01-15 12:00`, or `12:00` for today.

    Without a time zone (`2026-01-15T12:00:00Z`) it is local time.
    """

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
