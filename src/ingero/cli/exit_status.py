"""Exit statuses that mean the same in every command."""

from typing import Final

import click

from ingero.errors import ConfigError

FINE: Final = 0
SLOW: Final = 1  # for commands that answer whether somebody is slow
FAILED: Final = 1  # for all other commands
USAGE: Final = 2
CANNOT_TELL: Final = 3


class Question(click.Command):
    """A command that answers whether somebody is slow; an error means that it cannot tell."""


def failed_status(command: click.Command, error: Exception) -> int:
    """Return the exit status of a command that ends with an error."""
    if isinstance(error, ConfigError):  # what it was told makes no sense
        return USAGE
    return CANNOT_TELL if isinstance(command, Question) else FAILED
