"""Duration sketch: counts per operation and duration bucket, the buckets of the kernel's own histograms."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from ingero.agent.ebpf.layout import BUCKETS, FIRST_OCTAVE

_SOURCES, _OPS = 16, 32
_MANTISSA_BITS_KEPT: Final = 2  # four buckets per octave
_SHIFT: Final = 52 - _MANTISSA_BITS_KEPT
_FIRST: Final = (1023 + FIRST_OCTAVE) << _MANTISSA_BITS_KEPT


def bucket_of(duration_ns: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Bucket numbers: exponent and two bits of the mantissa of the duration as a float, counted from 256 ns."""
    bits = duration_ns.astype(np.float64).view(np.int64)
    buckets: NDArray[np.int64] = np.clip((bits >> _SHIFT) - _FIRST, 0, BUCKETS - 1)
    return buckets


class DurationSketch:
    """Counts of everything added so far; `counts[source, op]` is a histogram."""

    def __init__(self) -> None:
        self.counts: NDArray[np.int64] = np.zeros((_SOURCES, _OPS, BUCKETS), np.int64)
        self._flat = self.counts.reshape(-1)

    def add(self, records: NDArray[np.void]) -> None:
        """Add records with `start_ns`, `end_ns`, `source` and `op`."""
        if not len(records):
            return
        buckets = bucket_of(records["end_ns"] - records["start_ns"])
        keys = (records["source"].astype(np.int64) & (_SOURCES - 1)) * _OPS + (records["op"] & (_OPS - 1))
        np.add.at(self._flat, keys * BUCKETS + buckets, 1)
