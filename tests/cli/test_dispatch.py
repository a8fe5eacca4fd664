"""Running a command: errors become one sentence and a status."""

import click
import pytest

from ingero.cli.dispatch import run, run_click
from ingero.errors import Unavailable


def failing(error: Exception) -> click.Command:
    @click.command()
    def command() -> None:
        raise error

    return command


def test_our_errors_are_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_click(failing(Unavailable("no Fleet there")), [], "ingero x") == 1
    assert capsys.readouterr().err == "ingero x: no Fleet there\n"


def test_a_missing_extra_says_how_to_get_it(capsys: pytest.CaptureFixture[str]) -> None:
    missing = ModuleNotFoundError("No module named 'duckdb'", name="duckdb")
    assert run_click(failing(missing), [], "ingero-echo") == 1
    assert "pip install 'ingero[echo]'" in capsys.readouterr().err
    with pytest.raises(ModuleNotFoundError):
        run_click(failing(ModuleNotFoundError("x", name="ours")), [], "ingero")


def test_unknown_commands_get_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["exprot"]) == 2
    assert "did you mean `ingero export`?" in capsys.readouterr().err
