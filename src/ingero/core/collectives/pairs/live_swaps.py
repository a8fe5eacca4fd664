"""Swaps: a rank sends and receives in one kernel, as stages of a pipeline do with a neighbour.

NCCL notes the end of such a kernel as soon as the warp of its first call is done. That is mostly
the send, which fills a buffer, while another warp still waits for the data of a stage that is late.
So a swap tells when its rank was ready, and not when it was over.
"""

import numpy as np

from ingero.contract.collective import POINT_TO_POINT_OPS
from ingero.core.collectives.columns import Collectives, Mask
from ingero.core.collectives.pairs.live_exchanges import NEAR_NS, TOGETHER_NS


def is_in_swap(rows: Collectives) -> Mask:
    """Tell which rows of one rank were sent and received by one kernel.

    Calls of one kernel are enqueued one after the other, and start together where the GPU timed
    them.
    """
    found = np.zeros(len(rows), bool)
    calls = np.flatnonzero(rows.has_op(POINT_TO_POINT_OPS) & (rows.peer != rows.rank))
    if len(calls) < 2:
        return found
    calls = calls[np.lexsort((rows.start_ns[calls], rows.comm[calls]))]
    comm, is_timed = rows.comm[calls], rows.is_gpu_timed[calls]
    apart_ns = np.abs(np.diff(rows.entry_ns[calls]))
    is_new = (comm[1:] != comm[:-1]) | (np.diff(rows.start_ns[calls]) > NEAR_NS)
    is_new |= is_timed[1:] & is_timed[:-1] & (apart_ns > TOGETHER_NS)
    kernel = np.concatenate(([0], np.cumsum(is_new)))
    counts = np.bincount(kernel)
    sends = np.bincount(kernel, rows.has_op({"Send"})[calls])
    found[calls] = ((sends > 0) & (sends < counts))[kernel]
    return found
