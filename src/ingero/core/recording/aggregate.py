"""Counts and sums of events per time bucket, including events whose rows are not kept."""

import numpy as np
from numpy.typing import NDArray

from ingero.contract.events import SUMMED_ARG0_OPS
from ingero.core.recording.event_columns import EventColumns, op_table
from ingero.core.recording.histogram import BUCKETS, bucket_durations

# bucket, source, op, pid, count, stored, sum_dur, min_dur, max_dur, sum_arg0
AggregateRow = tuple[int, int, int, int, int, int, int, int, int, int]
_IS_SUMMED = op_table(SUMMED_ARG0_OPS)


def aggregate(
    events: EventColumns, stored: NDArray[np.bool_], bucket_ns: int
) -> list[AggregateRow]:
    """Return one row per (bucket, source, op, pid), in that order.

    Pointers in arg0 are not summed.
    """
    return aggregate_with_durations(events, stored, bucket_ns)[0]


def aggregate_with_durations(
    events: EventColumns, stored: NDArray[np.bool_], bucket_ns: int
) -> tuple[list[AggregateRow], NDArray[np.int64]]:
    """Return the same rows, and for each of them how many calls have which duration.

    The columns are the buckets of `histogram.FLOORS_NS`.
    """
    if not len(events):
        return [], np.zeros((0, BUCKETS), np.int64)
    bucket = events.timestamp // bucket_ns * bucket_ns
    order = np.lexsort((events.pid, events.op, events.source, bucket))
    keys = np.stack([bucket, events.source, events.op, events.pid])[:, order]
    begins = np.concatenate([[True], (keys[:, 1:] != keys[:, :-1]).any(axis=0)])
    first = np.flatnonzero(begins)
    duration = events.duration[order]
    amounts = np.where(_IS_SUMMED[events.code], events.arg0, 0)[order]
    table = np.stack(
        [
            *keys[:, first],
            np.diff(np.append(first, len(order))),
            np.add.reduceat(stored[order].astype(np.int64), first),
            np.add.reduceat(duration, first),
            np.minimum.reduceat(duration, first),
            np.maximum.reduceat(duration, first),
            np.add.reduceat(amounts, first),
        ],
        axis=1,
    )
    cells = (np.cumsum(begins) - 1) * BUCKETS + bucket_durations(duration)
    counts = np.bincount(cells, minlength=len(first) * BUCKETS).reshape(len(first), BUCKETS)
    return [tuple(row) for row in table.tolist()], counts
