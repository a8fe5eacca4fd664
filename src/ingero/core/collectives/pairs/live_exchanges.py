"""Exchanges: the sends and receives of one kernel, joined into one `AllToAll` or `SendRecv`.

Frameworks make an exchange of tokens between experts from a send to and a receive from every rank,
itself included. A rank of a ring sends to the next one and receives from the one before. Such calls
run in one kernel, so they start together. When they end is not known: NCCL notes an end as soon as
the first warp of the kernel is done, while others still wait for a rank that is late. So an
exchange tells when its ranks were ready, and not when it was over.
"""

from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ingero.contract.collective import POINT_TO_POINT_OPS
from ingero.core.collectives.columns import UNKNOWN, Collectives, Ints, Mask
from ingero.core.collectives.pairs.live_passes import RingFinder

EXCHANGE: Final = "AllToAll"
RING: Final = "SendRecv"
EXCHANGES: Final = frozenset({EXCHANGE, RING})
ENDS_TOGETHER: Final = frozenset({"AllReduce", "AllGather", "ReduceScatter"})
NEAR_NS: Final = 20_000  # between the calls of one group, which NCCL enqueues one after the other
TOGETHER_NS: Final = 5_000  # between the starts of the channels of one kernel
MIN_RANKS: Final = 3  # two that send to each other may be stages of a pipeline
MAX_COMMS: Final = 1_024

Rows = NDArray[np.intp]
_JOINED: Final = ("op", "peer", "start_ns", "end_ns", "gpu_duration_ns", "size_bytes")


class ExchangeJoiner:
    """Joins the calls of one rank.

    A communicator is known to exchange once somebody sent to and received from all others at once,
    or when it is a ring. `turns` counts the rings that were found or given up: steps look different
    from then on.
    """

    def __init__(self) -> None:
        self.turns = 0
        self._usual: dict[int, int] = {}  # timed calls of an exchange, by communicator
        self._rings = RingFinder(MAX_COMMS)
        self._passing: set[int] = set()  # communicators whose calls are joined into passes

    def take(self, rows: Collectives) -> tuple[Collectives, Rows]:
        """Return the rows with exchanges joined, and which row of the batch each was.

        What a rank sends to itself is left out, and so are calls of an exchange that the GPU did
        not time, or whose times are those of an older one.
        """
        pairwise = rows.has_op(POINT_TO_POINT_OPS) & (rows.peer >= 0)
        if not pairwise.any():
            return rows, np.arange(len(rows))
        dropped = pairwise & (rows.peer == rows.rank)
        self._find(rows, np.flatnonzero(pairwise & ~dropped))
        calls = pairwise & ~dropped & np.isin(rows.comm, np.array([*self._usual], np.uint64))
        dropped |= calls
        joined, first = rows, np.flatnonzero(calls & rows.is_gpu_timed)
        if len(first):
            joined, first = self._join(rows, first)
            dropped[first] = False
        kept = np.flatnonzero(~dropped)
        return joined.take(kept), kept

    def _find(self, rows: Collectives, calls: Rows) -> None:
        """Find rings, and communicators in which calls go to and come from all others."""
        known = np.array([*self._usual.keys() - self._passing], np.uint64)
        calls = calls[~np.isin(rows.comm[calls], known)]
        if not len(calls):
            return
        calls, starts = _groups(rows, calls, rows.start_ns, NEAR_NS)
        self._rings.take(rows, calls, starts)
        self._follow_rings()
        is_send = rows.has_op({"Send"})[calls]
        for own in np.split(np.arange(len(calls)), starts[1:]):
            comm, others = int(rows.comm[calls[own[0]]]), int(rows.nranks[calls[own[0]]]) - 1
            if comm in self._usual or len(own) < 2 * others or others < MIN_RANKS - 1:
                continue
            peers, sent = rows.peer[calls[own]], is_send[own]
            if all(len(np.unique(peers[way])) == others for way in (sent, ~sent)):
                self._add(comm)

    def _follow_rings(self) -> None:
        rings = self._rings.rings
        if rings == self._passing:
            return
        self.turns += 1
        for comm in self._passing - rings:
            self._usual.pop(comm, None)
        for comm in rings - self._passing:
            self._add(comm)
        self._passing = rings

    def _add(self, comm: int) -> None:
        if len(self._usual) >= MAX_COMMS:
            self._usual.pop(next(iter(self._usual)))
        self._usual[comm] = 2

    def _join(self, rows: Collectives, calls: Rows) -> tuple[Collectives, Rows]:
        """Write each exchange into its first call; return these calls, too.

        An exchange lasts from its first start to the last end that was noted. It has as many bytes
        as if it sent to all others what it does to those that were timed; a pass has what it sends.
        """
        entry_ns = rows.entry_ns
        calls, starts = _groups(rows, calls, entry_ns, TOGETHER_NS)
        counts, first = np.diff(starts, append=len(calls)), calls[starts]
        is_send = rows.has_op({"Send"})[calls]
        sends = np.add.reduceat(is_send.astype(np.int64), starts)
        sent = np.add.reduceat(np.where(is_send, rows.size_bytes[calls], 0), starts)
        chosen = self._is_whole(rows.comm[first], counts) & (sends > 0) & (sends < counts)
        first = first[chosen]
        end_ns = np.maximum.reduceat(rows.end_ns[calls], starts)[chosen]
        values = {name: getattr(rows, name).copy() for name in _JOINED}
        is_pass = np.isin(rows.comm[first], np.array([*self._passing], np.uint64))
        values["op"][first], values["peer"][first] = len(rows.ops) + is_pass, UNKNOWN
        values["start_ns"][first] = np.minimum.reduceat(rows.start_ns[calls], starts)[chosen]
        values["end_ns"][first] = end_ns
        values["gpu_duration_ns"][first] = end_ns - entry_ns[first]
        sends, sent = np.maximum(sends[chosen], 1), sent[chosen]
        others = np.where(is_pass, sends, rows.nranks[first] - 1)
        values["size_bytes"][first] = sent // sends * others
        return replace(rows, ops=(*rows.ops, EXCHANGE, RING), **values), first

    def _is_whole(self, comm: NDArray[np.uint64], counts: Rows) -> Mask:
        """Tell which groups have more than half of the calls that an exchange usually has."""
        usual = np.zeros(len(comm), np.int64)
        for each in np.unique(comm).tolist():
            mine = comm == np.uint64(each)
            self._usual[each] = max(self._usual[each], int(np.median(counts[mine])))
            usual[mine] = self._usual[each]
        return np.asarray(2 * counts > usual, bool)


def _groups(rows: Collectives, calls: Rows, at_ns: Ints, within_ns: int) -> tuple[Rows, Rows]:
    """Return calls by communicator and time, and where a group begins: nearer than `within_ns`."""
    calls = calls[np.lexsort((at_ns[calls], rows.comm[calls]))]
    time_ns, comm = at_ns[calls], rows.comm[calls]
    is_new = (np.diff(time_ns) > within_ns) | (comm[1:] != comm[:-1])
    return calls, np.concatenate(([0], np.flatnonzero(is_new) + 1))


def after_anchors(rows: Collectives, step: Ints, place: Ints) -> Ints:
    """Return for exchanges the time from the end of their step's place 0 to their start.

    It is -1 for other rows, and where place 0 is missing or does not end for all members together.
    """
    result = np.full(len(rows), UNKNOWN, np.int64)
    anchors = np.flatnonzero((place == 0) & rows.has_op(ENDS_TOGETHER) & rows.is_gpu_timed)
    chosen = np.flatnonzero(rows.has_op(EXCHANGES) & rows.is_gpu_timed)
    if not len(anchors) or not len(chosen):
        return result
    anchors = anchors[np.argsort(step[anchors], kind="stable")]
    at = np.searchsorted(step[anchors], step[chosen]).clip(0, len(anchors) - 1)
    anchor = anchors[at]
    after_ns = rows.entry_ns[chosen] - rows.end_ns[anchor]
    fits = (step[anchor] == step[chosen]) & (rows.nranks[anchor] >= rows.nranks[chosen])
    fits &= after_ns >= 0
    result[chosen[fits]] = after_ns[fits]
    return result
