"""Recorded collectives: which rank was late, and waits after one. Needs root and BPF."""

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
from tests.support.gpu_jobs import Job, require_bpf

from ingero.agent.ebpf.policy import TracePolicy
from ingero.agent.push.collective_feed import TableFeed
from ingero.agent.recording.app import TraceApp, TraceOptions
from ingero.agent.recording.live_feed import LiveFeed
from ingero.storage.trace.reading import connect_readonly


def test_recorded_collectives_name_the_late_rank(job: Callable[..., Job], tmp_path: Path) -> None:
    """F067: three probed processes, one of them late; the rows of the trace database show which."""
    require_bpf()
    ranks = [job("env", f"RANK={rank}", "SLURM_JOB_ID=77") for rank in range(3)]
    for process in ranks:
        process.do("nccl = load('libnccl.so.2')\ncomm = P()")
    pids = tuple(process.pid for process in ranks)
    db = tmp_path / "t.db"
    feed = LiveFeed(TracePolicy(pids=pids), "n1")
    app = TraceApp(TraceOptions(node="n1", db=db, pids=pids), feed)
    stop = threading.Event()
    thread = threading.Thread(target=app.run, args=(stop, lambda _: None))
    thread.start()
    try:
        for rank, process in enumerate(ranks):
            process.do(
                f"nccl.ncclCommInitRank(ctypes.byref(comm), I(3), uid(range(128)), I({rank}))"
            )
        for _ in range(5):
            for process in (ranks[0], ranks[2]):
                process.do("nccl.ncclAllReduce(P(1), P(2), S(1 << 20), I(7), I(0), comm, P(0))")
            # asked after the others have answered: always the last, by a quarter of a second or
            # more
            ranks[1].do(
                "time.sleep(0.25)\nnccl.ncclAllReduce(P(1), P(2), S(1 << 20), I(7), I(0), comm, "
                "P(0))"
            )
    finally:
        stop.set()
        thread.join()
    connection = connect_readonly(db)
    rows = connection.execute(
        "SELECT seq, rank, global_rank, job, nranks, op, size_bytes, pid, source, "
        "(start_ns - max(start_ns) FILTER (WHERE rank != 1) OVER (PARTITION BY comm, seq)) / 1e6 "
        "FROM collectives ORDER BY seq, rank"
    ).fetchall()
    connection.close()
    assert [row[:9] for row in rows] == [
        (seq, rank, rank, "77", 3, "AllReduce", 4 << 20, pids[rank], "ebpf")
        for seq in range(5)
        for rank in range(3)
    ]
    assert [row[1] for row in rows if row[9] > 200] == [1] * 5


def test_waits_for_collectives_are_found_in_real_records(
    job: Callable[..., Job], tmp_path: Path
) -> None:
    """On one clock: the wait right after a collective counts, one a second later does not."""
    require_bpf()
    process = job()
    process.do("nccl, rt, comm = load('libnccl.so.2'), load('libcudart.so.12'), P()")
    reduce = "nccl.ncclAllReduce(P(1), P(2), S(64), I(7), I(0), comm, P(9))"
    db = tmp_path / "t.db"
    recording = LiveFeed(TracePolicy(pids=(process.pid,)), "n1")
    app = TraceApp(TraceOptions(node="n1", db=db, pids=(process.pid,)), recording)
    table = TableFeed(db, with_plugin=False)
    stop = threading.Event()
    thread = threading.Thread(target=app.run, args=(stop, lambda _: None))
    thread.start()
    try:
        process.do("nccl.ncclCommInitRank(ctypes.byref(comm), I(3), uid(range(128)), I(1))")
        assert table.poll() == []
        for pause_s in (0.05, 1.2):
            process.do(f"{reduce}\ntime.sleep({pause_s})\nrt.cudaStreamSynchronize(P(9))")
    finally:
        stop.set()
        thread.join()
    assert table.poll() == []
    (batch,) = table.poll()
    first, second = batch.pick(np.array([0, 1]))
    assert first.barrier_wait_ns is not None and first.barrier_wait_ns >= 50_000_000
    assert (second.barrier_wait_ns, batch.barriers) == (None, {"AllReduce": 1})
    assert (first.op, first.rank, first.nranks) == ("AllReduce", 1, 3)
