"""The keys of `ingero demo --keep`, pressed in a real terminal."""

import contextlib
import os
import pty
import subprocess
import sys
import termios
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.waiting import until

# A cluster that names a slow rank as soon as it is asked, in place of a real one.
PROGRAM = textwrap.dedent("""
    import sys
    from ingero.cli.commands.demos.keys import keep_running
    from ingero.contract.verdict import Verdict, VerdictState

    class Seen:
        def __init__(self, slow):
            self.verdicts = [
                Verdict(episode=str(rank), state=VerdictState.STRAGGLER, node=f"n{rank // 8}",
                        rank=rank, since=0.0, loss=0.1, loss_error=0.01)
                for rank in slow
            ]

    class Cluster:
        slow = {0}
        def slow_rank(self, rank, excess): self.slow.add(rank)
        def heal_rank(self, rank): self.slow.discard(rank)
        def judged(self): return Seen(self.slow)

    keep_running(Cluster(), 4, [0], "http://127.0.0.1:1/", lambda text: print(text, flush=True))
    print("ended", flush=True)
""")


class Terminal:
    """A program in a terminal: what it has written, and keys for it."""

    def __init__(self) -> None:
        self._ours, theirs = pty.openpty()
        self.before = termios.tcgetattr(theirs)
        self._theirs, self.text = theirs, ""
        os.set_blocking(self._ours, False)
        command = [sys.executable, "-c", PROGRAM]
        self.process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs)

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def shows(self, text: str) -> bool:
        with contextlib.suppress(BlockingIOError):
            self.text += os.read(self._ours, 65536).decode()
        return text in self.text

    def settings(self) -> list[object]:
        return termios.tcgetattr(self._theirs)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    opened = Terminal()
    yield opened
    opened.close()


def test_keys_slow_and_heal_ranks_and_end_the_demo(terminal: Terminal) -> None:
    until(lambda: terminal.shows("s: slow a rank   h: heal one   q: end"), "no keys are offered")
    terminal.press("s")
    until(lambda: terminal.shows("now takes 15% longer"), "s slows nobody")
    until(lambda: terminal.shows("is slow"), "nobody is named")
    assert "the job loses 10.0% ±1.0%" in terminal.text
    terminal.press("h")
    until(lambda: terminal.shows("rank 0 is as fast as the others again"), "h heals nobody")
    until(lambda: terminal.shows("rank 0 is not slow any more"), "nobody recovers")
    terminal.press("q")
    until(lambda: terminal.shows("ended"), "q does not end it")
    assert terminal.process.wait(20) == 0
    assert terminal.settings() == terminal.before, "the terminal is as it was"


def test_keys_that_are_pressed_at_once_all_count(terminal: Terminal) -> None:
    """Also where nobody is left to slow down."""
    until(lambda: terminal.shows("q: end"), "no keys are offered")
    terminal.press("sssssshhhhhhq")
    until(lambda: terminal.shows("ended"), "q does not end it")
    assert terminal.text.count("now takes 15% longer") == 3, "one of four was slow already"
    assert terminal.text.count("is as fast as the others again") == 4


def test_without_a_terminal_ctrl_c_ends_it(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdin=subprocess.DEVNULL, stdout=out
        )
    until(lambda: b"Ctrl-C ends it" in (tmp_path / "out").read_bytes(), "it says nothing")
    process.send_signal(2)
    assert process.wait(20) == 0
    assert b"ended" in (tmp_path / "out").read_bytes()
