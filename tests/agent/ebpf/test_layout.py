"""The agent's buckets are the kernel's."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ingero.core.recording.histogram import BUCKETS, bucket_floor_ns

FLOORS = np.array([bucket_floor_ns(bucket) for bucket in range(BUCKETS)], np.uint64)


@given(st.integers(0, BUCKETS - 2))
def test_buckets_follow_each_other_four_to_an_octave(bucket: int) -> None:
    floor, next_floor = bucket_floor_ns(bucket), bucket_floor_ns(bucket + 1)
    assert floor < next_floor
    assert bucket < 1 or bucket + 4 >= BUCKETS or bucket_floor_ns(bucket + 4) == 2 * floor


def test_kernel_and_agent_agree_on_real_calls(job, trace) -> None:
    process = job()
    process.do("rt = load('libcudart.so.12')")
    tracing = trace(pids=(process.pid,), record_everything=True)
    process.do(
        "burst.burst(address(rt.cudaLaunchKernel), 2000, 0)\nrt.cudaMemcpy(P(1), P(2), S(777), "
        "I(1))"
    )
    tracing.wait(lambda: len(tracing.of(1, 4)) == 1)
    rows = [row for row in tracing.tracer.histograms() if row.source == 1]
    assert sorted(int(row.buckets.sum()) for row in rows) == [1, 2000]
    for row in rows:
        records = tracing.of(1, row.op)
        buckets = np.searchsorted(FLOORS, records["end_ns"] - records["start_ns"], side="right") - 1
        assert np.bincount(buckets, minlength=BUCKETS).tolist() == row.buckets.tolist(), row.name
