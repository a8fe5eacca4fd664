"""The agent's buckets are the kernel's."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ingero.agent.ebpf.layout import BUCKETS, EVENT, bucket_floor_ns
from ingero.agent.ebpf.sketch import DurationSketch, bucket_of


@given(st.integers(0, 2**53))
def test_duration_lies_between_the_floors_of_its_bucket_and_the_next(duration: int) -> None:
    bucket = int(bucket_of(np.array([duration], np.uint64))[0])
    assert bucket_floor_ns(bucket) <= duration
    assert bucket == BUCKETS - 1 or duration < bucket_floor_ns(bucket + 1)


def test_sketch_counts_by_operation() -> None:
    records = np.zeros(4, EVENT)
    records["source"], records["op"] = [1, 1, 4, 1], [3, 3, 1, 5]
    records["end_ns"] = [1000, 1001, 5000, 10**9]
    sketch = DurationSketch()
    sketch.add(records)
    sketch.add(records[:0])
    assert sketch.counts.sum() == 4
    assert sketch.counts[1, 3, 7] == 2
    assert sketch.counts[4, 1].sum() == sketch.counts[1, 5].sum() == 1


def test_kernel_and_agent_agree_on_real_calls(job, trace) -> None:
    process = job()
    process.do("rt = load('libcudart.so.12')")
    tracing = trace(pids=(process.pid,), record_everything=True)
    process.do("burst.burst(address(rt.cudaLaunchKernel), 2000, 0)\nrt.cudaMemcpy(P(1), P(2), S(777), I(1))")
    tracing.wait(lambda: len(tracing.of(1, 4)) == 1)
    sketch = DurationSketch()
    sketch.add(tracing.records)
    for row in tracing.tracer.histograms():
        if row.source == 1:
            assert sketch.counts[1, row.op].tolist() == row.buckets.tolist(), row.name
