"""Own time: what a rank spends between collectives, waiting for nobody.

A synchronous job makes step times equal on every rank; own time is what still tells them apart. It runs from the end
of the last collective on that rank to the start of the next, on that rank's clock alone. The part during which the
next collective was not even enqueued is idle: the GPU waited for its host.
"""

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ingero.core.collectives.columns import Collectives, Floats, Ints

MIN_CYCLES = 3  # a repeating pattern is believed when it was seen this often
CYCLE_AGREEMENT = 0.9  # share of rows that must repeat after one cycle


@dataclass(frozen=True, slots=True)
class OwnSegments:
    """One row per collective, by recorder and time, `row` pointing into the collectives; a recorder's first is NaN."""

    row: NDArray[np.intp]
    who: NDArray[np.int32]
    own_s: Floats
    idle_s: Floats


def own_segments(collectives: Collectives) -> OwnSegments:
    """Own time before every collective. Overlapping collectives count once: own time begins when the last one ended."""
    entry = collectives.entry_ns
    order = np.lexsort((collectives.end_ns, entry, collectives.who))
    who, entry, end = collectives.who[order], entry[order], collectives.end_ns[order]
    first = np.ones(len(who), bool)
    first[1:] = who[1:] != who[:-1]
    free_ns = _previous_latest_end(end, first)
    own = np.where(first, np.nan, np.maximum(entry - free_ns, 0) / 1e9)
    idle = np.clip((collectives.start_ns[order] - free_ns) / 1e9, 0.0, None)
    known = (
        collectives.is_gpu_timed[order] & ~first
    )  # an enqueue time alone cannot tell busy from idle
    return OwnSegments(order, who, own, np.where(known, np.fmin(idle, own), np.nan))


def _previous_latest_end(end: Ints, first: NDArray[np.bool_]) -> Ints:
    """Latest end among the earlier rows of the same run."""
    latest: Ints = np.empty_like(end)
    for begin, stop in itertools.pairwise([*np.flatnonzero(first).tolist(), len(end)]):
        np.maximum.accumulate(end[begin:stop], out=latest[begin:stop])
    return np.concatenate((end[:1], latest[:-1]))


def find_cycle(signature: NDArray[np.intp]) -> int:
    """Length of the shortest pattern that the sequence repeats, 1 when there is none."""
    counts = np.bincount(signature)
    seen = np.flatnonzero(counts >= MIN_CYCLES)
    if not len(seen) or len(signature) < 2 * MIN_CYCLES:
        return 1
    rarest = seen[np.argmin(counts[seen])]
    places = np.flatnonzero(signature == rarest)
    for gaps in range(
        1, min(8, len(places) - 1) + 1
    ):  # the rarest one may occur several times in a cycle
        candidate = int(np.median(places[gaps:] - places[:-gaps]))
        if candidate * MIN_CYCLES > len(signature):
            break
        if (
            candidate
            and np.mean(signature[candidate:] == signature[:-candidate]) >= CYCLE_AGREEMENT
        ):
            return candidate
    return 1
