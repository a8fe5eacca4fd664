"""Every command that this project installs, for tests that go through all of them."""

from collections.abc import Iterator

import click

from ingero.cli.command_list import COMMANDS, SCRIPTS
from ingero.cli.reference_commands import load_command


def commands_by_name() -> dict[str, click.Command]:
    """Return console scripts and the commands of `ingero`, each under the words that start it."""
    scripts = {name: load_command(target) for name, target in SCRIPTS}
    return scripts | {f"ingero {name}": load_command(target) for name, _, _, target in COMMANDS}


def without_groups(commands: dict[str, click.Command]) -> Iterator[tuple[str, click.Command]]:
    """The same commands with every group replaced by the commands in it."""
    for name, command in commands.items():
        if isinstance(command, click.Group):
            yield from without_groups({f"{name} {n}": c for n, c in command.commands.items()})
        else:
            yield name, command
