"""F129: scheduler, processes, memory, block I/O and TCP of traced processes, caused on purpose."""

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.waiting import PATIENCE_S

from ingero.agent.ebpf.layout import FLAG_OTHER
from ingero.contract.events import OFF_CPU_PREEMPTED, OFF_CPU_SLEPT, Source

SWITCH, OOM, EXEC, EXIT, FORK, PAGES = 1, 4, 5, 6, 7, 20
METADATA_SECTORS = 8 * 8  # eight blocks that a file system reads of its own, to find 8 MiB
SPIN = "end = time.monotonic() + {seconds}\nwhile time.monotonic() < end: pass\n"
PUSH_ASIDE = """
try: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
except OSError: os.nice(-10)
end = time.monotonic() + 60
while time.monotonic() < end:
    pause = time.monotonic() + 0.002
    while time.monotonic() < pause: pass
    time.sleep(0.003)
"""


def rows(tracing, pid: int) -> dict[str, object]:
    return {row.name: row for row in tracing.tracer.histograms() if row.pid == pid}


def preempted_of(tracing):
    switches = tracing.of(Source.HOST, SWITCH)
    return switches[switches["ret"] == OFF_CPU_PREEMPTED]


def test_starved_process_shows_run_queue_waits_and_who_took_the_cpu(job, trace) -> None:
    """A process of higher priority preempts the traced one: it waits, it does not sleep."""
    traced, rival = job(), job()
    rival.do("open('/proc/self/comm', 'w').write('rival')")
    for process in (traced, rival):
        process.do("os.sched_setaffinity(0, {0})")
    tracing = trace(pids=(traced.pid,), slow_runqueue_ns=500_000)
    traced.send(SPIN.format(seconds=60))
    rival.send(PUSH_ASIDE)
    tracing.wait(
        lambda: (
            rival.pid in preempted_of(tracing)["arg1"]
            and preempted_of(tracing)["arg0"].sum() > 0.1e9
        )
    )
    switches, preempted = tracing.of(Source.HOST, SWITCH), preempted_of(tracing)
    assert set(switches["pid"]) == {traced.pid}
    assert (preempted["arg0"] == preempted["end_ns"] - preempted["start_ns"]).all()
    own_name = Path(f"/proc/{traced.pid}/comm").read_bytes().strip()
    assert set(switches["comm"].tolist()) == {own_name}, (
        "must 4: the name of who came back, not of who left"
    )
    assert rows(tracing, traced.pid)["runqueue_wait"].sum_ns > 0.1e9


def test_waits_of_untraced_processes_are_sampled_by_cgroup_must_37(job, trace, tmp_path) -> None:
    """Who is a noisy neighbour shows only beside processes that nobody asked to trace."""
    traced, other = job(), job()
    mounted = tmp_path / "cgroup"
    mounted.mkdir()
    if subprocess.run(
        ["mount", "-t", "cgroup2", "none", str(mounted)], check=False, capture_output=True
    ).returncode:
        pytest.skip("the one cgroup hierarchy cannot be mounted here")
    group = mounted / f"ingero-{other.pid}"
    try:
        try:
            group.mkdir()
            (group / "cgroup.procs").write_text(str(other.pid))
        except OSError as refused:
            pytest.skip(f"no cgroup can be made here: {refused}")
        tracing = trace(pids=(traced.pid,))
        other.send("end = time.monotonic() + 60\nwhile time.monotonic() < end: time.sleep(0.001)\n")
        inode = group.stat().st_ino
        waits = lambda: [row for row in tracing.tracer.neighbours() if row.cgroup == inode]  # noqa: E731
        tracing.wait(lambda: any(int(row.buckets.sum()) >= 10 for row in waits()))
        (row,) = waits()
        assert row.sum_ns > 0
        assert len(tracing.of(Source.HOST, SWITCH)) == 0 or set(
            tracing.of(Source.HOST, SWITCH)["pid"]
        ) == {traced.pid}
    finally:
        other.close()
        with contextlib.suppress(OSError):
            group.rmdir()
        subprocess.run(["umount", "-l", str(mounted)], check=True)


def test_sleep_is_not_contention(job, trace) -> None:
    process = job()
    tracing = trace(pids=(process.pid,), record_everything=True)
    process.do("time.sleep(0.3)")
    tracing.wait(
        lambda: any(
            row["end_ns"] - row["start_ns"] > 0.29e9 for row in tracing.of(Source.HOST, SWITCH)
        )
    )
    nap = max(tracing.of(Source.HOST, SWITCH), key=lambda row: row["end_ns"] - row["start_ns"])
    assert nap["ret"] == OFF_CPU_SLEPT
    assert nap["end_ns"] - nap["start_ns"] - nap["arg0"] > 0.29e9, (
        "only the part after waking up is a wait for the CPU"
    )
    assert rows(tracing, process.pid)["sleep"].sum_ns > 0.29e9


def test_sleeps_are_not_recorded_by_default(job, trace) -> None:
    process = job()
    tracing = trace(pids=(process.pid,), slow_runqueue_ns=10**12)
    process.do("time.sleep(0.05)")
    tracing.poll()
    assert len(tracing.of(Source.HOST, SWITCH)) == 0
    assert rows(tracing, process.pid)["sleep"].calls >= 1


def test_fork_exec_and_exit_are_recorded_and_threads_are_not_processes(job, trace) -> None:
    process = job()
    tracing = trace(pids=(process.pid,))
    child = int(
        process.do(
            "t = threading.Thread(target=lambda: None); t.start(); t.join()\n"
            "result = os.spawnv(os.P_NOWAIT, '/bin/true', ['true'])\n"
        )
    )
    process.do(f"os.waitpid({child}, 0)")
    tracing.wait(lambda: len(tracing.of(Source.HOST, EXIT)) >= 1)
    assert tracing.of(Source.HOST, FORK)["arg1"].tolist() == [child]
    assert tracing.of(Source.HOST, FORK)["pid"].tolist() == [process.pid]
    assert tracing.of(Source.HOST, EXEC)["pid"].tolist() == [child]
    assert tracing.of(Source.HOST, EXIT)["pid"].tolist() == [child]
    assert tracing.of(Source.HOST, EXIT)["comm"].tolist() == [b"true"]


def test_fork_in_a_thread_belongs_to_its_process_must_3(job, trace) -> None:
    """The tracepoint has the forking thread; children of a process with threads are found."""
    process = job()
    tracing = trace(pids=(process.pid,))
    child = int(
        process.do(
            "def fork():\n  global result\n  result = os.spawnv(os.P_NOWAIT, '/bin/true', "
            "['true'])\n"
            "t = threading.Thread(target=fork); t.start(); t.join()\n"
        )
    )
    process.do(f"os.waitpid({child}, 0)")
    tracing.wait(lambda: child in tracing.of(Source.HOST, EXIT)["pid"])
    (fork,) = tracing.of(Source.HOST, FORK)
    assert (int(fork["pid"]), int(fork["arg1"])) == (process.pid, child)
    assert fork["tid"] != process.pid


def test_processes_have_a_ring_of_their_own_and_what_it_loses_is_counted_must_10(
    job, trace
) -> None:
    """A hundred children fork and exit undrained: each is recorded or counted as lost."""
    process = job()
    process.do("rt = load('libcudart.so.12')")
    tracing = trace(
        pids=(process.pid,),
        record_everything=True,
        rescan_s=1000.0,
        map_sizes=(("critical_ring", 4096),),
    )
    # a flood elsewhere costs nothing here
    process.do("[rt.cudaDeviceSynchronize() for _ in range(5000)]")
    process.do(
        "for _ in range(100):\n  pid = os.fork()\n  if not pid: os._exit(0)\n  os.waitpid(pid, 0)\n"
    )
    tracing.poll()
    kept = len(tracing.of(Source.HOST, FORK)) + len(tracing.of(Source.HOST, EXIT))
    lost = tracing.tracer.losses()["critical"]
    assert kept > 0 and lost > 0
    assert kept + lost == 200


def test_page_allocations_are_summed_per_process(job, trace) -> None:
    process = job()
    tracing = trace(pids=(process.pid,))
    tracing.poll()
    process.do("block = bytearray(64 << 20)")
    tracing.wait(lambda: tracing.of(Source.HOST, PAGES)["arg1"].sum() >= 64 << 20)
    summary = tracing.of(Source.HOST, PAGES)
    assert set(summary["pid"]) == {process.pid} and (summary["arg0"] > 0).all()
    assert len(tracing.of(Source.HOST, 3)) == 0, "single allocations are never records"


def file_system(path: Path) -> bytes:
    command = ["findmnt", "-no", "FSTYPE", "-T", str(path)]
    return subprocess.run(command, check=False, capture_output=True).stdout.strip()


def test_block_requests_belong_to_the_process_that_issued_them(job, trace, tmp_path) -> None:
    process = job()
    opened = process.do(
        "import mmap\n"
        f"try: fd = os.open({str(tmp_path / 'data')!r}, os.O_CREAT | os.O_RDWR | os.O_DIRECT)\n"
        "except OSError as err: fd = -1\nresult = fd\n"
    )
    if int(opened) < 0 or file_system(tmp_path) in (b"tmpfs", b"overlay"):
        pytest.skip("the temporary folder is not on a block device")
    tracing = trace(pids=(process.pid,))
    process.do(
        "page = mmap.mmap(-1, 1 << 20)\npage.write(b'x' * (1 << 20))\n"
        "[os.pwrite(fd, page, i << 20) for i in range(8)]\nos.fsync(fd)\n"
        "[os.preadv(fd, [page], i << 20) for i in range(8)]\n"
    )
    mine = lambda op: [r for r in tracing.of(Source.IO, op) if r["pid"] == process.pid]  # noqa: E731
    for op in (1, 2):
        tracing.wait(lambda op=op: sum(int(r["arg0"]) for r in mine(op)) >= 8 << 11)
    beyond = sum(int(record["arg0"]) for record in mine(1)) - (8 << 11)
    assert 0 <= beyond <= METADATA_SECTORS, "8 MiB in sectors of 512 bytes"
    assert sum(int(record["arg0"]) for record in mine(2)) >= 8 << 11
    assert all(
        record["end_ns"] > record["start_ns"] and not record["flags"] & FLAG_OTHER
        for record in mine(1)
    )
    own_name = Path(f"/proc/{process.pid}/comm").read_bytes().strip()
    assert {bytes(record["comm"]) for record in mine(1)} == {own_name}, "must 4: of who issued it"
    assert rows(tracing, process.pid)["block_io"].calls >= len(mine(1)) + len(mine(2))


def test_process_that_waits_for_the_disk_shows_io_waits(job, trace, tmp_path) -> None:
    process = job()
    tracing = trace(pids=(process.pid,), slow_io_wait_ns=0)
    process.do(
        f"fd = os.open({str(tmp_path / 'sync')!r}, os.O_CREAT | os.O_WRONLY)\n"
        "for i in range(20): os.write(fd, b'x' * 65536); os.fsync(fd)\n"
    )
    tracing.poll()
    seen = rows(tracing, process.pid)
    if "block_io" not in seen:
        pytest.skip("the temporary folder is not on a block device")
    assert seen.keys() & {"io_wait", "sleep"}


def test_oom_kill_names_the_victim(job, trace) -> None:
    group = next(
        (
            Path(p) / f"ingero-test-{os.getpid()}"
            for p in ("/sys/fs/cgroup/memory", "/sys/fs/cgroup")
            if (Path(p) / "cgroup.procs").exists()
        ),
        None,
    )
    if group is None:
        pytest.skip("no cgroup tree to make an out-of-memory kill in")
    try:
        group.mkdir(exist_ok=True)
        limit = next(
            group / name
            for name in ("memory.max", "memory.limit_in_bytes")
            if (group / name).exists()
        )
        limit.write_text(str(40 << 20))
    except (OSError, StopIteration):
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip("no memory controller to make an out-of-memory kill with")
    victim = job()
    tracing = trace(pids=(victim.pid,))
    (group / "cgroup.procs").write_text(str(victim.pid))
    victim.send("x = bytearray(400 << 20)")
    assert victim.process.wait(PATIENCE_S) == -9
    tracing.wait(lambda: len(tracing.of(Source.HOST, OOM)) >= 1)
    assert victim.pid in tracing.of(Source.HOST, OOM)["arg1"].tolist()
    group.rmdir()


RETRANSMIT = """
import fcntl, socket, struct, sys
control = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
fcntl.ioctl(control, 0x8914, struct.pack("16sH14x", b"lo", 0x1 | 0x40))  # lo up
def address(text): return struct.pack("<HH4s8x", socket.AF_INET, 0, socket.inet_aton(text))
route = struct.pack("Q", 0) + address("10.9.0.0") + address("0.0.0.0") + address("255.255.0.0")
route += struct.pack("HhQQ", 1, 0, 0, 0)
name = __import__("ctypes").create_string_buffer(b"lo")
route += struct.pack("hxxxxxxQQQH6x", 0, __import__("ctypes").addressof(name), 0, 0, 0)
fcntl.ioctl(control, 0x890B, route)
sender = socket.socket()
sender.bind(("127.0.0.1", 45678))
sender.settimeout(2.5)
try: sender.connect(("10.9.1.1", 9))
except OSError as err: print(err)
"""


def test_tcp_retransmission_is_recorded_with_its_ports_and_its_owner(job, trace) -> None:
    """One connection of a traced process and one of another, in a network without replies."""
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed")
    process = job("unshare", "-n")
    tracing = trace(pids=(process.pid,))
    code = RETRANSMIT.replace("45678", "45679")
    stranger = subprocess.Popen(
        ["unshare", "-n", sys.executable, "-c", code], stdout=subprocess.PIPE
    )
    try:
        process.send(RETRANSMIT)
        tracing.wait(
            lambda: {45678, 45679} <= set((tracing.of(Source.TCP, 1)["arg1"] >> 16).tolist()), 8
        )
    except AssertionError:
        pytest.skip("no packet could be lost on purpose here")
    finally:
        stranger.kill()
        stranger.communicate()
    records = {int(record["arg1"]) >> 16: record for record in tracing.of(Source.TCP, 1)}
    assert int(records[45678]["arg1"]) & 0xFFFF == 9
    assert int(records[45678]["arg0"]) & 0xFFFFFFFF == 10 << 24 | 9 << 16 | 1 << 8 | 1
    assert records[45678]["pid"] == process.pid
    assert records[45679]["pid"] == 0, "nobody's: the timer interrupted whoever was running"
