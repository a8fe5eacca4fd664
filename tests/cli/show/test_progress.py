"""Progress of long commands: on a terminal, from the second second on."""

import sys

import pytest
from tests.support.waiting import until

from ingero.cli.show import progress
from ingero.cli.show.progress import shown_progress


def _on_a_terminal(monkeypatch: pytest.MonkeyPatch, answer: bool) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: answer, raising=False)


def test_quick_commands_and_pipes_see_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for is_terminal in (True, False):
        _on_a_terminal(monkeypatch, is_terminal)
        with shown_progress() as shown:
            shown.phase("events")(1, 2)
    assert capsys.readouterr().err == ""


def test_a_long_command_says_how_far_it_is_and_cleans_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first phase reports nothing for a while, which is said, too."""
    _on_a_terminal(monkeypatch, True)
    monkeypatch.setattr(progress, "QUIET_S", 0.0)
    monkeypatch.setattr(progress, "EVERY_S", 0.001)
    seen = ""

    def has_printed(text: str) -> bool:
        nonlocal seen
        seen += capsys.readouterr().err
        return text in seen

    with shown_progress() as shown:
        read, replayed = shown.phase("events read"), shown.phase("events replayed")
        until(lambda: has_printed("\r\x1b[K0 events read"))
        read(2500, 0)
        until(lambda: has_printed("\r\x1b[K2,500 events read"))
        replayed(1000, 4000)
        until(lambda: has_printed("\r\x1b[K1,000 of 4,000 events replayed 25 %"))
    assert (seen + capsys.readouterr().err).endswith("\r\x1b[K")
