"""Python processes that lie about their frames, or whose memory does not answer."""

import os
import threading
from collections.abc import Iterator

import pytest
from tests.support.waiting import PATIENCE_S

from ingero.agent.causes.gpu_signals import GpuSignals
from ingero.agent.causes.look import RankProcess, Subject
from ingero.agent.engines import sight
from ingero.agent.processes.discover import program_of
from ingero.agent.processes.patience import MAX_HANGING_PER_USER, PAUSE_S, Patience
from ingero.agent.sight import own
from ingero.agent.stacks import resolver as resolver_module
from ingero.agent.stacks.interpreters import read_python
from ingero.agent.stacks.line_tables import line_of, line_of_310
from ingero.agent.stacks.memory import Memory
from ingero.agent.stacks.python import PythonFrame, PythonProcess
from ingero.agent.stacks.resolver import StackResolver
from ingero.contract.causes import Ask, CauseKind
from ingero.core.recording.stacks import Frame, encode_frames, stack_hash
from ingero.errors import Unavailable

NO_COLUMN, LONG = 13, 14


def entry(kind: int, delta: int) -> bytes:
    """Return one row of a location table: eight code units, and a line further by `delta`."""
    number = abs(delta) << 1 | (delta < 0)
    pieces = [number >> shift & 63 for shift in range(0, max(number.bit_length(), 1), 6)]
    return bytes(
        [0x80 | kind << 3 | 7, *(piece | 64 for piece in pieces[:-1]), pieces[-1]]
        + [0] * (3 if kind == LONG else 0)
    )


@pytest.mark.parametrize("delta", [-1000, -(2**31), 2**24, 2**40, 2**300])
@pytest.mark.parametrize("kind", [NO_COLUMN, LONG])
def test_a_line_that_no_file_has_is_none(kind: int, delta: int) -> None:
    assert line_of(entry(kind, delta), 1, 0) is None


def test_a_line_number_without_an_end_costs_little() -> None:
    """It would have hundreds of thousands of bits."""
    assert line_of(b"\xf0" + b"\x41" * (1 << 16), 1, 0) is None
    assert line_of_310(b"\x02\x81" * 100, 1, 10) is None


def test_frames_with_impossible_lines_are_stored() -> None:
    """Before, one such frame ended the recorder: its line did not fit into the hash."""
    ready, stop = threading.Event(), threading.Event()

    def wait() -> None:
        ready.set()
        stop.wait(PATIENCE_S)

    wait.__code__ = wait.__code__.replace(co_linetable=entry(NO_COLUMN, -1000) * 64)
    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    try:
        assert ready.wait(PATIENCE_S)
        python = read_python(os.getpid())
        frames = python.stack(thread.native_id or 0)
    finally:
        stop.set()
        thread.join()
    (found,) = [frame for frame in frames if frame.function == "wait" and "hostile" in frame.file]
    assert found.line == wait.__code__.co_firstlineno
    stored = [Frame(py_file=one.file, py_func=one.function, py_line=one.line) for one in frames]
    assert stack_hash(stored)
    assert "hostile" in encode_frames(stored)[1]


@pytest.fixture
def silence() -> Iterator[threading.Event]:
    """What hanging reads wait for."""
    event = threading.Event()
    yield event
    event.set()


def test_memory_that_does_not_answer_costs_its_user_only(silence: threading.Event) -> None:
    patience = Patience()
    with pytest.raises(Unavailable, match="did not answer within"):
        patience.call(1, silence.wait, 0.01)
    with pytest.raises(Unavailable, match="other memory of its user"):
        patience.call(1, lambda: 7)
    assert patience.call(2, lambda: 7)[0] == 7
    assert (patience.unanswered, patience.refusals) == (1, 1)


def test_a_user_leaves_few_threads_behind(silence: threading.Event, monkeypatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr("ingero.agent.processes.patience.time.monotonic", lambda: now_s[0])
    patience = Patience()
    for _ in range(10):
        now_s[0] += PAUSE_S
        with pytest.raises(Unavailable):
            patience.call(1, silence.wait, 0.01)
    assert patience.unanswered == MAX_HANGING_PER_USER


def test_a_stack_in_silent_memory_has_no_python_frames(silence, monkeypatch) -> None:
    """Memory on a file system of its owner, which never answers: nothing else ends such a read."""
    resolver = StackResolver()
    assert resolver(os.getpid(), os.getpid(), ())
    monkeypatch.setattr(Memory, "read", lambda *_: silence.wait() or b"")
    monkeypatch.setattr(Patience.call, "__defaults__", (0.01,))
    for _ in range(3):
        assert resolver(os.getpid(), os.getpid(), ()) == []
    assert resolver.refused["memory"] == 3


def test_a_silent_process_does_not_stop_looks(silence, monkeypatch) -> None:
    monkeypatch.setattr(own, "look", lambda *_: silence.wait())
    monkeypatch.setattr(own, "BEGIN_S", 0.01)
    monkeypatch.setattr(sight, "describe_waits", lambda _: str(silence.wait()))
    ask = Ask(episode="e")
    rank = RankProcess(os.getpid(), None, 0)
    subject = Subject(ask, rank, [], GpuSignals())
    (found,) = own.OwnSight().look(subject, silence, 0.0) or []
    assert found.kind is CauseKind.UNKNOWN
    assert "did not answer within" in found.text
    monkeypatch.setattr(sight, "WAITS_S", 0.01)
    assert "did not answer within" in sight.OwnEngineSight().describe_waits(os.getpid())


def test_reading_frames_is_charged_to_the_user(monkeypatch) -> None:
    resolver, asked = StackResolver(), []

    def stack(_: PythonProcess, tid: int) -> list[PythonFrame]:
        asked.append(tid)
        return [PythonFrame("a.py", "f", 1)]

    monkeypatch.setattr(PythonProcess, "stack", stack)
    monkeypatch.setattr("ingero.agent.processes.patience.time.thread_time", lambda: 60.0)
    monkeypatch.setattr(resolver_module, "find_python", lambda _: None)
    resolver._interpreters[os.getpid(), program_of(os.getpid())] = read_python(os.getpid())
    assert resolver(os.getpid(), 1, ()) == [Frame(py_file="a.py", py_func="f", py_line=1)]
    assert resolver(os.getpid(), 2, ()) == []
    assert asked == [1]
    assert resolver.refused["cpu"] >= 1
