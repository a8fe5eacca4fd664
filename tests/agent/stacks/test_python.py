"""F153: Python source frames of running CPython 3.10 to 3.13 processes, read from outside."""

import ctypes
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.waiting import PATIENCE_S

from ingero.agent.stacks.interpreters import find_python
from ingero.agent.stacks.python import Offsets, PythonFrame, PythonProcess

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
            600
        )


class Loader:
    def fetch(self):
        [time.sleep(600) for _ in range(1)]


worker = threading.Thread(target=Loader().fetch, daemon=True)
worker.start()
outer()
"""
COLLECTING = """
import gc
kept = [[number] for number in range(200_000)]
gc.disable()
print("ready", flush=True)
input()
for _ in range(3): gc.collect()
print("collected", flush=True)
input()
while True: gc.collect()
"""
FOLDERS = (
    "/usr/bin",
    "/usr/local/bin",
    *sorted(map(str, Path("~/.pyenv/versions").expanduser().glob("*/bin"))),
)


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
    """Return (minor, pid, tid of its second thread, script) of a Python process that sleeps."""
    if os.geteuid():
        pytest.skip("reading another process needs root or ptrace rights")
    script = tmp_path / "schlafmütze 睡.py"
    script.write_text(SCRIPT)
    process = subprocess.Popen(
        [interpreter(request.param), str(script)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    tid = int(process.stdout.readline())
    yield request.param, process.pid, tid, str(script)
    process.kill()
    process.communicate()


def wait_for(
    frames_of: Callable[[], list[PythonFrame]], wanted: list[PythonFrame]
) -> list[PythonFrame]:
    """Read until the process has arrived where it sleeps."""
    end = time.monotonic() + PATIENCE_S
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
    assert (
        wait_for(
            lambda: [frame for frame in python.stack(tid) if frame.file == script][-1:], fetching
        )
        == fetching
    )
    assert [frame.function for frame in python.stack(tid)][-3:] == [
        "run",
        "_bootstrap_inner",
        "_bootstrap",
    ]


def test_remembered_code_gives_the_same_frames(sleeper) -> None:
    _, pid, _, script = sleeper
    python = find_python(pid)
    assert python is not None
    expected = [
        PythonFrame(script, function, line)
        for function, line in [("inner", 13), ("outer", 7), ("<module>", 25)]
    ]
    python.remember_code()
    assert wait_for(lambda: python.stack(pid), expected) == expected
    assert python.stack(pid) == expected


@pytest.mark.parametrize("minor", [10, 11, 12, 13])
def test_garbage_collections_are_seen_and_counted(minor: int) -> None:
    if os.geteuid():
        pytest.skip("reading another process needs root or ptrace rights")
    process = subprocess.Popen(
        [interpreter(minor), "-c", COLLECTING], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin
    assert process.stdout
    try:
        process.stdout.readline()
        python = find_python(process.pid)
        assert python is not None
        before = python.collection()
        assert before is not None
        assert not before.is_collecting
        process.stdin.write(b"collect\n")
        process.stdin.flush()
        process.stdout.readline()
        after = python.collection()
        assert after is not None
        assert after.full == before.full + 3
        assert after.collections >= before.collections + 3
        process.stdin.write(b"collect for ever\n")
        process.stdin.flush()
        end = time.monotonic() + PATIENCE_S
        while not (seen := python.collection()) or not seen.is_collecting:
            assert time.monotonic() < end
    finally:
        process.kill()
        process.communicate()


def test_thread_that_runs_no_python_has_no_frames(sleeper) -> None:
    _, pid, _, _ = sleeper
    python = find_python(pid)
    assert python is not None
    assert python.stack(2**22 + 5) == []


class Interpreter:
    """An interpreter laid out in the memory of this process, read like any other."""

    AT = Offsets(
        head=0, threads=0, next_interpreter=8, next_thread=0, thread_id=8, native_id=8, frame=16,
        code=0, back=8,
        instruction=16, filename=0, name=8, first_line=16, line_table=24, bytecode=0, gc=0,
    )  # fmt: skip

    def __init__(self) -> None:
        self._memory: list[ctypes.Array[ctypes.c_char]] = []

    def put(self, data: bytes) -> int:
        self._memory.append(ctypes.create_string_buffer(data, len(data)))
        return ctypes.addressof(self._memory[-1])

    def words(self, *values: int) -> int:
        return self.put(struct.pack(f"<{len(values)}Q", *values))

    def text(self, value: str, state: int = 1 << 2 | 1 << 5 | 1 << 6) -> int:
        return self.put(struct.pack("<QQqqI4x", 1, 0, len(value), -1, state) + value.encode())

    def frame(self, name: int, back: int = 0) -> int:
        code = self.words(self.text("train.py"), name, 7, 0)
        return self.words(code, back, 0)

    def process(self, *interpreters: list[tuple[int, int]]) -> PythonProcess:
        """One list of (kernel thread, frame) per interpreter."""
        following = 0
        for threads in reversed(interpreters):
            state = 0
            for tid, frame in reversed(threads):
                state = self.words(state, tid, frame)
            following = self.words(state, following)
        return PythonProcess(os.getpid(), 13, self.words(following), self.AT)


def test_a_nameless_state_is_the_main_threads_only_if_all_states_were_seen_must_51() -> None:
    fake, pid = Interpreter(), os.getpid()
    frame = fake.frame(fake.text("step"))
    step = [PythonFrame("train.py", "step", 7)]
    assert fake.process([(0, frame)]).stack(pid) == step
    assert fake.process([(0, frame)]).stack(pid + 1) == [], "another thread than the main one"
    assert fake.process([(0, frame), (0, frame)]).stack(pid) == [], "two candidates"
    assert fake.process([(0, frame)], [], [], []).stack(pid) == step, (
        "further interpreters without threads"
    )
    assert fake.process([(0, frame)], [], [], [], []).stack(pid) == [], (
        "more interpreters than are looked at"
    )


def test_a_state_of_another_thread_is_not_the_main_threads_must_51() -> None:
    """A program whose only Python thread is not its main one."""
    fake, end = Interpreter(), threading.Event()
    other = threading.Thread(target=end.wait)
    other.start()
    try:
        python = fake.process([(other.native_id or 0, fake.frame(fake.text("serve")))])
        assert python.stack(other.native_id or 0) == [PythonFrame("train.py", "serve", 7)]
        assert python.stack(os.getpid()) == []
    finally:
        end.set()
        other.join()


def test_frames_whose_names_cannot_be_read_are_counted_must_52() -> None:
    fake = Interpreter()
    not_compact = fake.text("legacy", state=1 << 2)
    inner = fake.frame(not_compact, back=fake.frame(fake.text("main")))
    python = fake.process([(os.getpid(), inner)])
    assert python.stack(os.getpid()) == [PythonFrame("train.py", "main", 7)]
    assert python.skipped_names == 1


@pytest.fixture
def wait_here(tmp_path: Path) -> Iterator[Callable[..., int]]:
    """Start a script that sleeps, and return its pid; the last child of its command is meant."""
    if os.geteuid():
        pytest.skip("reading another process needs root or ptrace rights")
    script = tmp_path / "sleeper.py"
    script.write_text(SCRIPT)
    started: list[subprocess.Popen[str]] = []

    def start(*command: str) -> int:
        process = subprocess.Popen(
            [*command, str(script)], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        started.append(process)
        assert process.stdout and process.stdout.readline()
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        return int(children[-1]) if children else process.pid

    yield start
    for process in started:
        os.killpg(process.pid, 9)
        process.communicate()


def functions(python: PythonProcess, tid: int) -> list[str]:
    return [frame.function for frame in python.stack(tid)]


def test_frames_are_read_in_a_container_where_threads_have_other_numbers(wait_here) -> None:
    pid = wait_here("unshare", "--pid", "--fork", sys.executable)
    python = find_python(pid)
    assert python is not None
    end = time.monotonic() + PATIENCE_S
    while functions(python, pid)[:1] != ["inner"] and time.monotonic() < end:
        time.sleep(0.01)
    assert functions(python, pid) == ["inner", "outer", "<module>"]
    tids = [int(each.name) for each in Path(f"/proc/{pid}/task").iterdir()]
    [other] = [tid for tid in tids if tid != pid]
    assert "fetch" in functions(python, other)


def test_an_interpreter_is_found_whatever_its_name_is(wait_here, tmp_path: Path) -> None:
    """As in environments that copy it, and in programs that hold one."""
    system = Path("/usr/bin/python3.11")
    if not system.exists():
        pytest.skip("this test needs an interpreter that is one file")
    renamed = tmp_path / "trainer"
    renamed.write_bytes(system.read_bytes())
    renamed.chmod(0o755)
    python = find_python(wait_here(str(renamed)))
    assert python is not None and python.minor == 11
