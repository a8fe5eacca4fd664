"""The NCCL plugin, called by a host program as NCCL calls it, and in wrong ways.

F068; interfaces v4, v5 and v6.
"""

import os
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from tests.support.nccl_jobs import Job
from tests.support.waiting import PATIENCE_S, until

from ingero.agent.host.shared_library import ARCHITECTURES, built_digest
from ingero.agent.nccl.build import PLUGIN
from ingero.agent.nccl.reader import RingReader
from ingero.agent.nccl.rings import LIVENESS_INTERVAL_S, Rings
from ingero.contract.nccl_ring import (
    FLAG_CLOSED,
    FLAG_GPU_TIMED,
    FLAG_GRAPH,
    FLAG_PARTIAL,
    FLAG_STREAM,
    KIND_COLLECTIVE,
    KIND_COPY_ENGINE,
    KIND_P2P,
)
from ingero.core.collectives.columns import Recorder
from ingero.core.collectives.plugin_records import SAME_CLOCK, GpuClock, to_collectives

GPU_BASE = 10**12
SLOTS, OPS = 16384, 8192
TENSOR, DATA = 0xABC0000000000001, 0xFFFFFFFFFFFFFF02


@pytest.fixture
def start(host, plugin, tmp_path):
    return lambda scenario, number=100, version=5, **environment: Job(
        [host, plugin], tmp_path / "rings", scenario, number, version, **environment
    )


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_shipped_library_is_built_from_these_sources(architecture):
    """Stale? `make probes` builds it again."""
    library = PLUGIN.path(architecture)
    assert built_digest(library) == PLUGIN.source_digest()
    assert (
        library.read_bytes()[18:20] == {"x86_64": b"\x3e\x00", "aarch64": b"\xb7\x00"}[architecture]
    )


def test_names_that_somebody_else_took_cost_no_ring(host, plugin, tmp_path):
    """Another user sees the pid and the start of a process long before it uses NCCL."""
    take = """
    name=$INGERO_NCCL_RING_DIR/ingero-nccl-$$-$(cut -d" " -f22 /proc/$$/stat)
    touch $name $name-0 $name-1 $name-2 $name-3
    exec "$@"
    """
    with Job(["sh", "-c", take, "sh", host, plugin], tmp_path / "rings", "basic", 5) as job:
        names = [path.name.removeprefix("ingero-nccl-") for path in job.folder.iterdir()]
        (ring,) = [path for path in job.folder.iterdir() if path.stat().st_size]
        assert len(names) == 6
        assert len(RingReader(ring).poll(0.0)) == 13


def test_a_rebuilt_library_works_like_the_shipped_one(host, plugin, tmp_path):
    rebuilt = PLUGIN.build(plugin.parent.name, tmp_path)
    assert built_digest(rebuilt) == PLUGIN.source_digest()
    with Job([host, rebuilt], tmp_path / "rings", "basic", 5) as job:
        assert len(job.records()) == 13
        job.finish()


@pytest.mark.parametrize("version", [4, 5, 6])
def test_every_operation_is_recorded_with_what_nccl_reported(start, version):
    with start(
        "basic", 50, version, RANK="3", LOCAL_RANK="1", WORLD_SIZE="8", SLURM_JOB_ID="4711"
    ) as job:
        header = job.ring().header
        assert (header.pid, header.global_rank, header.local_rank) == (job.process.pid, 3, 1)
        assert (header.world_size, header.job) == (8, "4711")
        records = job.records()
        for comm, rank, nranks in ((TENSOR, 1, 2), (DATA, 5, 8)):
            rows = records[(records["comm"] == comm) & (records["kind"] == KIND_COLLECTIVE)]
            index = np.arange(50)
            assert (rows["seq"] == index).all()
            assert (rows["nccl_seq"] == index).all()
            assert (rows["count"] == index).all()
            assert (rows["gpu_start_ns"] == GPU_BASE + 100 * index).all()
            assert (rows["gpu_stop_ns"] == GPU_BASE + 100 * index + 51).all()
            assert (rows["enqueue_ns"] <= rows["host_stop_ns"]).all()
            assert set(zip(rows["rank"].tolist(), rows["nranks"].tolist(), strict=True)) == {
                (rank, nranks)
            }
            same = {
                name: set(rows[name].tolist())
                for name in ("op", "datatype", "algo", "proto", "channels", "warps")
            }
            assert same == {
                "op": {b"AllReduce"}, "datatype": {b"Bfloat16"}, "algo": {b"RING"},
                "proto": {b"SIMPLE"},
                "channels": {2}, "warps": {16},
            }  # fmt: skip
            graphs = np.where(index % 2, FLAG_GRAPH, 0) if version > 4 else 0
            assert (
                rows["flags"] == FLAG_GPU_TIMED | (FLAG_STREAM if version > 4 else 0) | graphs
            ).all()
            assert set(rows["stream"].tolist()) == {0x7F00DEADB000 if version > 4 else 0}
            assert set(rows["tid"].tolist()) == {job.process.pid}
        job.finish()


@pytest.mark.parametrize("version", [4, 5, 6])
def test_point_to_point_and_copy_engine_become_collective_columns(start, version):
    with start("basic", 1, version) as job:
        records = job.records()
        extra = records[records["kind"] != KIND_COLLECTIVE]
        assert extra["kind"].tolist() == [KIND_P2P] * 3 + [KIND_COPY_ENGINE] * (version == 6)
        ahead_ns = (extra["enqueue_ns"].astype(np.int64) - extra["gpu_start_ns"].astype(np.int64))[
            :3
        ]
        clock = GpuClock(int(ahead_ns.max()), 0)  # the GPU began when the host had enqueued
        columns = to_collectives(extra[:3], Recorder("j", "n", 5), clock)
        assert [columns.ops[code] for code in columns.op] == ["Send", "Recv", "Send"]
        assert columns.peer.tolist() == [0, 1, 2]
        assert columns.size_bytes.tolist() == [1000, 1001, 1002]
        assert columns.seq.tolist() == [-1, -1, -1]
        assert columns.gpu_duration_ns.tolist() == [50, 50, 50]
        older = to_collectives(extra[:3], Recorder("j", "n", 5), SAME_CLOCK)
        assert older.gpu_duration_ns.tolist() == [-1, -1, -1], "times of an older operation"
        if version == 6:
            copied = to_collectives(extra[3:], Recorder("j", "n", 5), SAME_CLOCK)
            assert (copied.ops, copied.size_bytes.tolist()) == (("AllGather",), [77])
            assert (copied.gpu_duration_ns.tolist(), copied.stream.tolist()) == ([-1], [0x5000])
            assert copied.end_ns[0] >= copied.start_ns[0]
        job.finish()


def test_communicators_are_registered_with_their_progress(start):
    with start("basic", 10) as job:
        reader = job.ring()
        tensor, data = reader.comms()
        names = ("state", "interface", "rank", "nranks", "nodes", "name", "enqueued", "finished")
        assert [tensor[name] for name in names] == [2, 5, 1, 2, 2, b"tensor parallel", 10, 10]
        assert [data[name] for name in names] == [2, 5, 5, 8, 2, b"", 13, 13]
        assert tensor["opened_ns"] < tensor["last_enqueue_ns"] <= tensor["last_finish_ns"]
        job.finish()
        assert reader.comms()["state"].tolist() == [3, 3]


def test_threads_of_several_communicators_lose_nothing(start):
    with start("threads", 3000) as job:
        records = job.records()
        for thread in range(4):
            rows = records[records["comm"] == 100 + thread]
            assert sorted(rows["count"].tolist()) == [thread * 1_000_000 + i for i in range(3000)]
            index = rows["count"].astype(np.int64)
            assert (rows["gpu_start_ns"] == GPU_BASE + index * 100).all()
            assert (rows["gpu_stop_ns"] == GPU_BASE + index * 100 + 51).all()
        assert job.ring().counters() == {
            "head": 12000, "seen": 12000, "dropped": 0, "partial": 0, "orphans": 0, "refused": 0,
        }  # fmt: skip
        job.finish()


def test_communicators_opened_at_once_share_one_ring(start):
    with start("together", 32) as job:
        assert sorted(job.records()["comm"].tolist()) == [7000 + i for i in range(32)]
        job.finish()


@pytest.mark.parametrize("version", [4, 5, 6])
def test_calls_in_an_unexpected_order_do_no_harm(start, version):
    with start("odd", 0, version) as job:
        rows = {int(row["count"]): row for row in job.records() if row["count"] > 900}
        assert sorted(rows) == [901, 903, 904, 905, 906, 908, 909, 910]
        assert (rows[901]["gpu_start_ns"], rows[901]["gpu_stop_ns"]) == (
            GPU_BASE + 90100,
            GPU_BASE + 90151,
        )
        assert (rows[903]["gpu_start_ns"], rows[903]["gpu_stop_ns"]) == (
            GPU_BASE + 400,
            GPU_BASE + 700,
        )
        timed = {count: bool(row["flags"] & FLAG_GPU_TIMED) for count, row in rows.items()}
        assert [count for count, is_timed in timed.items() if not is_timed] == [904, 905, 906]
        assert (rows[908]["gpu_start_ns"], rows[908]["gpu_stop_ns"]) == (
            GPU_BASE + 900,
            GPU_BASE + 950,
        )
        assert (rows[910]["gpu_start_ns"], rows[910]["gpu_stop_ns"]) == (
            GPU_BASE + 91000,
            GPU_BASE + 91050,
        )
        assert [count for count, row in rows.items() if row["flags"] & FLAG_PARTIAL] == [906]
        assert [count for count, row in rows.items() if row["flags"] & FLAG_CLOSED] == [906]
        assert job.ring().counters()["orphans"] > 0
        (comm,) = job.ring().comms()
        assert comm["name"] == b"a name that is far longer than the field which h"
        job.finish()


def test_a_forked_child_never_writes_into_its_parents_ring(start):
    with start("fork", 50) as job:
        pid = int(job.lines[0].removeprefix("child "))
        (path,) = job.folder.glob(f"ingero-nccl-{pid}-*")
        child = RingReader(path)
        assert [(row["comm"], row["count"]) for row in child.poll(0.0)] == [(22, 777)]
        assert child.header.pid == pid
        records = job.records()
        assert sorted(records["count"].tolist()) == list(range(50))
        assert set(records["comm"].tolist()) == {21}
        job.finish()


def test_fewer_channels_than_announced_end_as_partial_records(start):
    with start("short", 200) as job:
        early = job.records()
        assert not (early["flags"] & FLAG_CLOSED).any()
        assert len(early) > 60  # found quiet by later operations, long before the communicator ends
        job.proceed()
        job.wait_ready()
        records = job.records()
        assert sorted(records["count"].tolist()) == list(range(200))
        assert (records["flags"] & FLAG_PARTIAL != 0).all()
        assert (records["channels_done"] == 3).all()
        assert (records["gpu_stop_ns"] - records["gpu_start_ns"] == 52).all()
        job.finish()


def test_the_last_operation_of_a_job_that_ends_at_once_is_marked_closed(start):
    """A barrier, then the end.

    The proxy of NCCL stops before it has reported the last channel of the last operation.
    """
    with start("ending", 40) as job:
        records = job.records()
        assert sorted(records["count"].tolist()) == list(range(40))
        last = records[records["count"] == 39][0]
        marks = FLAG_PARTIAL | FLAG_CLOSED | FLAG_GPU_TIMED
        assert last["flags"] & marks == marks
        assert (last["channels"], last["channels_done"]) == (3, 1), (
            "its times are those of the channel that was reported"
        )
        assert last["gpu_stop_ns"] > last["gpu_start_ns"]
        others = records[records["count"] != 39]
        assert not (others["flags"] & (FLAG_PARTIAL | FLAG_CLOSED)).any()
        assert job.ring().counters()["partial"] == 1
        job.finish()


def test_overrun_keeps_the_newest_and_is_counted(start):
    with start("flood", SLOTS + 500) as job:
        reader = job.ring()
        assert reader.oldest == 500
        assert reader.poll(0.0)["count"].tolist() == list(range(500, SLOTS + 500))
        job.finish()


def test_a_hanging_communicator_costs_no_record_of_its_own_or_of_others(start):
    with start("hung", 30000) as job:
        records = job.records()
        slow = records[records["comm"] == 81]
        assert slow["count"].tolist() == list(range(1000))
        assert (slow["gpu_stop_ns"] == GPU_BASE + 100 * np.arange(1000) + 51).all()
        assert job.ring().counters() == {
            "head": 31000, "seen": 31000, "dropped": 0, "partial": 0, "orphans": 0, "refused": 0,
        }  # fmt: skip
        job.finish()


def test_operations_that_never_end_use_fixed_memory(start):
    with start("stuck", OPS + 1000) as job:
        assert job.lines == ["refused 1000"]
        assert job.ring().counters()["dropped"] == 1000
        job.proceed()
        job.wait_ready()
        records = job.records()
        assert len(records) == OPS + 1
        assert (records["flags"][:-1] & FLAG_PARTIAL != 0).all()
        assert records["comm"][-1] == 62
        job.finish()


def test_communicators_come_and_go_within_a_fixed_table(start):
    with start("comms", 1100) as job:
        assert job.lines == ["refused 76"]
        counters = job.ring().counters()
        assert (counters["refused"], counters["head"]) == (76, 3000 + 1024)
        job.finish()


def test_kill_9_leaves_a_ring_that_reads_to_its_end(start, tmp_path):
    for _ in range(5):
        with start("loop", 2) as job:
            rings = Rings((job.folder,))
            until(lambda rings=rings: rings.poll(time.monotonic()) and rings.counts.records >= 2000)
            job.kill()
            (last,) = rings.poll(time.monotonic() + LIVENESS_INTERVAL_S)
            assert last.is_last
            assert rings.counts.torn <= 2  # one for each thread
            assert rings.counts.records >= 2000
            assert list(job.folder.iterdir()) == []


def test_the_agents_death_is_nothing_to_the_job(start):
    with start("loop", 1) as job:
        first = job.ring()
        before = first.counters()["head"]
        first.close()
        second = job.ring()
        until(lambda: second.counters()["head"] > before)
        assert len(second.poll(0.0)) > 0


@pytest.mark.parametrize("scenario", ["basic", "threads", "odd", "flood", "comms", "fork", "stuck"])
def test_without_shared_memory_it_does_nothing_at_all(host, plugin, tmp_path, scenario):
    environment = {"EXPECT_OFF": "1", "INGERO_NCCL_RING_DIR": str(tmp_path / "missing")}
    done = subprocess.run(
        [host, plugin, "5", scenario, "100" if scenario != "comms" else "0"],
        input="\n" * 8, env=environment, text=True, capture_output=True, timeout=PATIENCE_S,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / "missing").exists()


@pytest.mark.root
@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("mount"), reason="a full tmpfs needs root and mount"
)
def test_a_full_shared_memory_switches_it_off_before_the_first_record(host, plugin, tmp_path):
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", tmp_path], check=True)
    try:
        environment = {"EXPECT_OFF": "1", "INGERO_NCCL_RING_DIR": str(tmp_path)}
        command = [host, plugin, "6", "flood", "50000"]
        subprocess.run(
            command, input="\n", env=environment, text=True, timeout=PATIENCE_S, check=True
        )
        assert list(tmp_path.iterdir()) == []
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_rings_of_dead_processes_are_removed_by_the_next_one(host, plugin):
    """Without an agent nobody else would; in shared memory they cost memory."""
    environment = {"PATH": os.environ["PATH"]}

    def rings_of(pid):
        return list(Path("/dev/shm").glob(f"ingero-nccl-{pid}-*"))

    def run_once():
        process = subprocess.Popen(
            [host, plugin, "5", "flood", "1"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        assert process.stdout.readline() == b"ready\n"
        # looked at while it lives: any other job may remove it afterwards
        assert len(rings_of(process.pid)) == 1
        process.communicate(b"\n")
        return process.pid

    first = run_once()
    second = run_once()
    assert rings_of(first) == []
    for path in rings_of(second):
        path.unlink(missing_ok=True)
