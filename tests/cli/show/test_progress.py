"""Progress of long commands: on a terminal, from the second second on."""

import sys

import pytest

from ingero.cli.show import progress
from ingero.cli.show.progress import shown_progress


def _on_a_terminal(monkeypatch: pytest.MonkeyPatch, answer: bool) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: answer, raising=False)


def test_quick_commands_and_pipes_see_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for is_terminal in (True, False):
        _on_a_terminal(monkeypatch, is_terminal)
        with shown_progress("events") as show:
            show(1, 2)
    assert capsys.readouterr().err == ""


def test_a_long_command_says_how_far_it_is_and_cleans_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _on_a_terminal(monkeypatch, True)
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with shown_progress("events") as show:
        show(1, 4)
        now[0] = 1.5
        show(1000, 4000)
        show(1001, 4000)
        now[0] = 2.0
        show(2500, 0)
    shown = capsys.readouterr().err
    assert shown == "\r\x1b[K1,000 of 4,000 events 25 %\r\x1b[K2,500 events\r\x1b[K"
