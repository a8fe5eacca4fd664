"""Robust statistics over numpy columns, which outliers in less than half of the data do not move.

The median, the median absolute deviation (MAD), and medians of groups of rows.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

MAD_TO_SIGMA = 1.4826  # makes MAD comparable to a standard deviation for normal scores

Column = NDArray[np.float64]
Index = NDArray[np.intp]


def sorted_order(*keys: NDArray[np.integer[Any]]) -> Index:
    """Return the stable order of rows by several keys, of which the first counts most.

    This is `np.lexsort` with its keys reversed. Keys that span less than 65,536 values, as row
    indexes and the steps of a few seconds do, are sorted by their digits, which is six times
    faster.
    """
    order: Index | None = None
    narrow = []
    for key in reversed(keys):
        low = key.min() if len(key) else 0
        if len(key) and int(key.max()) - int(low) > 0xFFFF:
            return np.lexsort(keys[::-1])
        narrow.append((key - low).astype(np.uint16))
    for digits in narrow:
        if order is None:
            order = np.argsort(digits, kind="stable")
        elif digits.any():
            order = order[np.argsort(digits[order], kind="stable")]
    return np.arange(0) if order is None else order


def median(values: ArrayLike) -> float:
    """Return the middle value, or the mean of the two middle ones.

    Raise ValueError without values.
    """
    column = np.asarray(values, dtype=np.float64)
    if column.size == 0:
        raise ValueError("cannot take the median of no values")
    half = column.size // 2
    if column.size % 2:
        return float(np.partition(column, half)[half])
    low, high = np.partition(column, (half - 1, half))[half - 1 : half + 1]
    return float((low + high) / 2)


def median_and_mad(values: ArrayLike) -> tuple[float, float]:
    """Return the median and the unscaled median absolute deviation from it."""
    column = np.asarray(values, dtype=np.float64)
    centre = median(column)
    return centre, median(np.abs(column - centre))


def nan_median(values: Column, axis: int) -> Column:
    """Return the median of the finite values along an axis.

    The result is NaN, without a warning, where there are none.
    """
    columns = np.moveaxis(values, axis, 0)
    some = np.isfinite(columns).any(axis=0)
    result = np.full(columns.shape[1:], np.nan)
    ordered = np.sort(columns[:, some], axis=0)  # NaN come last; faster than np.nanmedian
    count = (~np.isnan(ordered)).sum(axis=0)
    middle = np.stack(((count - 1) // 2, count // 2))
    result[some] = np.take_along_axis(ordered, middle, axis=0).mean(axis=0)
    return result


def group_medians(
    groups: Index, values: NDArray[Any], size: int, *, is_lower: bool = False
) -> Column:
    """Return the median of each group 0 … `size` - 1, NaN for a group without values.

    A group with an even number of values takes the mean of the two middle ones, or the lower one
    where `is_lower`. Integer values must not be negative.
    """
    counts = np.bincount(groups, minlength=size)
    ordered = _sorted_within(groups, values, size)
    some = counts > 0
    starts, filled = (np.cumsum(counts) - counts)[some], counts[some]
    low, high = ordered[starts + (filled - 1) // 2], ordered[starts + filled // 2]
    medians = np.full(size, np.nan)
    medians[some] = low if is_lower else low + (high - low) / 2
    return medians


def peer_medians(groups: Index, values: Column) -> Column:
    """Return for each row the median of the *other* rows of its group, NaN for a single row.

    `groups` must be sorted. Without its own value, a member of a group of three is compared with
    two peers, not one time in three with itself.
    """
    order = np.lexsort((values, groups))
    ordered = values[order]
    starts = np.flatnonzero(np.concatenate(([True], groups[1:] != groups[:-1])))
    counts = np.diff(starts, append=len(groups))
    start, count = np.repeat(starts, counts), np.repeat(counts, counts)
    place = np.arange(len(groups)) - start  # of each ordered value within its group
    low, high = (count - 2) // 2, (count - 1) // 2  # middle places among the others
    low, high = low + (low >= place), high + (high >= place)
    last = len(groups) - 1
    middle = 0.5 * (
        ordered[np.minimum(start + low, last)] + ordered[np.minimum(start + high, last)]
    )
    result = np.empty(len(groups))
    result[order] = np.where(count > 1, middle, np.nan)
    return result


def _sorted_within(groups: Index, values: NDArray[Any], size: int) -> NDArray[Any]:
    """Return the values ordered by group, and by value within each group."""
    if values.dtype.kind == "i":
        bits = int(values.max(initial=0)).bit_length()
        if size.bit_length() + bits <= 63:
            # One sort of plain integers is three times as fast as sorting by two keys.
            packed: NDArray[Any] = np.sort(groups.astype(np.int64) << bits | values)
            return packed & ((1 << bits) - 1)
    ordered: NDArray[Any] = values[np.lexsort((values, groups))]
    return ordered
