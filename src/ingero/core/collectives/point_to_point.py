"""Sequence numbers for sends and receives: the n-th send belongs to the n-th receive.

NCCL does not number these operations.
"""

from dataclasses import replace

import numpy as np

from ingero.contract.collective import POINT_TO_POINT_OPS
from ingero.core.collectives.columns import Collectives


def number_point_to_point(collectives: Collectives) -> Collectives:
    """Number sends and receives without a sequence number within each directed pair of ranks.

    Both ends count from their first operation. Where one end lost some, both count back from the
    last, since rings keep the newest.
    """
    is_pairwise = collectives.has_op(POINT_TO_POINT_OPS)
    rows = np.flatnonzero(is_pairwise & (collectives.seq < 0) & (collectives.peer >= 0))
    if not len(rows):
        return collectives
    is_send = collectives.has_op({"Send"})[rows]
    source = np.where(is_send, collectives.rank[rows], collectives.peer[rows])
    target = np.where(is_send, collectives.peer[rows], collectives.rank[rows])
    pair = np.stack([collectives.comm[rows].view(np.int64), source, target], axis=1)
    pair = np.unique(pair, axis=0, return_inverse=True)[1].reshape(-1)
    order = np.lexsort((collectives.start_ns[rows], is_send, pair))
    side = pair[order] * 2 + is_send[order]
    begins = np.flatnonzero(np.r_[True, side[1:] != side[:-1]])
    counts = np.diff(np.r_[begins, len(side)])
    ordinal = np.arange(len(side)) - np.repeat(begins, counts)
    longest = np.zeros(int(pair.max()) + 1, np.int64)
    np.maximum.at(longest, pair[order][begins], counts)
    missing = longest[pair[order]] - np.repeat(counts, counts)
    sequence = collectives.seq.copy()
    sequence[rows[order]] = ordinal + missing
    return replace(collectives, seq=sequence)
