"""Exit statuses that mean the same in every command."""

from typing import Final

import click

FINE: Final = 0
SLOW: Final = 1  # for commands that answer whether somebody is slow
FAILED: Final = 1  # for all other commands
USAGE: Final = 2
CANNOT_TELL: Final = 3


class Question(click.Command):
    """A command that answers whether somebody is slow; when it fails, it cannot tell."""

    failed_status = CANNOT_TELL


def failed_status(command: click.Command) -> int:
    """Return the exit status of a command that ends with an error."""
    return getattr(command, "failed_status", FAILED)
