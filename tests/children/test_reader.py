"""A child that reads for this process: frames in bounds, and a reason whenever it ends early."""

import signal
import sys

import pytest

from ingero.children import reader
from ingero.children.reader import ChildEnded, ReadingChild
from ingero.errors import MalformedInput

START = "import sys; from ingero.children.reader import write_frame; out = sys.stdout.buffer\n"


def _child(script: str) -> ReadingChild:
    return ReadingChild([sys.executable, "-P", "-c", START + script], {})


def test_frames_arrive_in_order_after_the_request() -> None:
    with _child("write_frame(out, 1, sys.stdin.buffer.read()); write_frame(out, 2, b'')") as child:
        child.send(b"what ", b"now")
        frames = child.frames()
        assert [next(frames), next(frames)] == [(1, b"what now"), (2, b"")]


def test_a_child_that_takes_too_long_is_ended() -> None:
    with _child("write_frame(out, 1, b''); sys.stdin.read()") as child:
        frames = child.frames()
        assert next(frames) == (1, b"")
        child.allow(0.05)
        with pytest.raises(ChildEnded) as ended:
            next(frames)
    assert ended.value.timed_out


def test_the_signal_that_ended_a_child_is_known() -> None:
    with _child("import os; os.kill(os.getpid(), 11)") as child, pytest.raises(ChildEnded) as ended:
        child.send(b"x" * (1 << 20))
        next(child.frames())
    assert (ended.value.signal, ended.value.timed_out) == (signal.SIGSEGV, False)


def test_a_frame_that_is_too_long_is_refused() -> None:
    with _child("out.write(b'\\1' + b'\\xff' * 8)") as child, pytest.raises(MalformedInput):
        next(child.frames())


LIMITED = (
    "from ingero.children.limits import *\nlimit_this_process(ChildLimits(64 << 20, 1, 9.0))\n"
)


def test_memory_beyond_the_limit_is_refused() -> None:
    script = (
        "try:\n    bytearray(1 << 30)\nexcept MemoryError:\n    write_frame(out, 1, b'refused')"
    )
    with _child(LIMITED + script) as child:
        assert next(child.frames()) == (1, b"refused")


def test_a_child_ends_after_its_cpu_time() -> None:
    with _child(LIMITED + "while True: pass") as child, pytest.raises(ChildEnded) as ended:
        next(child.frames())
    assert ended.value.signal == signal.SIGXCPU


def test_a_child_that_closes_its_output_and_stays_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reader, "END_TIMEOUT_S", 0.2)
    with (
        _child("import os; os.close(1); sys.stdin.read()") as child,
        pytest.raises(ChildEnded) as ended,
    ):
        next(child.frames())
    assert ended.value.timed_out
