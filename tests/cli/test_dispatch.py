"""Running a command: errors become one sentence and a status."""

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import click
import pytest

from ingero.cli.dispatch import run, run_click
from ingero.cli.exit_status import CANNOT_TELL, Question
from ingero.compiled import install_command
from ingero.errors import Unavailable
from ingero.storage.trace.database import TraceDb

FULL = Path("/dev/full")


def failing(error: Exception, kind: type[click.Command] = click.Command) -> click.Command:
    @click.command(cls=kind)
    def command() -> None:
        raise error

    return command


def test_our_errors_are_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_click(failing(Unavailable("no Fleet there")), [], "ingero x") == 1
    assert capsys.readouterr().err == "ingero x: no Fleet there\n"


@pytest.mark.parametrize("mistake", [ValueError("it was \x1b[2J"), OSError("it was \x1b[2J")])
def test_a_mistake_of_ours_is_no_answer_that_somebody_is_slow(
    mistake: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_click(failing(mistake, Question), [], "ingero x") == CANNOT_TELL
    shown = capsys.readouterr().err.splitlines()
    assert shown[0] == "Traceback (most recent call last):"
    assert shown[-1] == f"{type(mistake).__name__}: it was \\x1b[2J"
    with pytest.raises(type(mistake)):
        run_click(failing(mistake), [], "ingero x")


def test_a_missing_extra_says_how_to_get_it(capsys: pytest.CaptureFixture[str]) -> None:
    missing = ModuleNotFoundError("No module named 'duckdb'", name="duckdb")
    assert run_click(failing(missing), [], "ingero-echo") == 1
    assert f"install it with `{install_command('echo')}`" in capsys.readouterr().err
    with pytest.raises(ModuleNotFoundError):
        run_click(failing(ModuleNotFoundError("x", name="ours")), [], "ingero")


def test_unknown_commands_get_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["exprot"]) == 2
    assert "did you mean `ingero export`?" in capsys.readouterr().err


def test_an_error_names_the_command_it_came_from_and_shows_no_control_characters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A peer may answer with anything; two lines of ours stay two lines."""
    group = click.Group("g", commands={"sub": failing(Unavailable("it said \x1b[2J\nask again"))})
    assert run_click(group, ["sub"], "ingero g") == 1
    assert capsys.readouterr().err == "ingero g sub: it said \\x1b[2J\nask again\n"


def interrupted() -> click.Command:
    @click.command()
    def command() -> None:
        raise KeyboardInterrupt

    return command


def test_choices_that_are_missing_are_listed_without_escapes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["export"]) == 2
    assert capsys.readouterr().err.splitlines()[-2:] == ["    perfetto,", "    perfetto-proto"]


def test_ctrl_c_is_status_130_and_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_click(interrupted(), [], "ingero x") == 130
    assert capsys.readouterr().err == "\n"


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["rates", "show"], ["rates", "--help"]]
)
def test_a_reader_that_leaves_is_no_error(arguments: list[str], unbuffered: str) -> None:
    """`ingero … | head`, whether Python notices while printing or on its way out."""
    reading, writing = os.pipe()
    os.close(reading)
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    ended = subprocess.run(
        [sys.executable, "-m", "ingero", *arguments],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        check=False,
    )
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize(("unbuffered", "status"), [("", 1), ("1", 3)])
def test_a_reader_that_leaves_is_not_told_that_nobody_is_slow(
    tmp_path: Path, unbuffered: str, status: int
) -> None:
    """The answer counts where it was found; where it was cut off, nothing can be told."""
    path = tmp_path / "t.db"
    write_slow(path)
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run(
        [sys.executable, "-m", "ingero", "explain", "-d", str(path)],
        stdout=writing, stderr=subprocess.DEVNULL, check=False,
        env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
    )  # fmt: skip
    os.close(writing)
    assert ended.returncode == status


def write_slow(path: Path) -> None:
    """Write a trace database in which something was slow."""
    TraceDb(path, "n").close()
    with sqlite3.connect(path) as connection:
        connection.execute(
            "INSERT INTO causal_chains (id, detected_at, severity, summary, root_cause, "
            "explanation, recommendations, cuda_op, cuda_p99_us, node) "
            "VALUES ('n:1', 1, 'HIGH', 's', 'c', '', '[]', 'cuMemAlloc', 9, 'n')"
        )
    connection.close()


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
def test_a_full_disk_under_the_output_is_a_sentence() -> None:
    with FULL.open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "ingero", "rates", "show"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (ended.returncode, ended.stderr) == (
        1,
        "ingero rates: no space left on the device of the output\n",
    )


def test_a_file_the_system_refuses_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert run(["up", "--data-dir", str(tmp_path / "file" / "x")]) == 1
    assert (
        capsys.readouterr().err
        == f"ingero up: cannot use {tmp_path / 'file' / 'x'}: Not a directory; name another path\n"
    )
