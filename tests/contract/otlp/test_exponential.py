import math

from hypothesis import given
from hypothesis import strategies as st

from ingero.contract.otlp.exponential import MAX_BUCKETS, cumulative_buckets
from ingero.contract.otlp.values import Buckets, ExponentialHistogramPoint


def test_buckets_of_the_specification() -> None:
    """Scale 0: bucket i holds values above 2**i and up to 2**(i + 1)."""
    point = ExponentialHistogramPoint(
        count=10,
        zero_count=1,
        positive=Buckets(offset=-1, bucket_counts=(2, 0, 3)),
        negative=Buckets(offset=0, bucket_counts=(1, 3)),
    )
    assert cumulative_buckets(point) == [
        (-2.0, 3),
        (-1.0, 4),
        (0.0, 5),
        (1.0, 7),
        (2.0, 7),
        (4.0, 10),
    ]


def test_fine_scales_come_down_to_the_same_bounds() -> None:
    """Scale 3 has eight buckets per doubling; four of them make one of ours."""
    fine = ExponentialHistogramPoint(
        count=16, scale=3, positive=Buckets(offset=0, bucket_counts=(1,) * 16)
    )
    assert [(round(bound, 3), total) for bound, total in cumulative_buckets(fine)] == [
        (1.414, 4),
        (2.0, 8),
        (2.828, 12),
        (4.0, 16),
    ]


def test_nothing_measured_has_no_bounds() -> None:
    assert cumulative_buckets(ExponentialHistogramPoint()) == []


sides = st.builds(
    Buckets,
    offset=st.integers(-(2**31), 2**31 - 1),
    bucket_counts=st.lists(st.integers(0, 9)).map(tuple),
)


@given(st.integers(-10, 20), sides, sides, st.integers(0, 5))
def test_bounds_rise_totals_never_fall_and_no_count_is_lost(
    scale: int, positive: Buckets, negative: Buckets, zero_count: int
) -> None:
    point = ExponentialHistogramPoint(
        scale=scale, positive=positive, negative=negative, zero_count=zero_count
    )
    found = cumulative_buckets(point)
    bounds, totals = [bound for bound, _ in found], [total for _, total in found]
    assert bounds == sorted(set(bounds))
    assert totals == sorted(totals)
    assert len(found) <= 2 * MAX_BUCKETS + 1
    everything = sum(positive.bucket_counts) + sum(negative.bucket_counts) + zero_count
    assert not found or totals[-1] <= everything
    assert all(math.isfinite(bound) for bound in bounds)
