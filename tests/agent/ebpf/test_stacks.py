"""F153: a slow call of a Python process is recorded with its native caller and Python line."""

import json
import subprocess
import sys
from pathlib import Path

from tests.support.waiting import PATIENCE_S

from ingero.storage.trace.reading import connect_readonly


def test_recorded_slow_call_names_function_and_python_line(job, trace, tmp_path: Path) -> None:
    trace(pids=(), layers=frozenset({"runtime"}))  # skips where the kernel refuses
    process = job()
    process.do(
        "rt = load('libcudart.so.12')\n"
        "def busy_step():\n"
        "    stop = time.monotonic() + 600\n"
        "    while time.monotonic() < stop:\n"
        "        rt.cudaMemcpy(P(1), P(2), S(777), I(1))\n"
    )
    process.send("busy_step()")
    database = tmp_path / "trace.db"
    command = [
        sys.executable,
        "-m",
        "ingero",
        "trace",
        "--pid",
        str(process.pid),
        "--duration",
        "2",
        "--db",
        database,
    ]
    done = subprocess.run(
        list(map(str, [*command, "--json"])), capture_output=True, check=True, timeout=PATIENCE_S
    )
    printed = [
        frame for line in done.stdout.splitlines() for frame in json.loads(line).get("stack", [])
    ]
    assert "busy_step" in {frame.get("py_func") for frame in printed}, (
        "JSON lines name the frames too"
    )
    connection = connect_readonly(database)
    sql = (
        "SELECT frames FROM stack_traces WHERE hash IN (SELECT stack_hash FROM events WHERE "
        "source = 1 AND op = 4)"
    )
    stacks = [json.loads(text) for (text,) in connection.execute(sql) if text]
    connection.close()
    assert stacks, "3 ms calls are slow: they carry a stack"
    functions = {frame.get("pfn") for stack in stacks for frame in stack}
    files = {frame.get("f", "") for stack in stacks for frame in stack}
    assert "busy_step" in functions
    assert any("ffi" in file for file in files), (
        "the native caller: ctypes' foreign function library"
    )
