"""F153: Python source frames of running CPython 3.10 to 3.13 processes, read from outside."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ingero.agent.pystacks import PythonFrame, find_python, line_of, line_of_310

SCRIPT = """\
import threading
import time


def outer():
    ready = 1
    inner(ready)


def inner(ready):
    print(worker.native_id, flush=True)
    for _ in range(1):
        time.sleep(
            60
        )


class Loader:
    def fetch(self):
        [time.sleep(60) for _ in range(1)]


worker = threading.Thread(target=Loader().fetch, daemon=True)
worker.start()
outer()
"""
FOLDERS = ("/usr/bin", "/usr/local/bin", *sorted(map(str, Path("~/.pyenv/versions").expanduser().glob("*/bin"))))


def interpreter(minor: int) -> str:
    if sys.version_info[1] == minor:
        return sys.executable
    for folder in FOLDERS:
        candidate = Path(folder) / f"python3.{minor}"
        if candidate.exists():
            return str(candidate)
    pytest.skip(f"no CPython 3.{minor} on this machine")


@pytest.fixture(params=[10, 11, 12, 13])
def sleeper(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[int, int, int, str]]:
    """(minor, pid, tid of its second thread, script path) of a Python process that sleeps in a known place."""
    if os.geteuid():
        pytest.skip("reading another process needs root or ptrace rights")
    script = tmp_path / "schlafmütze 睡.py"
    script.write_text(SCRIPT)
    process = subprocess.Popen([interpreter(request.param), str(script)], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    tid = int(process.stdout.readline())
    yield request.param, process.pid, tid, str(script)
    process.kill()
    process.communicate()


def wait_for(frames_of: Callable[[], list[PythonFrame]], wanted: list[PythonFrame]) -> list[PythonFrame]:
    """Read until the process has arrived where it sleeps."""
    end = time.monotonic() + 5
    while (frames := frames_of()) != wanted and time.monotonic() < end:
        time.sleep(0.01)
    return frames


def test_frames_have_file_function_and_current_line(sleeper) -> None:
    minor, pid, tid, script = sleeper
    python = find_python(pid)
    assert python is not None and python.minor == minor
    sleeping = [("inner", 13), ("outer", 7), ("<module>", 25)]
    expected = [PythonFrame(script, function, line) for function, line in sleeping]
    assert wait_for(lambda: python.stack(pid), expected) == expected
    fetching = [PythonFrame(script, "fetch", 20)]
    assert wait_for(lambda: [frame for frame in python.stack(tid) if frame.file == script][-1:], fetching) == fetching
    assert [frame.function for frame in python.stack(tid)][-3:] == ["run", "_bootstrap_inner", "_bootstrap"]


def test_thread_that_runs_no_python_has_no_frames(sleeper) -> None:
    _, pid, _, _ = sleeper
    python = find_python(pid)
    assert python is not None
    assert python.stack(2**22 + 5) == []


def test_process_without_python_is_none_and_a_dead_one_is_empty() -> None:
    process = subprocess.Popen(["sleep", "30"])
    try:
        assert find_python(process.pid) is None
    finally:
        process.kill()
        process.wait()
    assert find_python(process.pid) is None


def functions_with_lines():
    def straight(a):
        b = a + 1

        return [
            b
            for c in range(3)
            if c
        ]  # fmt: skip

    def jumps(a):
        try:
            for item in a:
                if item:
                    continue
                raise ValueError(
                    item
                )  # fmt: skip
        finally:
            a = None
        return a

    return [straight.__code__, jumps.__code__, functions_with_lines.__code__, line_of.__code__]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the running interpreter has the older line table")
def test_line_table_agrees_with_the_interpreter() -> None:
    for code in functions_with_lines():
        for start, end, line in code.co_lines():
            for unit in range(start // 2, end // 2):
                assert line_of(code.co_linetable, code.co_firstlineno, unit) == line


def test_line_table_of_310() -> None:
    """Two instructions on line 11, one without a line, one a line back, by the published pairs of deltas."""
    table = bytes([4, 1, 2, 0x80, 2, 0xFF])
    assert [line_of_310(table, 10, offset) for offset in (0, 2, 4, 6, 8)] == [11, 11, None, 10, None]
