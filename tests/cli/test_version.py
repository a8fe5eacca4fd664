"""Every command has -h and --version; the latter names build, compiled parts and schemas."""

import click
import pytest
from tests.support.commands import commands_by_name, without_groups

from ingero.cli.dispatch import run_click

LINES = ("ingero", "build: ", "compiled parts: ", "schemas: push ")
COMMANDS = dict(without_groups(commands_by_name()))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_shows_version_and_short_help(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = name.split()
    first = 2 if words[0] == "ingero" else 1
    top: click.Command = commands_by_name()[" ".join(words[:first])]
    COMMANDS[name]._help_option = None  # click keeps the one that another test asked for
    assert run_click(top, [*words[first:], "--version"], " ".join(words[:first])) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(words[0])
    assert all(line in shown for line in LINES[1:])
    assert run_click(top, [*words[first:], "-h"], " ".join(words[:first])) == 0
    assert "-h, --help" in capsys.readouterr().out
