"""F129: what `make probes` builds is loaded, attached and counts, like the committed objects."""

from pathlib import Path

import pytest

from ingero.agent.ebpf.functions import encode_functions
from ingero.agent.ebpf.kernel import resolve_features
from ingero.agent.ebpf.loader.btf import kernel_btf
from ingero.agent.ebpf.loader.program import RAW_TRACEPOINT, ProbeObject
from ingero.agent.ebpf.loader.syscalls import MACHINE
from ingero.agent.ebpf.policy import HOST_LAYERS, TracePolicy
from ingero.agent.ebpf.probes.build import build, object_path
from ingero.agent.ebpf.tracer import Tracer
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


def test_kernel_programs_of_the_other_machine_are_well_formed() -> None:
    """The verifier here accepts the tracepoint programs of the aarch64 object."""
    constants, _ = resolve_features(kernel_btf(), HOST_LAYERS)
    constants["functions"] = encode_functions("aarch64", stacks=True)
    try:
        probes = ProbeObject(str(object_path("aarch64")), constants)
    except Unavailable as refused:
        pytest.skip(f"this kernel does not let us load programs: {refused}")
    try:
        names = [
            name for name, section in probes.programs().items() if section.startswith("raw_tp/")
        ]
        assert len(names) == 11
        for name in names:
            probes.load(name, RAW_TRACEPOINT)
    finally:
        probes.close()
