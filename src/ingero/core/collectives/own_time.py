"""Own time: the time a rank spends between collectives, waiting for no other rank.

In a synchronous job all ranks have the same step time; only own time tells them apart. It lasts
from the end of one collective on a rank to the start of the next, on that rank's clock. The part
before the next collective was enqueued is idle time: the GPU waited for its host.
"""

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ingero.core.collectives.columns import Collectives, Floats, Ints


@dataclass(frozen=True, slots=True)
class OwnSegments:
    """One row per collective, ordered by recorder and time; `row` is its index in the collectives.

    The first row of each recorder has NaN own time.
    """

    row: NDArray[np.intp]
    who: NDArray[np.int32]
    own_s: Floats
    idle_s: Floats


def own_segments(collectives: Collectives) -> OwnSegments:
    """Return the own time before each collective.

    Overlapping collectives count once: own time begins when the last of them has ended.
    """
    entry = collectives.entry_ns
    order = np.lexsort((collectives.end_ns, entry, collectives.who))
    who, entry, end = collectives.who[order], entry[order], collectives.end_ns[order]
    first = np.ones(len(who), bool)
    first[1:] = who[1:] != who[:-1]
    free_ns = _previous_latest_end(end, first)
    own = np.where(first, np.nan, np.maximum(entry - free_ns, 0) / 1e9)
    idle = np.clip((collectives.start_ns[order] - free_ns) / 1e9, 0.0, None)
    # Without GPU timing the enqueue time alone cannot tell busy from idle.
    has_idle = collectives.is_gpu_timed[order] & ~first
    return OwnSegments(order, who, own, np.where(has_idle, np.fmin(idle, own), np.nan))


def idle_before_enqueue(collectives: Collectives) -> Floats:
    """Return for each collective how long all those enqueued before it had ended, NaN if unknown.

    The GPU was idle for no longer than that. A receive that is posted ahead may start before a send
    that its host enqueued first; own time then begins with the receive.
    """
    order = np.lexsort((collectives.start_ns, collectives.who))
    who, start = collectives.who[order], collectives.start_ns[order]
    first = np.ones(len(who), bool)
    first[1:] = who[1:] != who[:-1]
    free_ns = _previous_latest_end(collectives.end_ns[order], first)
    idle = np.clip((start - free_ns) / 1e9, 0.0, None)
    result = np.full(len(order), np.nan)
    result[order] = np.where(first | ~collectives.is_gpu_timed[order], np.nan, idle)
    return result


def _previous_latest_end(end: Ints, first: NDArray[np.bool_]) -> Ints:
    """Return the latest end among the earlier rows of the same recorder."""
    latest: Ints = np.empty_like(end)
    for begin, stop in itertools.pairwise([*np.flatnonzero(first).tolist(), len(end)]):
        np.maximum.accumulate(end[begin:stop], out=latest[begin:stop])
    return np.concatenate((end[:1], latest[:-1]))
