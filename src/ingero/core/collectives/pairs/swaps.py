"""Ranks that always send and receive together: an exchange of two, or a ring, and no pipeline.

Tokens of two expert ranks travel both ways in one launch, and every rank of a ring sends to the
next one while it receives from the one before. Stages of a pipeline may send and receive in one
launch, too, but not while it fills and drains.
"""

import numpy as np
from numpy.typing import NDArray

from ingero.core.collectives.columns import Collectives, Ints, Mask

TOGETHER = 0.1  # of the usual time between two launches: calls of one launch are closer
ALWAYS = 0.99  # of the launches; a pipeline fills once in every step
MIN_LAUNCHES = 16
TENSORS = (1, 2)  # sent at once: keys and values may travel one by one

Rows = NDArray[np.intp]


def is_swap(collectives: Collectives, rows: Rows) -> bool:
    """Whether all members send and receive in the same launches; `rows` are those of one group."""
    members = np.unique(collectives.who[rows])
    return len(members) > 1 and all(
        _swaps(collectives, rows[collectives.who[rows] == who]) for who in members
    )


def _swaps(collectives: Collectives, rows: Rows) -> bool:
    rows = rows[np.argsort(collectives.start_ns[rows], kind="stable")]
    silence = np.diff(collectives.start_ns[rows])
    is_send = collectives.has_op({"Send"})[rows]
    return any(_are_launched_by(2 * tensors, silence, is_send) for tensors in TENSORS)


def _are_launched_by(calls: int, silence: Ints, is_send: Mask) -> bool:
    """Whether so many calls are launched together, half of them sends."""
    if len(is_send) < calls * MIN_LAUNCHES:
        return False
    usual = np.quantile(silence, 1 - 1 / (2 * calls))  # the median of those between launches
    launch = np.concatenate(([0], np.cumsum(silence > TOGETHER * usual)))
    sends, counts = np.bincount(launch, is_send), np.bincount(launch)
    together = (2 * sends == counts) & (counts == calls)
    return len(counts) >= MIN_LAUNCHES and bool(together.mean() >= ALWAYS)
