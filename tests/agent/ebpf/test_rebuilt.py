"""F129: what `make probes` builds is loaded, attached and counts, like the committed objects."""

from pathlib import Path

import pytest

from ingero.agent.ebpf.policy import TracePolicy
from ingero.agent.ebpf.syscalls import MACHINE
from ingero.agent.ebpf.tracer import Tracer
from ingero.agent.probes.build import build, object_path
from ingero.errors import Unavailable


def test_rebuilt_probes_load_attach_and_count(job, tmp_path: Path) -> None:
    build(tmp_path)
    process = job()
    process.do("rt = load('libcudart.so.12'); nccl = load('libnccl.so.2')")
    tracer = Tracer(TracePolicy(pids=(process.pid,), budget_share=None))
    try:
        tracer.start(object_path(MACHINE, tmp_path))
    except Unavailable as refused:
        pytest.skip(f"this kernel does not let us trace: {refused}")
    try:
        process.do("[rt.cudaDeviceSynchronize() for _ in range(21)]; nccl.ncclGroupStart()")
        counts = {row.name: row.calls for row in tracer.histograms()}
        assert (counts["cudaDeviceSynchronize"], counts["ncclGroupStart"]) == (21, 1)
        assert [one for one in tracer.capabilities() if not one.on] == []
    finally:
        tracer.close()
