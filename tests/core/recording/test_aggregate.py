"""Counts and sums per time bucket."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.support.trace_events import MS, events, join

from ingero.core.recording.aggregate import aggregate
from ingero.core.recording.event_columns import columns_from_rows

FIVE_S = 5_000_000_000
AT = 1_700_000_000_000_000_000  # a multiple of five seconds


def test_sums_and_extremes_per_bucket_operation_and_process() -> None:
    batch = join(
        events("cudaMalloc", 1, 3 * MS, at=AT, arg0=100),
        events("cudaMalloc", 1, MS, at=AT + 1, arg0=50),
        events("cudaLaunchKernel", 2, MS, at=AT, arg0=0x7FFF12345678),
        events("cudaMalloc", 1, MS, at=AT + FIVE_S, arg0=7),
        events("cudaMalloc", 1, MS, at=AT, arg0=9, pid=5),
    )
    stored = np.array([True, False, True, True, False, True])
    assert aggregate(batch, stored, FIVE_S) == [
        (AT, 1, 1, 5, 1, 1, MS, MS, MS, 9),
        (AT, 1, 1, 1000, 2, 1, 4 * MS, MS, 3 * MS, 150),
        (AT, 1, 3, 1000, 2, 2, 2 * MS, MS, MS, 0),
        (AT + FIVE_S, 1, 1, 1000, 1, 0, MS, MS, MS, 7),
    ]


@given(st.lists(st.tuples(*[st.integers(0, 3)] * 3, st.integers(0, 100)), max_size=40))
def test_nothing_is_lost_or_counted_twice(rows: list[tuple[int, int, int, int]]) -> None:
    batch = columns_from_rows(
        [(ts * FIVE_S, pid, pid, 1, op + 1, d, 0, 0, 0, 0) for ts, pid, op, d in rows]
    )
    found = aggregate(batch, np.zeros(len(rows), bool), FIVE_S)
    assert sum(row[4] for row in found) == len(rows)
    assert sum(row[6] for row in found) == sum(d for *_, d in rows)
    assert len({row[:4] for row in found}) == len(found)
