"""Latency statistics: nearest-rank percentiles, bounded windows, anomalies and their period."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.trace_events import MS, US, events, join

from ingero.core.recording.latency import MAX_KEYS, OpWindow, TraceStats, percentile, spike_period


def fill(window: OpWindow, *durations: int) -> list[bool]:
    values = np.array(durations, np.int64)
    return [bool(unusual) for unusual in window.add(values, np.arange(len(values)))]


def test_nearest_rank() -> None:
    values = np.arange(1, 11) * MS
    assert [percentile(values, share) for share in (0.10, 0.50, 0.95, 0.99)] == [
        MS,
        5 * MS,
        10 * MS,
        10 * MS,
    ]
    assert percentile(np.array([10, 20, 30, 40, 50]) * US, 0.5) == 30 * US
    assert percentile(np.array([], np.int64), 0.5) == 0
    assert percentile(np.array([5 * MS]), 0.99) == 5 * MS


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=50), st.floats(0.01, 1.0))
def test_percentile_is_a_value_with_that_share_at_or_below_it(
    values: list[int], share: float
) -> None:
    ordered = np.sort(np.array(values, np.int64))
    found = percentile(ordered, share)
    assert found in values
    assert (ordered <= found).mean() >= share - 1e-9


def test_window_is_bounded_but_totals_are_not() -> None:
    window = OpWindow(5)
    fill(window, *(i * MS for i in range(1, 11)))
    found = window.summary((1, 1))
    assert (found.count, found.p50_ns, found.min_ns, found.max_ns) == (10, 8 * MS, MS, 10 * MS)


def test_anomaly_is_far_above_the_last_median() -> None:
    window = OpWindow()
    fill(window, *[MS] * 20)
    window.summary((1, 1))
    assert fill(window, 10 * MS, 2 * MS) == [True, False]
    assert window.anomalies == 1


def test_a_few_calls_make_no_anomaly() -> None:
    window = OpWindow()
    fill(window, *[MS] * 5)
    window.summary((1, 1))
    assert fill(window, 1000 * MS) == [False]


@pytest.mark.parametrize(
    ("positions", "period"),
    [
        ([100, 200, 300, 400, 500], 100),
        ([50, 100, 300, 351, 751], None),
        ([100, 290, 510, 690, 900], 210),
        ([100, 200], None),
    ],
)
def test_period_of_spikes(positions: list[int], period: int | None) -> None:
    assert spike_period(positions) == period


def test_processes_and_operations_are_kept_apart_and_sorted_by_time() -> None:
    stats = TraceStats()
    stats.add(join(events("cudaMalloc", 3, MS, pid=1), events("cudaFree", 3, 5 * MS, pid=1)))
    stats.add(events("cudaMalloc", 2, 9 * MS, pid=2, tid=77))
    assert [(s.pid, s.key, s.count, s.total_ns) for s in stats.summaries()] == [
        (2, (1, 1), 2, 18 * MS),
        (1, (1, 2), 3, 15 * MS),
        (1, (1, 1), 3, 3 * MS),
    ]
    assert stats.summaries()[0].tids == {77}


def test_rows_that_are_anomalies_are_returned() -> None:
    stats = TraceStats()
    stats.add(events("cudaMalloc", 20, MS))
    stats.summaries()
    batch = join(
        events("cudaMalloc", 1, MS),
        events("cudaFree", 1, 50 * MS),
        events("cudaMalloc", 1, 50 * MS),
    )
    assert stats.add(batch).tolist() == [False, False, True]


def test_memory_is_bounded() -> None:
    stats = TraceStats()
    for pid in range(1, MAX_KEYS + 11):
        stats.add(events("cudaMalloc", pid=pid))
    assert (len(stats), stats.forgotten) == (MAX_KEYS, 10)


def test_slow_calls_have_start_and_end() -> None:
    window = OpWindow()
    window.add(np.array([MS] * 20 + [8 * MS]), np.arange(21) * 10 * MS)
    slow = window.summary((1, 5)).slow
    assert slow is not None
    assert (slow.start_ns.tolist(), slow.end_ns.tolist()) == ([200 * MS], [208 * MS])
