"""A refusal half way leaves no descriptor, no half of a probe and no target in the kernel."""

import dataclasses
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from ingero.agent.ebpf.attach import CallPrograms, find_sites
from ingero.agent.ebpf.loaded import LoadedProbes
from ingero.agent.ebpf.loader.links import ATTACH_UPROBE_MULTI, Probe, ProbeStyle
from ingero.agent.ebpf.loader.program import load_empty_probe
from ingero.agent.ebpf.policy import TracePolicy
from ingero.agent.processes.discover import mapped_libraries
from ingero.errors import ForeignFile, Unavailable


@pytest.fixture(autouse=True)
def nothing_is_left_open() -> Iterator[None]:
    if os.geteuid():
        pytest.skip("tracing needs root (CAP_BPF and CAP_PERFMON)")
    before = open_descriptors()
    yield
    assert open_descriptors() == before


def open_descriptors() -> list[str]:
    """What BPF descriptors we hold; others come and go with the test runner."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:
            continue
        if "bpf" in target or "perf_event" in target or target.endswith(".o"):
            found.append(target)
    return sorted(found)


@pytest.mark.parametrize("ring", ["calls_ring", "nccl_ring", "critical_ring"])
def test_a_ring_of_a_size_the_kernel_refuses(ring: str) -> None:
    with pytest.raises(Unavailable, match=ring):
        LoadedProbes(TracePolicy(map_sizes=((ring, 5000),)))


def test_a_file_that_is_no_object(tmp_path: Path) -> None:
    path = tmp_path / "trace.o"
    path.write_bytes(b"\x7fELF" + bytes(60))
    with pytest.raises(ForeignFile):
        LoadedProbes(TracePolicy(), path)


def test_nothing_wanted_is_nothing_loaded() -> None:
    with pytest.raises(Unavailable, match="nothing can be traced"):
        LoadedProbes(TracePolicy(layers=frozenset()))


@pytest.mark.parametrize("style", [ProbeStyle.MULTI, ProbeStyle.PERF])
def test_returns_go_when_entries_are_refused(style: ProbeStyle, job) -> None:
    process = job()
    process.do("rt = load('libcudart.so.12')")
    library = mapped_libraries(process.pid)[0]
    number, sites = next(iter(find_sites(library.file, library.library).items()))
    probe = Probe(sites[0].offset, number)
    good = load_empty_probe(ATTACH_UPROBE_MULTI if style is ProbeStyle.MULTI else 0)
    before = open_descriptors()
    try:
        with pytest.raises(Unavailable):
            CallPrograms(style, None, 10**6, good).attach(
                library.file, [probe], [probe], process.pid
            )
        assert open_descriptors() == before
    finally:
        os.close(good)


def test_a_full_table_of_processes_costs_kernel_events_not_the_trace(job, trace) -> None:
    process = job()
    process.do("rt = load('libcudart.so.12')")
    tracing = trace(pids=(), rescan_s=1000.0)
    maps = tracing.tracer._probes.maps  # the only way to make the kernel refuse
    targets = maps["targets"]
    maps["targets"] = dataclasses.replace(targets, descriptor=10**6)
    try:
        tracing.tracer._tracker.add(process.pid)
    finally:
        maps["targets"] = targets
    process.do("rt.cudaStreamSynchronize(P(0))")
    tracing.poll()
    assert tracing.count(process.pid, "cudaStreamSynchronize") == 1
    assert "kernel events" in tracing.tracer.processes()[process.pid].failures
    tracing.tracer.close()
    tracing.tracer.close = lambda: None  # the fixture closes again


def test_an_ended_process_whose_fork_was_lost_is_removed_from_the_kernel(trace) -> None:
    tracing = trace(pids=(), rescan_s=0.0)
    targets = tracing.tracer._probes.maps["targets"]
    targets.update(struct.pack("<I", 2**22 + 7), bytes(8))
    assert len(targets.keys()) == 1
    tracing.poll()
    assert targets.keys() == []
    tracing.tracer.close()
    tracing.tracer.close = lambda: None
