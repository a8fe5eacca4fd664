"""A whole recording of real processes, read with `explain` and `query`. Needs root and BPF."""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.gpu_jobs import FAKES, Job, compile_library, require_bpf
from tests.support.waiting import PATIENCE_S

from ingero.agent.ebpf.attach import ProbeMode
from ingero.storage.trace.chains import RecordedChain, read_chains
from ingero.storage.trace.reading import connect_readonly

CPU_BOUND = """
import ctypes, os, sys, time
os.sched_setaffinity(0, {0})
runtime = ctypes.CDLL(sys.argv[1])
print("ready", flush=True)
end = time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    runtime.cudaStreamSynchronize(None)
"""
IO_BOUND = """
import ctypes, sys, time
runtime = ctypes.CDLL(sys.argv[1])
runtime.cudaMemcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
print("ready", flush=True)
end = time.monotonic() + float(sys.argv[2])
call = 0
while time.monotonic() < end:
    call += 1
    runtime.cudaMemcpy(None, None, 2 * call + (call % 40 == 0), 1)
    time.sleep(0.001)
"""
LAUNCHES = """
import ctypes, sys, time
runtime = ctypes.CDLL(sys.argv[1] + '/libcudart.so.12')
print('ready', flush=True)
sys.stdin.readline()
for _ in range(300):
    for _ in range(40):
        runtime.cudaLaunchKernel(ctypes.c_void_p(1), 1, 1, 1, 1, 1, 1, None, 0, None)
    runtime.cudaStreamSynchronize(None)
    time.sleep(0.012)
print('done', flush=True)
sys.stdin.readline()
"""
HOG = "import os\nos.sched_setaffinity(0, {0})\nwhile True: pass"


@pytest.fixture(scope="module")
def starved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require_bpf()
    return compile_library(
        FAKES / "starved.c", tmp_path_factory.mktemp("starved") / "libcudart.so.12"
    )


def start(code: str, *args: object, **environ: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", code, *map(str, args)],
        stdout=subprocess.PIPE, text=True, env=os.environ | environ,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def trace_command(*args: object) -> list[str]:
    return [sys.executable, "-m", "ingero", "trace", *map(str, args)]


def run_trace(*args: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        trace_command(*args), capture_output=True, text=True, timeout=2 * PATIENCE_S, check=True
    )


def chains(path: Path, op: str) -> list[RecordedChain]:
    connection = connect_readonly(path)
    try:
        return [chain for chain in read_chains(connection) if chain.chain.cuda_op == op]
    finally:
        connection.close()


def test_a_cpu_starved_process_gets_the_right_chain(starved: Path, tmp_path: Path) -> None:
    """F134, F142, F153: preemption is the cause; the preempting process and the rank are named."""
    hog = subprocess.Popen([sys.executable, "-I", "-c", HOG])
    job = start(CPU_BOUND, starved, 600, RANK="3", LOCAL_RANK="1", WORLD_SIZE="8")
    db = tmp_path / "t.db"
    try:
        run_trace("--pid", job.pid, "--db", db, "--node", "n1", "--duration", "4s")
    finally:
        hog.kill()
        job.kill()
        hog.wait()
        job.communicate()
    assert_preemption_is_explained(chains(db, "cudaStreamSync"), job.pid)
    assert_calls_and_switches_are_rows(db, job.pid, hog.pid)


def assert_preemption_is_explained(found: list[RecordedChain], pid: int) -> None:
    assert found, "a tail with preemption must be explained"
    text = found[0].chain
    assert "sched_switch events" in text.root_cause
    fewer = ("renice -n 19 -p ", "CPUWeight=10", "cpu.weight")
    advised = [line for line in text.recommendations if any(word in line for word in fewer)]
    assert advised, text.recommendations
    assert any(
        f"taskset -acp 1 {pid} (" in line or f" {pid} (" in line
        for line in text.recommendations
        if "taskset" in line
    )
    assert text.confidence is not None and text.confidence > 0.5
    assert not any(
        "block I/O" in chain.chain.root_cause and "by" not in chain.chain.root_cause
        for chain in found
    )


def assert_calls_and_switches_are_rows(db: Path, pid: int, taker: int) -> None:
    connection = connect_readonly(db)
    takers = {
        row[0]
        for row in connection.execute("SELECT arg1 FROM events WHERE source = 3 AND ret_code = 1")
    }
    assert taker in takers, "others on this machine may take the CPU too, the hog does for sure"
    ids = [
        row[0]
        for row in connection.execute(
            "SELECT id FROM events ORDER BY CAST(substr(id, 4) AS INTEGER)"
        )
    ]
    assert ids == [f"n1:{number}" for number in range(1, len(ids) + 1)]
    assert connection.execute(
        "SELECT DISTINCT rank, local_rank, world_size FROM events WHERE pid = ? AND source = 1",
        (pid,),
    ).fetchall() == [(3, 1, 8)]
    waited_ns, waits = connection.execute(
        "SELECT sum(total_off_cpu), sum(event_count) FROM cgroup_schedstat JOIN cgroup_metadata "
        "USING (cgroup_id)"
    ).fetchone()
    connection.close()
    assert waits > 5 and waited_ns > 5_000_000, "half of the time the hog had the CPU"


def test_an_io_starved_process_gets_the_right_chain(starved: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.write_bytes(os.urandom(1 << 20) * 70)
    os.sync()
    job = start(IO_BOUND, starved, 600, STARVED_FILE=str(data))
    db = tmp_path / "t.db"
    try:
        run_trace("--pid", job.pid, "--db", db, "--node", "n1", "--duration", "4s")
    finally:
        job.kill()
        job.communicate()
    connection = connect_readonly(db)
    explained = connection.execute(
        "SELECT count(*) FROM events e JOIN stack_traces s ON s.hash = e.stack_hash "
        "WHERE e.op = 4 AND s.frames LIKE '%\"pf\"%'"
    ).fetchone()[0]
    requests = connection.execute(
        "SELECT count(*) FROM events WHERE source = 5 AND pid = ?", (job.pid,)
    ).fetchone()[0]
    connection.close()
    if not requests:
        pytest.skip("the temporary folder is not on a block device: nothing to starve on")
    found = chains(db, "cudaMemcpy")
    assert found
    assert "heavy block I/O" in found[0].chain.root_cause
    assert explained > 0, "slow calls know the Python line they came from"
    assert "heavy block I/O by" not in found[0].chain.root_cause, (
        "its own requests, not somebody else's"
    )
    assert any("Reads dominate" in line for line in found[0].chain.recommendations)


def test_ctrl_c_leaves_a_complete_file_and_nothing_in_the_kernel(
    starved: Path, tmp_path: Path
) -> None:
    job = start(CPU_BOUND, starved, 600)
    db = tmp_path / "t.db"
    command = trace_command("--pid", job.pid, "--db", db, "--json", "--heartbeat", "1s")
    tracing = subprocess.Popen(
        [*command, "--metrics-listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert tracing.stdout is not None and tracing.stderr is not None
    metrics_at = next(line for line in tracing.stderr if "metrics at" in line).split()[-1]
    said: list[str] = []
    while not any('"heartbeat"' in line for line in said) or not any(
        '"cudaStreamSync"' in line for line in said
    ):
        said.append(tracing.stdout.readline())
        assert said[-1], "the recorder ended by itself"
    check_metrics(metrics_at)
    reader = connect_readonly(db)
    reader.execute("SELECT count(*) FROM events").fetchone()
    reader.close()
    tracing.send_signal(signal.SIGINT)
    rest = tracing.stdout.read()  # not communicate(): it forgets what readline() has read ahead
    tracing.stdout.close()
    tracing.stderr.close()
    assert tracing.wait(PATIENCE_S) == 0
    assert job.poll() is None, "the traced job goes on"
    job.kill()
    job.communicate()
    lines = [json.loads(line) for line in [*said, *rest.splitlines()]]
    assert lines[-1]["type"] == "heartbeat"
    assert lines[-1]["state"] == "recording"
    sync = next(line for line in lines if line.get("op") == "cudaStreamSync")
    keys = "timestamp pid tid process_name source duration_ns duration args anomaly"
    assert set(keys.split()) <= set(sync)
    check_complete(db)


def check_metrics(address: str) -> None:
    """A recording that goes on says what it lost and how large its file is."""
    with urllib.request.urlopen(address, timeout=PATIENCE_S) as answer:
        metrics = answer.read().decode()
    assert 'ingero_ringbuf_overflows_total{ring="calls"} 0\n' in metrics
    assert "ingero_trace_recording 1\n" in metrics
    assert float(metrics.split("\ningero_trace_db_bytes ")[1].split()[0]) > 4096


def check_complete(db: Path) -> None:
    """The file has everything, and its session has an end."""
    assert not db.with_name("t.db-wal").exists()
    connection = connect_readonly(db)
    started, stopped = connection.execute("SELECT started_at, stopped_at FROM sessions").fetchone()
    assert 0 < started < stopped
    counted, calls = connection.execute(
        "SELECT sum(count), (SELECT count(*) FROM events WHERE source = 1) FROM event_aggregates "
        "WHERE source = 1"
    ).fetchone()
    connection.close()
    assert counted >= calls > 0


def test_counts_in_the_aggregates_are_exact(fake_gpu: Path, tmp_path: Path) -> None:
    """Launches are sampled, but both aggregate tables count every one, by source."""
    require_bpf()
    job = subprocess.Popen(
        [sys.executable, "-I", "-c", LAUNCHES, str(fake_gpu)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert job.stdin and job.stdout
    job.stdout.readline()
    db = tmp_path / "t.db"
    with subprocess.Popen(
        trace_command("--pid", job.pid, "--db", db, "--duration", "300s"),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    ) as tracing:
        assert tracing.stderr is not None
        assert "recording to" in tracing.stderr.readline()
        job.stdin.write("go\n")
        job.stdin.flush()
        assert job.stdout.readline() == "done\n"
        tracing.send_signal(signal.SIGTERM)
    assert tracing.returncode == 0
    job.communicate("\n", timeout=PATIENCE_S)
    connection = connect_readonly(db)
    for table in ("event_aggregates", "event_aggregates_5s"):
        totals = {
            (source, op): (count, stored)
            for source, op, count, stored in connection.execute(
                f"SELECT source, op, sum(count), sum(stored) FROM {table} WHERE source = 1 GROUP "
                f"BY 1, 2"
            )
        }
        assert totals[1, 3][0] == 12_000
        assert totals[1, 5][0] == 300
    rows = dict(
        connection.execute(
            "SELECT op, count(*) FROM events WHERE source = 1 GROUP BY op"
        ).fetchall()
    )
    connection.close()
    assert rows == {3: totals[1, 3][1], 5: totals[1, 5][1]}
    assert rows[3] < 1_000, "samples, not every launch"


def test_without_privileges_an_error_states_what_is_missing(tmp_path: Path) -> None:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv to give capabilities up")
    done = subprocess.run(
        [
            "setpriv",
            "--bounding-set=-bpf,-perfmon,-sys_admin",
            sys.executable,
            "-m",
            "ingero",
            "trace",
            "--no-record",
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        env=os.environ | {"HOME": str(tmp_path)},
    )
    assert done.returncode == 1
    assert done.stderr.startswith(
        "ingero trace: tracing needs CAP_BPF and CAP_PERFMON, which this process lacks; run `sudo"
    )


def test_libraries_of_the_test_have_the_real_names(starved: Path) -> None:
    assert ctypes.CDLL(str(starved)).cudaStreamSynchronize(None) == 0


def test_a_process_that_ends_while_its_probes_change_does_not_end_the_trace(
    job: Callable[..., Job], trace: Callable[..., Any]
) -> None:
    """The governor changes probes at any moment, and a process may have ended a moment before."""
    process = job()
    process.do("runtime = load('libcudart.so.12')\nruntime.cudaStreamSynchronize(None)")
    tracing = trace(pids=(process.pid,), rescan_s=1000.0, budget_share=None)
    numbers = list(tracing.tracer.processes()[process.pid].slots)
    assert numbers
    process.close()
    for mode in (ProbeMode.DETACHED, ProbeMode.FULL, ProbeMode.ENTRY, ProbeMode.FULL):
        for number in numbers:
            tracing.tracer.set_mode(process.pid, number, mode)
    tracing.poll()
