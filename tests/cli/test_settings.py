"""Options that are derived from settings: help, page and error state the same default and range."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from ingero.cli.commands.node.fleet_push import command as fleet_push
from ingero.cli.commands.services.echo import serve_command
from ingero.cli.commands.services.fleet import fleet
from ingero.cli.reference import configuration_page
from ingero.cli.settings import SettingOption, default_text, help_text, options_of
from ingero.config.echo import EchoConfig
from ingero.config.fleet import FleetConfig
from ingero.config.ingero import IngeroConfig
from ingero.config.merge import Entry, entries_of, merged
from ingero.errors import ConfigError

PAGE = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
COMMANDS = {IngeroConfig: fleet_push, EchoConfig: serve_command, FleetConfig: fleet}
WITH_FLAGS = [
    pytest.param(config, entry, id=str(entry.setting.flag))
    for config in COMMANDS
    for entry in entries_of(config)
    if entry.setting.flag
]


def option(config: type, entry: Entry) -> SettingOption:
    found = next(p for p in COMMANDS[config].params if p.name == entry.setting.parameter)
    assert isinstance(found, SettingOption)
    return found


@pytest.mark.parametrize(("config", "entry"), WITH_FLAGS)
def test_help_and_page_state_the_same_text_default_and_range(config: type, entry: Entry) -> None:
    command, row = COMMANDS[config], f"`{entry.key}` |"
    record = option(config, entry).get_help_record(click.Context(command))
    assert record is not None
    line = next(line for line in PAGE.splitlines() if line.startswith(f"| {row}"))
    stated = [help_text(entry.setting), default_text(entry), entry.setting.allowed()]
    for text in stated:
        assert text in line
        assert text.replace("`", "") in record[1].replace("`", "")


@pytest.mark.parametrize(
    ("config", "entry"),
    [
        each
        for each in WITH_FLAGS
        if each.values[1].setting.allowed() and each.values[1].key != "max_database_size"
    ],  # no size is below zero
)
def test_an_error_states_the_same_range(config: type, entry: Entry) -> None:
    setting = entry.setting
    wrong = -10 if setting.most is None else setting.most * 2
    with pytest.raises(ConfigError) as caught:
        merged(config, None, {}, {setting.parameter or "": wrong})
    assert str(caught.value).startswith(f"{setting.flag}: ")
    assert str(caught.value).endswith(f"is out of range; allowed: {setting.allowed()}")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--retention", "soon"], "'soon' is not a duration such as 500ms, 10s or 1h30m"),
        (["--store-memory", "much"], "'much' is not a size such as 512m or 10g"),
        (["--store-threads", "1.5"], "must be a whole number, not '1.5'"),
        (["--log-level", "loud"], "must be one of debug, info, warning, error, not 'loud'"),
    ],
)
def test_a_malformed_value_is_a_usage_error(arguments: list[str], problem: str) -> None:
    result = CliRunner().invoke(serve_command, arguments)
    assert result.exit_code == 2
    assert f"Invalid value for '{arguments[0]}': {problem}" in result.output


def test_a_flag_that_is_not_given_is_none() -> None:
    @click.command()
    @options_of(EchoConfig)
    def command(**flags: object) -> None:
        print(sorted((name, value) for name, value in flags.items() if value is not None))

    given = CliRunner().invoke(command, ["--retention", "1h", "--insecure-no-tls"])
    assert given.output == "[('insecure_no_tls', True), ('retention', 3600.0)]\n"


def test_a_page_cannot_ask_for_a_setting_that_does_not_exist() -> None:
    with pytest.raises(ValueError, match="no setting fleet"):
        configuration_page("<!-- settings echo fleet -->\n<!-- end -->")
