"""Which processes hold a Python interpreter, and why frames of others cannot be read."""

import os
import subprocess
from pathlib import Path

import pytest
from tests.support.compiler import compile_c

from ingero.agent.stacks.interpreters import find_python, read_python
from ingero.errors import Unavailable


@pytest.mark.parametrize(
    ("symbols", "found"),
    [("char _PyRuntime[64];", True), ("char _PyRuntime[64]; long _Py_RefTotal;", False)],
)
def test_offsets_of_release_builds_are_never_used_on_debug_builds_must_53(
    tmp_path: Path, symbols: str, found: bool
) -> None:
    source, library = tmp_path / "python.c", tmp_path / "libpython3.12.so.1.0"
    source.write_text(f"{symbols} int code(void) {{ return 1; }}")
    compile_c(source, library, "-shared", "-fPIC")
    with subprocess.Popen(
        ["cat"],
        env={"LD_PRELOAD": str(library), "PATH": "/usr/bin:/bin"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout and process.stdin
        process.stdin.write(b"loaded\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"loaded\n"
        python = find_python(process.pid)
        process.stdin.close()
    assert (python is not None and python.minor == 12) == found


def test_process_without_python_is_none_and_a_dead_one_is_empty() -> None:
    process = subprocess.Popen(["sleep", "30"])
    try:
        assert find_python(process.pid) is None
    finally:
        process.kill()
        process.wait()
    assert find_python(process.pid) is None


def test_why_frames_cannot_be_read_is_said() -> None:
    with pytest.raises(Unavailable, match="may not be read"):
        read_python(2**22 - 1)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        with pytest.raises(Unavailable, match="maps no Python interpreter with symbols"):
            read_python(process.pid)  # perhaps before its files are mapped: its map may be read
        process.kill()


def test_a_process_whose_program_is_not_mapped_is_not_taken_for_one_that_may_not_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    only_a_stack = "7ffc1a2b0000-7ffc1a2d1000 rw-p 00000000 00:00 0    [stack]\n"
    monkeypatch.setattr("ingero.agent.stacks.interpreters.read_maps", lambda _pid: only_a_stack)
    with pytest.raises(Unavailable, match="maps no Python interpreter with symbols"):
        read_python(os.getpid())
