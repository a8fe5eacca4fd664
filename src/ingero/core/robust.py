"""Statistics that half of the nodes cannot move: median and median absolute deviation, over numpy columns."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

MAD_TO_SIGMA = 1.4826  # makes MAD comparable to a standard deviation for normal scores

Column = NDArray[np.float64]


def median(values: ArrayLike) -> float:
    """The middle value, or the mean of the two middle ones; raises ValueError when there is none."""
    column = np.asarray(values, dtype=np.float64)
    if column.size == 0:
        raise ValueError("the median of nothing")
    half = column.size // 2
    if column.size % 2:
        return float(np.partition(column, half)[half])
    low, high = np.partition(column, (half - 1, half))[half - 1 : half + 1]
    return float((low + high) / 2)


def median_and_mad(values: ArrayLike) -> tuple[float, float]:
    """Median and median absolute deviation from it (not scaled to a standard deviation)."""
    column = np.asarray(values, dtype=np.float64)
    centre = median(column)
    return centre, median(np.abs(column - centre))


def known_median(values: Column, axis: int) -> Column:
    """Median along an axis of what is known, NaN where nothing is."""
    lines = np.moveaxis(values, axis, 0)
    some = np.isfinite(lines).any(axis=0)
    result = np.full(lines.shape[1:], np.nan)
    result[some] = np.nanmedian(lines[:, some], axis=0)
    return result
