"""Percentiles from bucket counts."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ingero.core.recording.histogram import BucketWindow, histogram_percentile

FLOORS = np.array([0, *(2 ** (8 + i // 4) * (4 + i % 4) // 4 for i in range(127))], np.int64)


def buckets_of(values: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.bincount(
        np.searchsorted(FLOORS, values, side="right") - 1, minlength=len(FLOORS)
    ).astype(np.int64)


@given(
    st.lists(st.integers(256, 10**9), min_size=1, max_size=60), st.sampled_from([0.5, 0.95, 0.99])
)
def test_percentile_is_within_a_bucket_of_the_exact_one(values: list[int], share: float) -> None:
    exact = sorted(values)[max(int(np.ceil(share * len(values))), 1) - 1]
    found = histogram_percentile(buckets_of(values), FLOORS, share)
    assert abs(found - exact) <= exact * 0.25


def test_without_counts_the_percentile_is_zero() -> None:
    assert histogram_percentile(np.zeros(4, np.int64), FLOORS[:4], 0.5) == 0


def test_window_forgets_old_ticks_and_survives_a_restart_of_the_counters() -> None:
    window = BucketWindow()
    for tick in range(1, 13):
        window.add(np.array([tick * 5, 0]))
    assert window.recent().tolist() == [50, 0]
    assert window.add(np.array([3, 1])).tolist() == [3, 1]
