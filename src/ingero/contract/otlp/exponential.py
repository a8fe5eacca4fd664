"""Exponential histograms as buckets with explicit bounds, as Prometheus reads them."""

import math
from itertools import accumulate
from typing import Final

from ingero.contract.otlp.values import Buckets, ExponentialHistogramPoint

# Two buckets per doubling, so that the bounds do not depend on the sender's resolution.
MAX_SCALE: Final = 1
MAX_BUCKETS: Final = 64


def cumulative_buckets(point: ExponentialHistogramPoint) -> list[tuple[float, int]]:
    """Return pairs of an upper bound and the number of values up to it, in ascending order.

    The last bucket, which has no upper bound, is left out. Neighbouring buckets are merged until
    the scale is at most `MAX_SCALE` and each side has at most `MAX_BUCKETS`. Merging whole buckets
    loses resolution but no count.
    """
    sides = [
        (side.offset, side.bucket_counts)
        for side in (point.negative, point.positive)
        if side is not None
    ]
    filled = [[offset + at for at, count in enumerate(counts) if count] for offset, counts in sides]
    shift = max(0, point.scale - MAX_SCALE)
    while any(
        indices and (indices[-1] >> shift) - (indices[0] >> shift) >= MAX_BUCKETS
        for indices in filled
    ):
        shift += 1
    scale = point.scale - shift
    negative, positive = _merged(point.negative, shift), _merged(point.positive, shift)
    found = [(-_bound(index, scale), count) for index, count in reversed(negative.items())]
    if point.zero_count or negative:
        found.append(
            (point.zero_threshold if math.isfinite(point.zero_threshold) else 0.0, point.zero_count)
        )
    found += [(_bound(index + 1, scale), count) for index, count in positive.items()]
    found.sort()  # a sender may choose any zero threshold
    totals = accumulate(count for _, count in found)
    # Bounds that are too small for a double are all 0, and merge.
    by_bound = {bound: total for (bound, _), total in zip(found, totals, strict=True)}
    return [(bound, total) for bound, total in by_bound.items() if math.isfinite(bound)]


def _merged(buckets: Buckets | None, shift: int) -> dict[int, int]:
    """Return counts by index, `shift` scales coarser, from the first filled bucket to the last."""
    counts = (
        [(at, count) for at, count in enumerate(buckets.bucket_counts) if count] if buckets else []
    )
    if buckets is None or not counts:
        return {}
    first, last = ((buckets.offset + at) >> shift for at in (counts[0][0], counts[-1][0]))
    merged = dict.fromkeys(range(first, last + 1), 0)
    for at, count in counts:
        merged[(buckets.offset + at) >> shift] += count
    return merged


def _bound(index: int, scale: int) -> float:
    """Return base ** index, where base is 2 ** (2 ** -scale)."""
    try:
        return float(2.0 ** (index * 2.0**-scale))
    except OverflowError:
        return math.inf
