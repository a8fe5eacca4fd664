"""Tables line up whatever is in them; colour is for terminals that want it."""

import io

import pytest

from ingero.cli.show.rows import RowPrinter
from ingero.cli.show.table import coloured, columns_of, printable, render_table


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_wide_characters_and_accents_keep_columns_in_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = ["gpu-1", "ノード一", "cafe\u0301", "ﬁ"]
    table = render_table(("node", "score"), [(name, 1) for name in names])
    assert {columns_of(line.rpartition("1")[0]) for line in table.splitlines()[2:]} == {10}
    printer = RowPrinter("table")
    printer.begin(("node", "score"))
    printer.rows([(name, 1) for name in names])
    printer.end()
    assert capsys.readouterr().out == table + "\n"


@pytest.mark.parametrize("no_color, wanted", [("", "\x1b[31mslow\x1b[0m"), ("1", "slow")])
def test_no_color_is_heard_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, no_color: str, wanted: str
) -> None:
    monkeypatch.setattr("sys.stdout", Terminal())
    monkeypatch.setenv("NO_COLOR", no_color)
    assert coloured("slow", "31") == wanted


def test_a_pipe_gets_no_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr("sys.stdout", io.StringIO())
    assert coloured("slow", "31") == "slow"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (5.2, "5.2"),
        (999_999.4, "999999"),
        (1_185_507.3, "1185507"),
        (-5.00612e7, "-50061200"),
        (1e15, "1e+15"),
        (1e-7, "1e-07"),
    ],
)
def test_numbers_can_be_compared_by_eye(value: float, shown: str) -> None:
    assert printable(value) == shown
