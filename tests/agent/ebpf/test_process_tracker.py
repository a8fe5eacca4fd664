"""F129: processes and libraries that come, go, move and multiply while we trace."""

import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.support.gpu_jobs import FAKES, compile_library

from ingero.agent.ebpf import process_tracker
from ingero.agent.ebpf.attach import find_sites
from ingero.agent.ebpf.functions import FUNCTIONS, RUNTIME
from ingero.agent.ebpf.policy import TracePolicy
from ingero.agent.ebpf.process_tracker import ProcessTracker
from ingero.agent.processes.budget import UserBudget
from ingero.agent.processes.discover import Library
from ingero.contract.events import Source

LAUNCH = next(
    number for number, function in enumerate(FUNCTIONS) if function.name == "cuLaunchKernel"
)
SYNC = "[rt.cudaDeviceSynchronize() for _ in range({})]\n"


def attached(tracing, pid: int) -> bool:
    return bool(tracing.tracer.processes().get(pid) and tracing.tracer.processes()[pid].slots)


def test_library_loaded_later_is_traced_from_then_on(job, trace) -> None:
    process = job()
    tracing = trace(pids=(process.pid,), rescan_s=0.05)
    assert not attached(tracing, process.pid)
    process.do("rt = load('libcudart.so.12')")
    tracing.wait(lambda: attached(tracing, process.pid))
    process.do(SYNC.format(9))
    tracing.wait(lambda: len(tracing.of(Source.CUDA, 6)) == 9)


def test_processes_are_found_by_themselves_and_forgotten_when_they_end(job, trace) -> None:
    tracing = trace(rescan_s=0.05)
    process = job()
    process.do("rt = load('libcudart.so.12')")
    tracing.wait(lambda: attached(tracing, process.pid))
    process.do(SYNC.format(3))
    tracing.wait(
        lambda: len([r for r in tracing.of(Source.CUDA, 6) if r["pid"] == process.pid]) == 3
    )
    process.close()
    tracing.wait(lambda: process.pid not in tracing.tracer.processes())


def test_two_copies_in_one_process_are_both_traced(
    job, trace, fake_gpu: Path, tmp_path: Path
) -> None:
    venv = tmp_path / "venv" / "nvidia" / "cuda_runtime" / "lib"
    venv.mkdir(parents=True)
    shutil.copy(fake_gpu / "libcudart.so.12", venv / "libcudart.so.12")
    process = job()
    process.do(
        f"rt = load('libcudart.so.12'); copy = ctypes.CDLL({str(venv / 'libcudart.so.12')!r})"
    )
    tracing = trace(pids=(process.pid,))
    process.do(SYNC.format(4) + "[copy.cudaDeviceSynchronize() for _ in range(5)]")
    tracing.wait(lambda: len(tracing.of(Source.CUDA, 6)) == 9)
    assert tracing.count(process.pid, "cudaDeviceSynchronize") == 9


def test_replaced_file_is_no_obstacle_for_old_and_new_processes(
    job, trace, fake_gpu: Path, tmp_path: Path
) -> None:
    """A package upgrade replaces the file under a running job; the next job maps the new one."""
    folder = tmp_path / "lib"
    shutil.copytree(fake_gpu, folder)
    before = job(folder=folder)
    before.do("rt = load('libcudart.so.12')")
    shutil.copy(folder / "libcudart.so.12", folder / "new")
    (folder / "new").replace(folder / "libcudart.so.12")
    after = job(folder=folder)
    after.do("rt = load('libcudart.so.12')")
    tracing = trace(pids=(before.pid, after.pid))
    before.do(SYNC.format(2))
    after.do(SYNC.format(3))
    tracing.wait(lambda: len(tracing.of(Source.CUDA, 6)) == 5)
    pids = tracing.of(Source.CUDA, 6)["pid"].tolist()
    assert (pids.count(before.pid), pids.count(after.pid)) == (2, 3)


def test_library_that_exists_only_inside_a_container_is_traced(
    job, trace, fake_gpu: Path, tmp_path: Path
) -> None:
    """A private mount namespace with the library on a file system nobody else sees."""
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed")
    inside = tmp_path / "inside"
    inside.mkdir()
    script = f'mount -t tmpfs none {inside} && cp {fake_gpu}/* {inside} && exec "$@"'
    probe = subprocess.run(
        ["unshare", "-m", "sh", "-c", f"mount -t tmpfs none {inside}"], check=False
    )
    if probe.returncode:
        pytest.skip("no private mount namespace can be made here")
    process = job("unshare", "-m", "sh", "-c", script, "sh", folder=inside)
    process.do("rt = load('libcudart.so.12')")
    assert not (inside / "libcudart.so.12").exists()
    tracing = trace(pids=(process.pid,))
    process.do(SYNC.format(6))
    tracing.wait(lambda: len(tracing.of(Source.CUDA, 6)) == 6)


def test_container_with_its_own_root_and_pids_is_traced_in_its_own_copy(
    job, trace, fake_gpu: Path, tmp_path: Path
) -> None:
    """The container has its own root, pids and mounts.

    Under the path of its library the host has another file with functions elsewhere: a probe
    placed by path would be in the middle of an instruction.
    """
    if shutil.which("unshare") is None or os.geteuid():
        pytest.skip("needs unshare and root")
    inside, root = tmp_path / "lib", tmp_path / "root"
    inside.mkdir()
    root.mkdir()
    decoy = compile_library(FAKES / "fakegpu.c", inside / "libcudart.so.12", "-DLIBRARY=1", "-O0")
    shutil.copy(fake_gpu / "libburst.so", inside)
    script = (
        f"mount --rbind / {root} && mount -t proc proc {root}/proc && mount -t tmpfs none "
        f"{root}{inside} && "
        f'cp {fake_gpu}/* {root}{inside} && exec chroot {root} "$@"'
    )
    separate = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script, "sh")
    if subprocess.run([*separate, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no container can be made here")
    outer = job(*separate, folder=inside)
    assert int(outer.do("rt = load('libcudart.so.12')\nresult = os.getpid()")) == 1
    children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
    pid = int(children[0])
    assert (
        Path(f"/proc/{pid}/root") / inside.relative_to("/") / decoy.name
    ).stat().st_ino != decoy.stat().st_ino
    tracing = trace(pids=(pid,))
    outer.do(SYNC.format(6) + "rt.cudaMemcpy(P(1), P(2), S(123), I(1))")
    tracing.wait(lambda: len(tracing.of(Source.CUDA, 4)) == 1)
    assert len(tracing.of(Source.CUDA, 6)) == 6
    assert set(tracing.of(Source.CUDA, 6)["pid"]) == {pid}, "the number the host knows it by"
    assert tracing.of(Source.CUDA, 4)["arg0"].tolist() == [123]


def test_forked_child_is_traced_under_its_own_pid(job, trace) -> None:
    process = job()
    process.do("rt = load('libcudart.so.12')")
    tracing = trace(pids=(process.pid,))
    child = int(
        process.do(
            "import select\nread, write = os.pipe()\npid = os.fork()\n"
            "if pid == 0:\n    os.read(read, 1)\n    [rt.cudaDeviceSynchronize() for _ in "
            "range(11)]\n    os._exit(0)\n"
            "result = pid"
        )
    )
    tracing.wait(lambda: attached(tracing, child))
    process.do(SYNC.format(2) + "os.write(write, b'x'); os.waitpid(pid, 0)")
    tracing.wait(lambda: len(tracing.of(Source.CUDA, 6)) == 13)
    pids = tracing.of(Source.CUDA, 6)["pid"].tolist()
    assert (pids.count(process.pid), pids.count(child)) == (2, 11)


def test_children_are_left_alone_when_asked(job, trace) -> None:
    process = job()
    tracing = trace(pids=(process.pid,), follow_children=False)
    child = int(process.do("result = os.spawnv(os.P_NOWAIT, '/bin/sleep', ['sleep', '0.2'])"))
    tracing.wait(lambda: len(tracing.of(Source.HOST, 7)) == 1)
    assert child not in tracing.tracer.processes()


def test_symbols_a_library_does_not_have_are_no_probes_must_20(job, trace, fake_gpu: Path) -> None:
    process = job()
    process.do("rt = load('libcudart.so.12')")
    tracing = trace(pids=(process.pid,), layers=frozenset({"runtime"}))
    (own,) = tracing.tracer.processes().values()
    sites = find_sites(str(fake_gpu / "libcudart.so.12"), Library.CUDART)
    runtime = {number for number in sites if FUNCTIONS[number].source == Source.CUDA}
    assert own.watched() == dict.fromkeys(runtime, True)
    assert 5 < len(runtime) < len(RUNTIME)
    assert own.failures == {}


def test_foreign_file_with_the_right_name_is_reported_not_attached(
    job, trace, fake_gpu: Path, tmp_path: Path
) -> None:
    """A file called libnccl.so.2 that is no library: one failing path does not stop the others."""
    fake = tmp_path / "libnccl.so.2"
    fake.write_text("not a library" * 1000)
    process = job()
    process.do(
        "import mmap\nrt = load('libcudart.so.12')\n"
        f"held = mmap.mmap(os.open({str(fake)!r}, os.O_RDONLY), 0, prot=mmap.PROT_READ)\n"
    )
    tracing = trace(pids=(process.pid,))
    process.do(SYNC.format(2))
    tracing.wait(lambda: len(tracing.of(Source.CUDA, 6)) == 2)
    problems = [one for one in tracing.tracer.capabilities() if not one.on]
    assert [one.name for one in problems] == [f"process {process.pid}: {fake}"]
    assert "not a 64-bit little-endian ELF" in problems[0].detail


def test_program_that_replaces_itself_is_counted_once(job, trace) -> None:
    """exec keeps the pid and maps the same library file again.

    A total that fell would look like a new process.
    """
    process = job()
    process.do("rt = load('libcudart.so.12')")
    tracing = trace(pids=(process.pid,), rescan_s=0.05, keep_ended_s=0.0)
    process.do(SYNC.format(2))
    tracing.wait(lambda: len(tracing.of(Source.CUDA, 6)) == 2)
    process.send("os.execv(sys.executable, [sys.executable, '-I', *sys.argv])")
    assert process.answer() == "ready"
    process.do("rt = load('libcudart.so.12')")
    tracing.wait(lambda: attached(tracing, process.pid) and len(tracing.of(Source.HOST, 5)) == 1)
    process.do(SYNC.format(5))
    tracing.wait(lambda: len(tracing.of(Source.CUDA, 6)) == 7)
    tracing.poll()
    assert len(tracing.of(Source.CUDA, 6)) == 7
    assert tracing.count(process.pid, "cudaDeviceSynchronize") == 7


def test_driver_that_comes_later_takes_the_launches_over(job, trace) -> None:
    process = job()
    process.do("rt = load('libcudart.so.12')")
    tracing = trace(pids=(process.pid,), rescan_s=0.05)
    launch = "burst.burst(address(rt.cudaLaunchKernel), 10, 0)"
    process.do(launch)
    process.do("cu = load('libcuda.so.1')")
    tracing.wait(lambda: LAUNCH in tracing.tracer.processes()[process.pid].slots)
    process.do(launch + "\ncu.cuLaunchKernel(P(1), *[I(1)] * 6, I(0), P(0), None, None)")
    tracing.poll()
    assert tracing.count(process.pid, "cudaLaunchKernel") == 10, "counted until the driver came"
    assert tracing.count(process.pid, "cuLaunchKernel") == 1


def test_last_counts_of_an_ended_process_can_still_be_read(job, trace) -> None:
    process = job()
    process.do("rt = load('libcudart.so.12')")
    tracing = trace(pids=(process.pid,), rescan_s=0.05)
    process.do(SYNC.format(8))
    process.close()
    tracing.wait(lambda: process.pid not in tracing.tracer.processes())
    assert tracing.count(process.pid, "cudaDeviceSynchronize") == 8
    tracing.tracer._ended[process.pid].until_s = 0.0
    assert tracing.count(process.pid, "cudaDeviceSynchronize") == 0


def test_number_of_a_dead_process_is_not_wanted_for_ever_must_57(job, trace) -> None:
    """The next process under that number may be anybody's."""
    process, ended = job(), job()
    tracing = trace(pids=(process.pid,), rescan_s=0.01)
    ended.close()
    tracing.tracer._tracker.add(ended.pid)
    tracing.wait(lambda: ended.pid not in tracing.tracer._tracker._roots)
    assert tracing.tracer._tracker._roots == {process.pid}


def test_child_that_was_not_wanted_is_not_left_in_the_kernel(job, trace) -> None:
    process = job()
    tracing = trace(pids=(process.pid,), follow_children=False)
    child = int(process.do("result = os.spawnv(os.P_NOWAIT, '/bin/sleep', ['sleep', '1'])"))
    tracing.wait(lambda: len(tracing.of(Source.HOST, 7)) == 1)
    targets = tracing.tracer._probes.maps["targets"].keys()
    assert [int.from_bytes(key, "little") for key in targets] == [process.pid] and child


def test_mappings_are_read_only_when_they_may_have_changed(job, trace, monkeypatch) -> None:
    """Mappings of a training process are long, and each read blocks its memory calls."""
    looks: list[int] = []
    real = process_tracker.mapped_libraries
    monkeypatch.setattr(
        process_tracker, "mapped_libraries", lambda pid: looks.append(pid) or real(pid)
    )
    idle, busy = job(), job()
    busy.do(
        "libraries = [load(name) for name in ('libcudart.so.12', 'libcuda.so.1', 'libnccl.so.2')]"
    )
    tracing = trace(pids=(idle.pid, busy.pid), rescan_s=0.0)
    for _ in range(20):
        tracing.poll()
    assert looks.count(idle.pid) < 5, "every poll is a scan here"
    idle.do("rt = load('libcudart.so.12')")
    tracing.wait(lambda: attached(tracing, idle.pid))
    tracing.tracer.processes()[busy.pid].rescan_at_s = float("inf")
    before = looks.count(busy.pid)
    busy.do("import mmap; more = mmap.mmap(-1, 1 << 20)")
    for _ in range(20):
        tracing.poll()
    assert looks.count(busy.pid) == before, "all its libraries are known"
    tracing.tracer.processes()[busy.pid].rescan_at_s = 0.0
    tracing.wait(lambda: looks.count(busy.pid) > before)


def test_process_turned_away_counts_once_and_is_taken_up_when_there_is_room(job, trace) -> None:
    first, second = job(), job()
    tracing = trace(pids=(first.pid, second.pid), rescan_s=0.0, max_processes=1)
    for _ in range(5):
        tracing.poll()
    assert tracing.tracer.losses()["processes"] == 1
    (kept,) = tracing.tracer.processes()
    (first if kept == first.pid else second).close()
    tracing.wait(
        lambda: list(tracing.tracer.processes()) == [second.pid if kept == first.pid else first.pid]
    )
    assert tracing.tracer.losses()["processes"] == 1


def test_libraries_of_a_user_who_used_up_the_cpu_time_wait(job, trace) -> None:
    process = job()
    tracing = trace(rescan_s=0.01)
    tracker = tracing.tracer._tracker
    tracker.cpu = UserBudget(0.0, 1.0)
    tracker.cpu.spend(os.getuid(), 2.0, 0.0)
    process.do("rt = load('libcudart.so.12')")
    tracing.wait(lambda: tracker.cpu.refusals > 3)
    assert not attached(tracing, process.pid)
    tracker.cpu = UserBudget(0.0, 1.0)
    tracing.wait(lambda: attached(tracing, process.pid))
    assert tracker.cpu._amount(os.getuid(), 0.0) < 1.0, "reading it is charged"


@pytest.mark.parametrize(
    ("free_slots", "traced", "uid", "has_room"),
    [
        (900, 13, 5, True),
        (900, 14, 5, False),  # the last two are for others
        (900, 14, 6, True),
        (900, 16, 6, False),
        (126, 4, 5, True),
        (125, 4, 5, False),  # the last slots are for others
        (125, 4, 6, True),
        (125, 0, 5, True),
    ],
)
def test_one_user_does_not_get_all_places(
    free_slots: int, traced: int, uid: int, has_room: bool
) -> None:
    table = SimpleNamespace(rows=range(1000), free=free_slots)
    probes = SimpleNamespace(table=table)
    policy = TracePolicy(max_processes=16)
    tracker = ProcessTracker(policy, probes, print)  # type: ignore[arg-type]  # two fields of it
    tracker.processes = dict.fromkeys(range(traced))  # type: ignore[arg-type]  # only counted
    tracker._users = dict.fromkeys(range(traced), 5)
    assert tracker._has_room(uid) is has_room
