"""Two ranks that always send and receive together: an exchange of two, and no pipeline.

Tokens of two expert ranks and blocks of a ring of two travel both ways in one launch. Two stages of
a pipeline may send and receive in one launch, too, but not while it fills and drains.
"""

import numpy as np
from numpy.typing import NDArray

from ingero.core.collectives.columns import Collectives

TOGETHER = 0.1  # of the usual time between two launches: calls of one launch are closer
ALWAYS = 0.99  # of the launches; a pipeline fills once in every step
MIN_LAUNCHES = 16

Rows = NDArray[np.intp]


def is_swap(collectives: Collectives, rows: Rows) -> bool:
    """Whether both members send and receive in the same launches; `rows` are those of the pair."""
    members = np.unique(collectives.who[rows])
    return len(members) == 2 and all(
        _swaps(collectives, rows[collectives.who[rows] == who]) for who in members
    )


def _swaps(collectives: Collectives, rows: Rows) -> bool:
    rows = rows[np.argsort(collectives.start_ns[rows], kind="stable")]
    # A recording may begin between the two calls of a launch.
    return any(_in_pairs(collectives, rows[first:]) for first in (0, 1))


def _in_pairs(collectives: Collectives, rows: Rows) -> bool:
    launches = len(rows) // 2
    if launches < MIN_LAUNCHES:
        return False
    rows = rows[: 2 * launches]
    is_send = collectives.has_op({"Send"})[rows].reshape(-1, 2)
    start = collectives.start_ns[rows].reshape(-1, 2)
    apart = np.median(start[1:, 0] - start[:-1, 0])
    together = (is_send.sum(axis=1) == 1) & (start[:, 1] - start[:, 0] <= TOGETHER * apart)
    return bool(together.mean() >= ALWAYS)
