"""Ranks that always send and receive together: an exchange of two, or a ring, and no pipeline.

Tokens of two expert ranks travel both ways in one launch, and every rank of a ring sends to the
next one while it receives from the one before. Stages of a pipeline may send and receive in one
launch, too, but not while it fills and drains.
"""

import numpy as np
from numpy.typing import NDArray

from ingero.core.collectives.columns import Collectives

TOGETHER = 0.1  # of the usual time between two launches: calls of one launch are closer
ALWAYS = 0.99  # of the launches; a pipeline fills once in every step
MIN_LAUNCHES = 16
BETWEEN = 0.75  # quantile of all silences that is the median of those between launches

Rows = NDArray[np.intp]


def is_swap(collectives: Collectives, rows: Rows) -> bool:
    """Whether all members send and receive in the same launches; `rows` are those of one group."""
    members = np.unique(collectives.who[rows])
    return len(members) > 1 and all(
        _swaps(collectives, rows[collectives.who[rows] == who]) for who in members
    )


def _swaps(collectives: Collectives, rows: Rows) -> bool:
    rows = rows[np.argsort(collectives.start_ns[rows], kind="stable")]
    if len(rows) < 2 * MIN_LAUNCHES:
        return False
    silence = np.diff(collectives.start_ns[rows])
    # Of two calls per launch, every second silence is one between launches.
    is_new = silence > TOGETHER * np.quantile(silence, BETWEEN)
    launch = np.concatenate(([0], np.cumsum(is_new)))
    sends, counts = np.bincount(launch, collectives.has_op({"Send"})[rows]), np.bincount(launch)
    together = (sends == 1) & (counts == 2)
    return len(counts) >= MIN_LAUNCHES and bool(together.mean() >= ALWAYS)
