"""`ingero trace` and the plugin: rings become rows of `collectives`. Needs root and BPF."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.nccl_jobs import Job
from tests.support.waiting import PATIENCE_S

from ingero.contract.names import RING_FOLDER
from ingero.storage.trace.reading import connect_readonly


def test_rings_of_the_plugin_become_gpu_timed_rows(host, plugin, tmp_path: Path) -> None:
    """F067, F068: every operation once, with communicator, rank, type, bytes and GPU time."""
    if os.geteuid() or not Path("/sys/kernel/btf/vmlinux").exists():
        pytest.skip("tracing needs root and a kernel with BTF")
    db = tmp_path / "t.db"
    env = {"RANK": "3", "WORLD_SIZE": "8", "SLURM_JOB_ID": "4711"}
    with Job([host, plugin], Path(RING_FOLDER), "basic", 50, 6, **env) as job:
        pid = job.process.pid
        options = ("--pid", pid, "--db", db, "--node", "n1", "--duration", "2")
        command = (sys.executable, "-m", "ingero", "trace", *options)
        subprocess.run(list(map(str, command)), check=True, capture_output=True, timeout=PATIENCE_S)
        job.finish()
    for ring in Path(RING_FOLDER).glob(f"ingero-nccl-{pid}-*"):
        ring.unlink(missing_ok=True)  # or the next job of anybody removed it
    connection = connect_readonly(db)
    rows = connection.execute(
        "SELECT comm, rank, nranks, count(*), count(DISTINCT seq), min(seq), max(seq), "
        "sum(size_bytes), "
        "min(gpu_duration_ns), max(gpu_duration_ns), max(end_ns >= start_ns) FROM collectives "
        "WHERE op = 'AllReduce' GROUP BY comm, rank ORDER BY nranks"
    ).fetchall()
    same = set(
        connection.execute("SELECT DISTINCT node, job, global_rank, source, pid FROM collectives")
    )
    p2p = connection.execute(
        "SELECT op, peer, seq FROM collectives WHERE peer IS NOT NULL ORDER BY id"
    ).fetchall()
    connection.close()
    total = 2 * sum(range(50))  # bfloat16
    assert [row[1:] for row in rows] == [
        (1, 2, 50, 50, 0, 49, total, 51, 51, 1),
        (5, 8, 50, 50, 0, 49, total, 51, 51, 1),
    ]
    assert same == {("n1", "4711", 3, "nccl-plugin", pid)}
    assert p2p == [("Send", 0, None), ("Recv", 1, None), ("Send", 2, None)]
