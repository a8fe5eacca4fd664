"""Robust scale of short histories: Qn, which needs no centre and tolerates 50 % outliers."""

import numpy as np
from numpy.typing import NDArray

from ingero.core.robust import MAD_TO_SIGMA, Column

Matrix = NDArray[np.float64]

QN_TO_SIGMA = 2.2219  # makes Qn comparable to a standard deviation for normal samples
# Finite-sample factors of Qn, by number of samples.
QN_SMALL = {2: 0.399, 3: 0.994, 4: 0.512, 5: 0.844, 6: 0.611, 7: 0.857, 8: 0.669, 9: 0.872}
QN_POINTS = 60  # longer histories are thinned to this many: the cost grows with the square


def qn_factor(count: int) -> float:
    """Return the factor that makes Qn of `count` normal samples unbiased."""
    if count in QN_SMALL:
        return QN_SMALL[count]
    return count / (count + 1.4) if count % 2 else count / (count + 3.8)


def qn(samples: Matrix) -> Column:
    """Return the scale of each row: the k-th smallest distance, k about a quarter of all pairs."""
    count = samples.shape[1]
    if count < 2:
        return np.full(len(samples), np.nan)
    left, right = np.triu_indices(count, 1)
    half = count // 2 + 1
    kth = half * (half - 1) // 2 - 1
    distance = np.partition(np.abs(samples[:, left] - samples[:, right]), kth, axis=1)[:, kth]
    return np.asarray(QN_TO_SIGMA * qn_factor(count) * distance, np.float64)


def thinned(samples: Matrix) -> Matrix:
    """Return at most QN_POINTS evenly spaced columns."""
    return samples[:, :: -(-samples.shape[1] // QN_POINTS)]


def autocorrelation(samples: Matrix) -> Column:
    """Return the lag-one autocorrelation of each row; values are clipped at four scales first."""
    centred = samples - np.median(samples, axis=1, keepdims=True)
    bound = 4 * MAD_TO_SIGMA * np.median(np.abs(centred), axis=1, keepdims=True)
    centred = np.clip(centred, -bound, bound)
    power = (centred**2).sum(axis=1)
    product = (centred[:, 1:] * centred[:, :-1]).sum(axis=1)
    return np.asarray(
        np.divide(product, power, out=np.zeros(len(samples)), where=power > 0), np.float64
    )
