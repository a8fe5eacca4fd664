"""Text of strangers never controls a terminal, runs as a formula or forges a line."""

import csv
import io
import json
import logging
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero.cli import dispatch
from ingero.cli.show.logs import FieldFormatter
from ingero.cli.show.rows import RowPrinter
from ingero.cli.show.safe_output import SafeStream, safe_output, visible, visible_json
from ingero.cli.show.table import print_json, render_table

NASTY = "a\x1b]0;owned\x07\x1b[2J\x9b31m\u202edrow\u2028\x7f\rb\nERROR forged\ud800\u200b"
FORMULAS = ["=1+1", "+1+1", "-1+cmd", "@SUM(A1)", "\t=1", "\r=1", "-", "+a", "\n=1"]


def is_safe(text: str) -> bool:
    """Whether a text has only printable characters and newlines."""
    return all(line.isprintable() for line in text.split("\n"))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@given(st.text())
def test_whatever_is_written_is_visible(text: str) -> None:
    stream = io.StringIO(newline="")
    SafeStream(stream).write(text)
    kept = stream.getvalue()
    assert not set(kept) & set("\x1b\x07\x7f\x9b\r\u202e\u2028\ufeff\u200b")
    assert kept.encode().decode() == kept  # no half of a surrogate pair


def test_a_terminal_gets_colours_and_nothing_else() -> None:
    stream = Terminal()
    SafeStream(stream).write("\x1b[H\x1b[2J\x1b[31mslow\x1b[0m \x1b]52;c;eA==\x07\x1bc")
    assert stream.getvalue() == "\x1b[H\x1b[2J\x1b[31mslow\x1b[0m \\x1b]52;c;eA==\\x07\\x1bc"


def test_standard_output_and_errors_are_safe_within_the_block(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = sys.stdout, sys.stderr
    with safe_output():
        print(NASTY)
        print(NASTY, file=sys.stderr)
    assert (sys.stdout, sys.stderr) == before
    out, err = capsys.readouterr()
    assert is_safe(out) and is_safe(err)


@given(st.text())
def test_json_keeps_its_meaning(text: str) -> None:
    document = visible_json(json.dumps({text: text}, ensure_ascii=False))
    assert json.loads(document) == {text: text}
    assert visible(document) == document


@pytest.mark.parametrize("form", ["table", "json", "csv"])
def test_rows_are_safe_in_every_format(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    printer = RowPrinter(form)
    printer.begin([NASTY, "b"])
    printer.rows([[NASTY, 1], [f"x{NASTY}", None]])
    printer.end()
    assert is_safe(capsys.readouterr().out)


@pytest.mark.parametrize("text", FORMULAS)
def test_a_formula_is_a_text_in_csv(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    printer = RowPrinter("csv")
    printer.begin(["name", text])
    printer.rows([[text, -1.5]])
    printer.end()
    header, row = csv.reader(io.StringIO(capsys.readouterr().out))
    assert header[1][0] == row[0][0] == "'"
    assert row[1] == "-1.5"


@pytest.mark.parametrize("number", ["-5", "+1.5e-7", "-.5", -3, 2.5])
def test_numbers_stay_numbers_in_csv(number: Any, capsys: pytest.CaptureFixture[str]) -> None:
    printer = RowPrinter("csv")
    printer.begin(["n"])
    printer.rows([[number]])
    assert capsys.readouterr().out == f"n\n{number}\n"


def test_tables_and_documents_are_safe(capsys: pytest.CaptureFixture[str]) -> None:
    print(render_table([NASTY], [[NASTY]]))
    print_json({NASTY: [NASTY]})
    assert is_safe(capsys.readouterr().out)


def test_log_lines_cannot_be_forged_by_a_message_a_field_or_an_error() -> None:
    try:
        raise ValueError(NASTY)
    except ValueError:
        record = logging.makeLogRecord({"msg": NASTY, "node": NASTY, "exc_info": sys.exc_info()})
    first, *others = FieldFormatter().format(record).split("\n")
    assert "forged" in first
    assert is_safe("\n".join([first, *others]))
    assert all(line.startswith("  ") for line in others)


def test_a_terminal_gets_every_sequence_that_a_command_writes() -> None:
    """A sequence that is not known arrives as text, such as `\\x1b[2K` in a progress line."""
    written = {
        sequence.encode().decode("unicode_escape")
        for path in Path(dispatch.__file__).parent.rglob("*.py")
        if path.name != "safe_output.py"
        for sequence in re.findall(r"(?:\\r)?(?:\\x1b\[[0-9;?]*[A-Za-z])+", path.read_text())
    }
    assert "\r\x1b[K" in written
    for sequence in written:
        terminal = Terminal()
        SafeStream(terminal).write(sequence)
        assert terminal.getvalue() == sequence
