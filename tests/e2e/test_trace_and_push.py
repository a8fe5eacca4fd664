"""F014: `ingero trace` and `ingero fleet-push` share one trace database. Needs root and BPF."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from tests.support.gpu_jobs import FAKES, compile_library
from tests.support.processes import BIN, process
from tests.support.scripted_fleet import scripted_fleet
from tests.support.waiting import PATIENCE_S, until_async

from ingero.contract.names import HEALTH_SCORE
from ingero.storage.trace.reading import connect_readonly
from ingero.transport.fanout.ask import Fanout
from ingero.transport.fanout.client import Question
from ingero.transport.fanout.nodes import FanoutPolicy

pytestmark = [pytest.mark.e2e, pytest.mark.root]
JOB = """
import ctypes, sys, time
runtime = ctypes.CDLL(sys.argv[1])
end = time.monotonic() + 600
while time.monotonic() < end:
    for _ in range(20):
        runtime.cudaLaunchKernel(ctypes.c_void_p(1), 1, 1, 1, 1, 1, 1, None, 0, None)
    runtime.cudaStreamSynchronize(None)
    time.sleep(0.002)
"""


async def test_recorder_and_pusher_share_a_database(tmp_path: Path) -> None:
    """Health comes from what was just recorded; there is no lock conflict, no row is lost."""
    if os.geteuid() or not Path("/sys/kernel/btf/vmlinux").exists():
        pytest.skip("tracing needs root and a kernel with BTF")
    library = compile_library(
        FAKES / "fakegpu.c", tmp_path / "libcudart.so.12", "-DLIBRARY=1", "-lpthread"
    )
    db, ingero = tmp_path / "t.db", str(BIN / "ingero")
    push = [
        "--fleet-cluster-id", "c", "--fleet-node-id", "n1", "--fleet-push-interval", "1s",
        "--fleet-timeout", "1s",
        "--signal-db-path", str(db), "--warmup-samples", "2", "--fleet-persist-path", "",
        "--signal-window", "10s",
    ]  # fmt: skip
    async with (
        scripted_fleet() as fleet,
        process(sys.executable, "-I", "-c", JOB, str(library)) as job,
        process(ingero, "trace", "--pid", str(job.pid), "--db", str(db), "--record-all") as tracing,
    ):
        await until_async(db.exists)
        async with process(ingero, "fleet-push", "--fleet-endpoint", fleet.url, *push) as pushing:
            await until_async(
                lambda: sum(HEALTH_SCORE.encode() in body for _, body in fleet.requests) >= 4
            )
            pushing.send_signal(signal.SIGTERM)
            said = (await asyncio.wait_for(pushing.communicate(), PATIENCE_S))[1].decode()
        tracing.send_signal(signal.SIGINT)
        said += (await asyncio.wait_for(tracing.communicate(), PATIENCE_S))[1].decode()
    assert (pushing.returncode, tracing.returncode) == (0, 0), said
    assert "locked" not in said and "Traceback" not in said, said
    connection = connect_readonly(db)
    events, stopped = connection.execute(
        "SELECT count(*), (SELECT max(stopped_at) FROM sessions) FROM events"
    ).fetchone()
    lost = connection.execute(
        "SELECT sum(count) FROM losses WHERE place IN ('disk', 'writer_queue')"
    ).fetchone()[0]
    connection.close()
    assert events > 100 and stopped > 0 and lost == 0


async def test_a_recording_can_be_asked_while_it_is_made(tmp_path: Path) -> None:
    """`trace --dashboard` answers like `ingero dashboard`, and ends with the recording."""
    if os.geteuid() or not Path("/sys/kernel/btf/vmlinux").exists():
        pytest.skip("tracing needs root and a kernel with BTF")
    db, ingero = tmp_path / "t.db", str(BIN / "ingero")
    options = ("--db", str(db), "--node", "gpu-1", "--dashboard", "127.0.0.1:0")
    async with process("env", f"HOME={tmp_path}", ingero, "trace", *options) as tracing:
        assert tracing.stderr is not None
        lines: list[str] = []
        while not any("certificate fingerprint" in line for line in lines):
            lines.append((await asyncio.wait_for(tracing.stderr.readline(), PATIENCE_S)).decode())
            assert lines[-1], lines
        address = (
            next(line for line in lines if "https://" in line).strip().rsplit("https://", 1)[1]
        )
        pin = lines[-1].strip().rsplit(" ", 1)[1]
        policy = FanoutPolicy(timeout_s=PATIENCE_S, trusted={address: pin})
        async with Fanout(policy) as fanout:
            question = Question("/api/v1/query", {"sql": "SELECT count(*) AS n FROM sessions"})
            (reply,) = [reply async for reply in fanout.ask([address], question)]
        assert (reply.name, reply.failure, reply.body) == (
            "gpu-1",
            None,
            b'{"columns":["n"],"rows":[[1]]}',
        )
        tracing.send_signal(signal.SIGTERM)
        await asyncio.wait_for(tracing.communicate(), PATIENCE_S)
    assert tracing.returncode == 0
    with pytest.raises(OSError, match=r"refused|Connect call failed"):
        await asyncio.open_connection(*address.rsplit(":", 1))
