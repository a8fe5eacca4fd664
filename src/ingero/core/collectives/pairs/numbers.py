"""Sequence numbers for sends and receives: the n-th send belongs to the n-th receive.

NCCL does not number these operations.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ingero.contract.collective import POINT_TO_POINT_OPS
from ingero.core.collectives.columns import Collectives, Ints

MOST_APART = 8  # operations that one end of a pair was recorded longer than the other
FEW = 16  # operations below which nothing but their number is compared
TOLERANCE = 0.05  # of the usual time between two sends: how well the ends of a transfer agree
CLEARLY = 1.2  # times as many agreeing ends, for another offset of the clocks to be believed


def number_point_to_point(collectives: Collectives) -> Collectives:
    """Number sends and receives without a sequence number within each directed pair of ranks.

    Both ends of a transfer end together, up to a constant offset of two clocks, so a receive
    belongs to the send whose end is nearest. With few operations both count back from the last,
    since rings keep the newest.
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
    bounds = np.searchsorted(side, np.arange(2 * (int(pair.max()) + 1) + 1))
    sequence = collectives.seq.copy()
    for code in range(len(bounds) // 2):
        receives, sends = (
            rows[order[bounds[at] : bounds[at + 1]]] for at in (2 * code, 2 * code + 1)
        )
        ends = collectives.end_ns
        last = max(len(receives), len(sends))
        sequence[sends] = np.arange(last - len(sends), last)
        sequence[receives] = last - len(sends) + _senders(ends[sends], ends[receives])
    return replace(collectives, seq=sequence)


def _senders(sent_ns: Ints, received_ns: Ints) -> Ints:
    """Return the index of the send of each receive; those without one get an index of their own.

    The offset of the clocks is the one at which most receives end together with a send.
    """
    by_number = np.arange(len(received_ns)) + len(sent_ns) - len(received_ns)
    if min(len(sent_ns), len(received_ns)) < FEW:
        return by_number
    sent, received = np.sort(sent_ns), np.sort(received_ns)
    near_ns = max(TOLERANCE * float(np.median(np.diff(sent))), 1.0)
    best, most = 0, 0.0
    for shift in sorted(range(-MOST_APART, MOST_APART + 1), key=abs):
        offset = _offset(sent, received, shift)
        share = float((np.abs(_apart(sent, received - offset)[1]) <= near_ns).mean())
        if share > most * CLEARLY:
            best, most = offset, share
    index, apart = _apart(sent, received_ns - best)
    spacing = 0.5 * float(np.median(np.diff(sent)))
    found: Ints = np.where(np.abs(apart) <= spacing, np.argsort(sent_ns, kind="stable")[index], -1)
    taken = np.zeros(len(found), bool)
    taken[np.unique(found, return_index=True)[1]] = True
    alone = ~taken | (found < 0)
    found[alone] = len(sent_ns) + 1 + np.arange(int(alone.sum()))
    return found


def _offset(sent: Ints, received: Ints, shift: int) -> int:
    """Return the offset of the clocks if the last receive is `shift` operations too late."""
    sent, received = sent[: len(sent) + min(shift, 0)], received[: len(received) - max(shift, 0)]
    count = min(len(sent), len(received))
    return int(np.median(received[-count:] - sent[-count:])) if count else 0


def _apart(sent: Ints, received: Ints) -> tuple[NDArray[np.intp], Ints]:
    """Return the nearest send of each receive, and how far apart their ends are."""
    after = np.searchsorted(sent, received).clip(1, len(sent) - 1)
    index = after - (received - sent[after - 1] < sent[after] - received)
    return index, received - sent[index]
