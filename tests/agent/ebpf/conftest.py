"""Fake CUDA and NCCL libraries, processes that call them, and a tracer for these processes."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.support.gpu_jobs import FAKES, Job, compile_library
from tests.support.waiting import PATIENCE_S

from ingero.agent.ebpf.batch import EventBatch
from ingero.agent.ebpf.policy import TracePolicy
from ingero.agent.ebpf.tracer import Tracer
from ingero.errors import Unavailable

LIBRARIES = {"libcudart.so.12": 1, "libcuda.so.1": 2, "libnccl.so.2": 3}


@pytest.fixture(scope="session")
def fake_gpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with libcudart.so.12, libcuda.so.1, libnccl.so.2 and libburst.so."""
    folder = tmp_path_factory.mktemp("fakegpu")
    for name, number in LIBRARIES.items():
        compile_library(FAKES / "fakegpu.c", folder / name, f"-DLIBRARY={number}", "-lpthread")
    compile_library(FAKES / "burst.c", folder / "libburst.so", "-lpthread")
    return folder


@pytest.fixture
def job(fake_gpu: Path) -> Iterator[Callable[..., Job]]:
    """Start jobs, which end with the test."""
    started: list[Job] = []

    def start(*prefix: str, folder: Path = fake_gpu) -> Job:
        started.append(Job(folder, *prefix))
        return started[-1]

    yield start
    for one in started:
        one.close()


class Trace:
    """A running tracer and everything it returned so far."""

    def __init__(self, policy: TracePolicy) -> None:
        self.tracer = Tracer(policy)
        self.tracer.start()
        self.batches: list[EventBatch] = []

    def poll(self) -> EventBatch:
        self.batches.append(self.tracer.poll())
        return self.batches[-1]

    def wait(self, done: Callable[[], object], seconds: float = PATIENCE_S) -> None:
        """Poll until the condition holds."""
        end = time.monotonic() + seconds
        while True:
            self.poll()
            if done():
                return
            assert time.monotonic() < end, "the condition did not come true in time"
            time.sleep(0.005)

    @property
    def records(self) -> np.ndarray:
        return np.concatenate([batch.records for batch in self.batches])

    @property
    def nccl(self) -> np.ndarray:
        return np.concatenate([batch.nccl for batch in self.batches])

    def of(self, source: int, op: int) -> np.ndarray:
        records = self.records
        return records[(records["source"] == source) & (records["op"] == op)]

    def count(self, pid: int, name: str) -> int:
        return sum(
            row.calls for row in self.tracer.histograms() if row.pid == pid and row.name == name
        )


@pytest.fixture
def trace() -> Iterator[Callable[..., Trace]]:
    """Start tracers, which end with the test. Skips where the kernel refuses."""
    if os.geteuid():
        pytest.skip("tracing needs root (CAP_BPF and CAP_PERFMON)")
    started: list[Trace] = []

    def start(**settings: object) -> Trace:
        try:
            started.append(Trace(TracePolicy(**{"budget_share": None, **settings})))  # type: ignore[arg-type]
        except Unavailable as refused:
            pytest.skip(f"this kernel does not let us trace: {refused}")
        return started[-1]

    yield start
    for one in started:
        one.tracer.close()
