"""Every command that this project installs, for tests that go through all of them."""

import importlib
from collections.abc import Iterator

import click

from ingero.cli.command_list import COMMANDS
from ingero.cli.commands.services import echo, echo_stress, fleet, straggler_sink

SCRIPTS: dict[str, click.Command] = {
    "ingero-fleet": fleet.fleet,
    "ingero-echo": echo.echo,
    "echo-stress": echo_stress.stress,
    "straggler-sink": straggler_sink.command,
}


def commands_by_name() -> dict[str, click.Command]:
    """Console scripts, and the commands of `ingero`, each under the words that start it."""
    found = dict(SCRIPTS)
    for name, _, _, target in COMMANDS:
        module, attribute = target.split(":")
        found[f"ingero {name}"] = getattr(importlib.import_module(module), attribute)
    return found


def without_groups(commands: dict[str, click.Command]) -> Iterator[tuple[str, click.Command]]:
    """The same commands with every group replaced by the commands in it."""
    for name, command in commands.items():
        if isinstance(command, click.Group):
            yield from without_groups({f"{name} {n}": c for n, c in command.commands.items()})
        else:
            yield name, command
