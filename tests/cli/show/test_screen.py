"""The picture of a terminal: what fits, what is cut, and that it is drawn in place."""

import pytest

from ingero.cli.show.screen import Screen, fitted


def test_the_first_lines_stay_and_the_last_says_how_many_are_missing() -> None:
    lines = [f"line {number}" for number in range(30)]
    shown = fitted([*lines, ""], 80, 24)
    assert shown[:23] == lines[:23]
    assert shown[23:] == ["… 7 more lines; this window is too small"]
    assert fitted(lines[:24], 80, 24) == lines[:24]


@pytest.mark.parametrize(
    ("line", "fit"),
    [
        ("0123456789", "0123456789"),
        ("0123456789a", "012345678…"),
        ("\x1b[31mred\x1b[0m and white", "\x1b[31mred\x1b[0m and w…"),
        ("日本語日本語", "日本語日…"),
    ],
)
def test_a_line_is_no_wider_than_the_terminal(line: str, fit: str) -> None:
    assert fitted([line], 10, 5) == [fit]


def test_a_picture_is_drawn_over_the_last_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("LINES", "3")
    with Screen() as screen:
        screen.draw(["one", "two"])
        screen.draw(["a", "b", "c", "d"])
    out = capsys.readouterr().out
    assert "\x1b[2J" not in out, "clearing the screen makes it flicker"
    assert "\x1b[Hone\x1b[K\ntwo\x1b[K\x1b[J" in out
    assert "\x1b[Ha\x1b[K\nb\x1b[K\n… 2 more lines" in out
    assert out.endswith("a\nb\nc\nd\n"), "what was seen last stays"
