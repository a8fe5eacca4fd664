"""F129, F132: real uprobes on real processes; every record is checked against what the process did."""

import time

from ingero.agent.ebpf.layout import FLAG_FAILED
from ingero.contract.events import Source

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
        "rt.cudaLaunchKernel(P(0xbeef), Dim3(1, 2, 3), Dim3(4, 5, 6), None, S(64), P(0x5eed0000beef))\n"
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
    seen = [(int(r["op"]), int(r["arg0"]), int(r["arg1"]), int(r["ret"]), int(r["gpu"])) for r in calls]
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
