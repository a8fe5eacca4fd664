"""F129: real uprobes on real processes; every record is checked against what the process did."""

import platform
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ingero.agent.ebpf.layout import FLAG_FAILED, FLAG_SAMPLED, FLAG_SLOW
from ingero.agent.ebpf.loader.links import ProbeStyle
from ingero.agent.ebpf.slots import Recording
from ingero.contract.events import MemcpyKind, Source
from ingero.core.recording.histogram import bucket_floor_ns

RUNTIME = "rt = load('libcudart.so.12')\n"


def test_every_runtime_call_is_recorded_with_its_arguments(job, trace) -> None:
    process = job()
    process.do(RUNTIME)
    tracing = trace(pids=(process.pid,), record_everything=True)
    before = time.time_ns()
    process.do(
        "p = P()\n"
        "rt.cudaSetDevice(3)\n"
        "rt.cudaMalloc(ctypes.byref(p), S(1 << 40))\n"
        "rt.cudaMalloc(ctypes.byref(P()), S(13))\n"
        "rt.cudaLaunchKernel(P(0xbeef), Dim3(1, 2, 3), Dim3(4, 5, 6), None, S(64), "
        "P(0x5eed0000beef))\n"
        "rt.cudaMemcpy(P(1), P(2), S(0x1_0000_0010), I(2))\n"
        "rt.cudaMemcpyAsync_ptsz(P(1), P(2), S(4096), I(1), P(7))\n"
        "rt.cudaMemcpy2D(P(1), S(100), P(2), S(100), S(30), S(40), I(3))\n"
        "rt.cudaMemcpyPeerAsync(P(1), I(0), P(2), I(1), S(555), P(0))\n"
        "rt.cudaStreamSynchronize(P(0x77))\n"
        "rt.cudaDeviceSynchronize()\n"
        "rt.cudaFree(p)\n"
    )
    after = time.time_ns()
    tracing.wait(lambda: len(tracing.of(Source.CUDA, 2)) == 1)
    calls = tracing.records[tracing.records["source"] == Source.CUDA]
    seen = [
        (int(r["op"]), int(r["arg0"]), int(r["arg1"]), int(r["ret"]), int(r["gpu"])) for r in calls
    ]
    pointer = 0x7F0000000000 + (1 << 40)
    assert seen == [
        (1, 1 << 40, pointer, 0, 3),
        (1, 13, 0, 2, 3),
        (3, 0xBEEF, 0x5EED0000BEEF, 0, 3),
        (4, 0x100000010, 2, 0, 3),
        (7, 4096, 1, 0, 3),
        (9, 1200, 3, 0, 3),
        (11 + 1, 555, 3, 0, 3),
        (5, 0x77, 0, 0, 3),
        (6, 0, 0, 0, 3),
        (2, pointer, 1 << 40, 0, 3),
    ]
    assert calls["flags"][1] & FLAG_FAILED
    assert set(calls["pid"]) == {process.pid} and set(calls["tid"]) == {process.pid}
    batch = tracing.batches[-1]
    starts = calls["start_ns"].astype(int) + batch.offset_ns
    assert (starts >= before).all() and (starts <= after).all()
    assert (calls["end_ns"] > calls["start_ns"]).all()
    assert not any(tracing.tracer.losses().values())


def test_driver_and_graph_calls_are_recorded_with_their_arguments(job, trace) -> None:
    process = job()
    process.do(RUNTIME + "cu = load('libcuda.so.1')\n")
    tracing = trace(pids=(process.pid,), record_everything=True)
    process.do(
        "config = (ctypes.c_uint64 * 8)()\n"
        "config[4] = 0xabc\n"
        "n = [I(1)] * 6\n"
        "cu.cuLaunchKernel(P(0xf1), *n, I(0), P(0x5eed0000beef), None, None)\n"
        "cu.cuLaunchKernelEx(ctypes.byref(config), P(0xf2), None, None)\n"
        "d = ctypes.c_uint64()\n"
        "cu.cuMemAlloc_v2(ctypes.byref(d), S(4096))\n"
        "cu.cuMemcpyHtoDAsync_v2(d, P(1), S(99), P(0))\n"
        "cu.cuMemFree_v2(d)\n"
        "cu.cuStreamSynchronize(P(5))\n"
        "cu.cuCtxSynchronize()\n"
        "g = P(); e = P()\n"
        "rt.cudaStreamBeginCapture(P(9), I(2))\n"
        "rt.cudaStreamEndCapture(P(9), ctypes.byref(g))\n"
        "rt.cudaGraphInstantiate(ctypes.byref(e), g, ctypes.c_ulonglong(0))\n"
        "rt.cudaGraphLaunch(e, P(9))\n"
        "rt.cudaLaunchKernel(P(1), Dim3(1, 1, 1), Dim3(1, 1, 1), None, S(0), P(0))\n"
    )
    tracing.wait(lambda: len(tracing.of(Source.GRAPH, 4)) == 1)
    seen = [
        (int(r["source"]), int(r["op"]), int(r["arg0"]), int(r["arg1"]))
        for r in tracing.records
        if r["source"] in (1, 4, 8)
    ]
    assert seen == [
        (4, 1, 0xF1, 0x5EED0000BEEF),
        (4, 7, 0xF2, 0xABC),
        (4, 5, 4096, 0x7D0000001000),
        (4, 3, 99, 1),
        (4, 10, 0x7D0000001000, 4096),
        (4, 8, 5, 0),
        (4, 4, 0, 0),
        (8, 1, 9, 2),
        (8, 2, 9, 0x6A0),
        (8, 3, 0x6A0, 0xE0),
        (8, 4, 9, 0xE0),
    ], "cudaLaunchKernel is not probed beside the driver's launch"


def test_freed_sizes_are_found_by_process_and_whole_pointer_must_11(job, trace) -> None:
    """Pointers that differ only in their upper half, managed memory, and a second process."""
    first, second = job(), job()
    for process in (first, second):
        process.do(RUNTIME + "p, q, m = P(), P(), P()")
    tracing = trace(
        pids=(first.pid, second.pid), record_everything=True, layers=frozenset({"runtime"})
    )
    first.do(
        "rt.cudaMalloc(ctypes.byref(p), S(5))\nrt.cudaMalloc(ctypes.byref(q), S((1 << 33) + 5))\n"
        "rt.cudaMallocManaged(ctypes.byref(m), S(7), I(1))\n"
    )
    second.do("rt.cudaFree(P(0x7f0000000005))")
    first.do("[rt.cudaFree(each) for each in (p, q, m, p)]")
    tracing.wait(lambda: len(tracing.of(Source.CUDA, 2)) == 5)
    freed = tracing.of(Source.CUDA, 2)
    sizes = {pid: freed[freed["pid"] == pid]["arg1"].tolist() for pid in (first.pid, second.pid)}
    assert sizes == {first.pid: [5, (1 << 33) + 5, 7, 0], second.pid: [0]}


def test_launches_are_counted_in_full_and_recorded_when_slow_failed_or_sampled(job, trace) -> None:
    process = job()
    process.do(RUNTIME)
    tracing = trace(pids=(process.pid,), launch_sample_every=100, slow_launch_ns=2_000_000)
    process.do(
        "def launch(shared): rt.cudaLaunchKernel(P(1), Dim3(1, 1, 1), Dim3(1, 1, 1), None, "
        "S(shared), P(0x5EED))\n"
        "[launch(0) for _ in range(1000)]\n"
        "[launch(777) for _ in range(5)]\n"
    )
    tracing.wait(lambda: len(tracing.of(Source.CUDA, 3)) >= 15)
    (row,) = [row for row in tracing.tracer.histograms() if row.name == "cudaLaunchKernel"]
    assert (row.calls, row.timed, row.failed) == (1005, 1005, 0)
    assert int(row.buckets.sum()) == 1005
    slow = [
        bucket
        for bucket in range(len(row.buckets))
        if row.buckets[bucket] and bucket_floor_ns(bucket) >= 2_621_440
    ]
    assert sum(int(row.buckets[bucket]) for bucket in slow) >= 5
    assert row.max_ns >= 3_000_000
    records = tracing.of(Source.CUDA, 3)
    assert sum(records["flags"] & FLAG_SLOW > 0) >= 5
    assert 10 <= len(records) <= 40, "sampled and slow ones, not all"
    sampled = records["flags"] & FLAG_SAMPLED > 0
    assert set(records["arg1"][sampled].tolist()) == {0x5EED}
    assert set(records["arg1"][~sampled].tolist()) == {0}, (
        "its stream lies on the stack, which is read for samples only"
    )


def test_thresholds_change_while_the_process_runs(job, trace) -> None:
    process = job()
    process.do(RUNTIME)
    tracing = trace(pids=(process.pid,), launch_sample_every=0, slow_launch_ns=1 << 62)
    launch = "rt.cudaLaunchKernel(P(1), Dim3(1, 1, 1), Dim3(1, 1, 1), None, S(0), P(0))"
    process.do(f"[{launch} for _ in range(10)]")
    tracing.poll()
    assert len(tracing.of(Source.CUDA, 3)) == 0
    tracing.tracer.set_recording(process.pid, "cudaLaunchKernel", Recording.everything())
    process.do(f"[{launch} for _ in range(10)]")
    tracing.wait(lambda: len(tracing.of(Source.CUDA, 3)) == 10)


def test_failed_calls_of_hot_functions_are_always_recorded(job, trace) -> None:
    process = job()
    process.do(RUNTIME)
    tracing = trace(pids=(process.pid,))
    process.do("rt.cudaMalloc(ctypes.byref(P()), S(13))")
    tracing.wait(lambda: len(tracing.of(Source.CUDA, 1)) == 1)
    assert tracing.of(Source.CUDA, 1)["ret"].tolist() == [2]


def test_threads_are_distinguished_and_counts_are_exact(job, trace) -> None:
    process = job()
    process.do(RUNTIME)
    tracing = trace(pids=(process.pid,), record_everything=True)
    process.do("burst.burst_threads(address(rt.cudaLaunchKernel), 5000, 4)")
    tracing.wait(lambda: len(tracing.of(Source.CUDA, 3)) >= 20000)
    records = tracing.of(Source.CUDA, 3)
    tids, counts = np.unique(records["tid"], return_counts=True)
    assert counts.tolist() == [5000] * 4 and process.pid not in tids
    assert tracing.count(process.pid, "cudaLaunchKernel") == 20000
    assert len(np.unique(records["arg0"])) == 5000
    assert not any(tracing.tracer.losses().values())


def test_nothing_is_lost_at_100000_calls_per_second(job, trace) -> None:
    process = job()
    process.do(RUNTIME)
    tracing = trace(pids=(process.pid,), record_everything=True, layers=frozenset({"runtime"}))
    # as many as the ring holds: a reader that gets no CPU for a while is not what is tested
    calls = 90_000
    process.send(f"result = burst.burst(address(rt.cudaLaunchKernel), {calls}, 100000.0)")
    tracing.wait(lambda: len(tracing.of(Source.CUDA, 3)) >= calls)
    process.answer()
    records = tracing.of(Source.CUDA, 3)
    assert records["arg0"].tolist() == list(range(0x1000, 0x1000 + calls)), (
        "every call, once, in order"
    )
    assert tracing.count(process.pid, "cudaLaunchKernel") == calls
    assert not any(tracing.tracer.losses().values())


def test_kernel_side_loss_is_counted_per_ring_when_rings_are_not_drained(job, trace) -> None:
    process = job()
    process.do(RUNTIME)
    tracing = trace(
        pids=(process.pid,),
        record_everything=True,
        layers=frozenset({"runtime"}),
        map_sizes=(("calls_ring", 4096),),
    )
    process.do("burst.burst(address(rt.cudaLaunchKernel), 1000, 0)")
    tracing.poll()
    drained, lost = len(tracing.of(Source.CUDA, 3)), tracing.tracer.losses()["calls"]
    assert drained > 0 and lost > 0
    assert drained + lost == 1000 == tracing.count(process.pid, "cudaLaunchKernel")


def test_other_processes_are_never_touched(job, trace) -> None:
    traced, other = job(), job()
    for process in (traced, other):
        process.do(RUNTIME)
    tracing = trace(pids=(traced.pid,), record_everything=True)
    for process in (other, traced):
        process.do("[rt.cudaDeviceSynchronize() for _ in range(50)]")
    tracing.wait(lambda: len(tracing.of(Source.CUDA, 6)) >= 50)
    assert set(tracing.of(Source.CUDA, 6)["pid"]) == {traced.pid}


@pytest.mark.parametrize("style", list(ProbeStyle))
def test_every_style_of_probing_gives_the_same_records(
    job, trace, monkeypatch, style: ProbeStyle
) -> None:
    """Session, multi and perf uprobes: older kernels get the same answer, only dearer."""
    monkeypatch.setattr("ingero.agent.ebpf.loaded.detect_style", lambda: (style, {}))
    process = job()
    process.do(RUNTIME)
    tracing = trace(pids=(process.pid,), record_everything=True, layers=frozenset({"runtime"}))
    process.do("[rt.cudaMemcpy(P(1), P(2), S(i), I(1)) for i in range(100)]")
    tracing.wait(lambda: len(tracing.of(Source.CUDA, 4)) >= 100)
    records = tracing.of(Source.CUDA, 4)
    assert records["arg0"].tolist() == list(range(100))
    assert (records["end_ns"] > records["start_ns"]).all()


@pytest.mark.parametrize("style", list(ProbeStyle))
def test_variant_inside_its_own_function_does_not_end_the_outer_call(
    job, trace, monkeypatch, style: ProbeStyle
) -> None:
    """`_ptsz` sleeps 20 ms before and after the plain function: one call of 40 ms."""
    monkeypatch.setattr("ingero.agent.ebpf.loaded.detect_style", lambda: (style, {}))
    process = job()
    process.do(RUNTIME)
    tracing = trace(pids=(process.pid,), record_everything=True, layers=frozenset({"runtime"}))
    process.do(
        "[rt.cudaStreamSynchronize_ptsz(P(7)) for _ in range(3)]\nrt.cudaStreamSynchronize(P(8))"
    )
    tracing.wait(lambda: len(tracing.of(Source.CUDA, 5)) >= 4)
    records = tracing.of(Source.CUDA, 5)
    assert records["arg0"].tolist() == [7, 7, 7, 8]
    assert ((records["end_ns"] - records["start_ns"])[:3] >= 40_000_000).all()
    assert tracing.count(process.pid, "cudaStreamSynchronize") == 4


@pytest.mark.skipif(
    platform.machine() != "x86_64", reason="the seventh argument is in a register here"
)
def test_direction_that_cannot_be_read_is_unknown_never_host_to_host_must_9(job, trace) -> None:
    process = job()
    process.do(RUNTIME)
    tracing = trace(pids=(process.pid,), record_everything=True)
    process.do("rt.cudaMemcpy2DAsync(P(1), S(100), P(2), S(100), S(30), S(40), I(1), P(0))")
    process.do("burst.call_at_edge(rt.cudaMemcpy2DAsync)")
    tracing.wait(lambda: len(tracing.of(Source.CUDA, 10)) == 2)
    copies = tracing.of(Source.CUDA, 10)
    assert copies["arg0"].tolist() == [1200, 1200]
    assert copies["arg1"].tolist() == [MemcpyKind.H2D, MemcpyKind.UNKNOWN]


def test_used_memory_of_a_ring_does_not_shine_through_must_5(job, trace) -> None:
    """Rings of one page, overwritten many times by calls with arguments, then without."""
    process = job()
    process.do(RUNTIME + "nccl = load('libnccl.so.2')")
    small = (("calls_ring", 4096), ("nccl_ring", 4096))
    tracing = trace(pids=(process.pid,), record_everything=True, map_sizes=small)
    for turn in range(1, 11):
        process.do("[rt.cudaMemcpy(P(-1), P(-1), S((1 << 63) - 1), I(-1)) for _ in range(20)]")
        process.do(
            "[nccl.ncclAllReduce(P(-1), P(-1), S((1 << 63) - 1), I(7), I(3), P(5), P(-1)) for _ "
            "in range(10)]"
        )
        tracing.wait(
            lambda turn=turn: (
                len(tracing.of(Source.CUDA, 4)) == 20 * turn and len(tracing.nccl) == 10 * turn
            )
        )
    process.do(
        "[rt.cudaDeviceSynchronize() for _ in range(20)]\n[nccl.ncclGroupStart() for _ in "
        "range(10)]"
    )
    tracing.wait(lambda: len(tracing.of(Source.CUDA, 6)) == 20 and len(tracing.nccl) == 110)
    calls, groups = tracing.of(Source.CUDA, 6), tracing.nccl[100:]
    for records in (calls, groups):
        for field, value in (
            ("arg0", 0),
            ("arg1", 0),
            ("ret", 0),
            ("stack", -1),
            ("gpu", -1),
            ("flags", FLAG_SAMPLED),
        ):
            assert set(records[field].tolist()) == {value}, field
    for field, value in (
        ("comm_hash", 0),
        ("seq", 0),
        ("count", 0),
        ("stream", 0),
        ("rank", -1),
        ("nranks", -1),
        ("datatype", -1),
        ("reduce_op", -1),
        ("peer", -1),
    ):
        assert set(groups[field].tolist()) == {value}, field


def test_stack_of_a_failed_call_holds_addresses_of_the_caller(job, trace) -> None:
    process = job()
    process.do(RUNTIME)
    tracing = trace(pids=(process.pid,))
    process.do("rt.cudaMalloc(ctypes.byref(P()), S(13))")
    tracing.wait(lambda: len(tracing.of(Source.CUDA, 1)) == 1)
    (number,) = tracing.of(Source.CUDA, 1)["stack"].tolist()
    stacks = {key: value for batch in tracing.batches for key, value in batch.stacks.items()}
    assert number >= 0 and len(stacks[number]) >= 1
    maps = Path(f"/proc/{process.pid}/maps").read_text().splitlines()
    spans = [
        tuple(int(part, 16) for part in line.split()[0].split("-"))
        for line in maps
        if "ffi" in line or "ctypes" in line
    ]
    assert any(low <= stacks[number][0] < high for low, high in spans), (
        "the caller is ctypes' foreign function code"
    )


def test_probes_are_gone_after_close(job, trace) -> None:
    process = job()
    process.do(RUNTIME)
    tracing = trace(pids=(process.pid,))
    tracing.tracer.close()
    tracing.tracer.start()
    process.do("[rt.cudaDeviceSynchronize() for _ in range(7)]")
    assert tracing.count(process.pid, "cudaDeviceSynchronize") == 7, "once, not twice"


def test_agent_needs_only_the_standard_library_and_numpy() -> None:
    """decisions: a GPU node that can install nothing still traces."""
    code = (
        "import sys, ingero.agent.ebpf.tracer, ingero.agent.ebpf.governor\n"
        "ours = {name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names)\n"
        "print(sorted(name for name in ours if not name.startswith('_')))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        capture_output=True,
        text=True,
        env=bare_path(),
        check=True,
    )
    assert done.stdout.strip() == "['ingero', 'numpy']"


def bare_path() -> dict[str, str]:
    """Only our own sources and numpy's folder: anything else fails to import."""
    import ingero

    own = Path(ingero.__path__[0]).parent
    return {"PYTHONPATH": f"{own}:{Path(np.__file__).parents[1]}"}
