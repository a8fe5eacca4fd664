"""Which sends and receives ran in one kernel.

Stages of a pipeline send and receive in one kernel when they swap with a neighbour, and ranks of a
ring when they pass on what they got. NCCL notes the end of such a kernel as soon as the warp of its
first call is done. That is mostly the send, which fills a buffer, while another warp still waits
for the data of a rank that is late. So such a kernel tells when its rank was ready, and not when it
was over.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ingero.contract.collective import POINT_TO_POINT_OPS
from ingero.core.collectives.columns import Collectives, Mask
from ingero.core.collectives.pairs.live_exchanges import NEAR_NS, TOGETHER_NS

Rows = NDArray[np.intp]


class Kernels(NamedTuple):
    """Calls by rank, communicator and enqueue, the kernel of each, and which kernels do both."""

    calls: Rows
    of_call: Rows
    is_swap: Mask


def is_in_swap(rows: Collectives) -> Mask:
    """Tell which rows were sent or received by a kernel that did both."""
    kernels = find_kernels(rows, np.flatnonzero(rows.peer != rows.rank))
    found = np.zeros(len(rows), bool)
    found[kernels.calls] = kernels.is_swap[kernels.of_call]
    return found


def find_kernels(rows: Collectives, chosen: Rows) -> Kernels:
    """Group the sends and receives among the chosen rows by the kernels that ran them.

    Calls of one kernel are enqueued one after the other, and start together where the GPU timed
    them.
    """
    calls = chosen[rows.has_op(POINT_TO_POINT_OPS)[chosen]]
    calls = calls[np.lexsort((rows.start_ns[calls], rows.comm[calls], rows.who[calls]))]
    who, comm, is_timed = (each[calls] for each in (rows.who, rows.comm, rows.is_gpu_timed))
    apart_ns = np.abs(np.diff(rows.entry_ns[calls]))
    is_new = (who[1:] != who[:-1]) | (comm[1:] != comm[:-1])
    is_new |= np.diff(rows.start_ns[calls]) > NEAR_NS
    is_new |= is_timed[1:] & is_timed[:-1] & (apart_ns > TOGETHER_NS)
    of_call = np.concatenate((np.zeros(min(len(calls), 1), np.intp), np.cumsum(is_new)))
    size = int(of_call.max(initial=-1)) + 1
    sends = np.bincount(of_call, rows.has_op({"Send"})[calls], size)
    is_swap = (sends > 0) & (sends < np.bincount(of_call, minlength=size))
    return Kernels(calls, of_call, is_swap)
