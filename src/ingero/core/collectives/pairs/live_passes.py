"""Rings: communicators in which a rank always sends to one rank and receives from one at once.

Ring attention passes keys and values on in this way, and its gradients go back. The ranks of a ring
do the same work, so that they are no stages. A stage of a pipeline may send and receive in one
launch, too, but not while the pipeline fills and drains, which it does in every step.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ingero.contract.collective import POINT_TO_POINT_OPS
from ingero.core.collectives.columns import Collectives

MIN_LAUNCHES: Final = 16
MIN_STEPS: Final = 2  # other collectives that came in between: a pipeline drains before its own
ALWAYS: Final = 0.99  # of the launches pass something on
HARDLY: Final = 0.95  # of the launches: below it, a communicator is no ring any more
REMEMBERED: Final = 4_096  # launches; then they count half, so that a job may change

Rows = NDArray[np.intp]


@dataclass(slots=True)
class _Launches:
    launches: float = 0.0
    passes: float = 0.0
    steps: int = 0
    is_ring: bool = False


class RingFinder:
    """The launches of one rank, by communicator."""

    def __init__(self, max_comms: int) -> None:
        self._known: dict[int, _Launches] = {}
        self._max_comms = max_comms

    @property
    def rings(self) -> set[int]:
        """Communicators that are rings."""
        return {comm for comm, known in self._known.items() if known.is_ring}

    def take(self, rows: Collectives, calls: Rows, starts: Rows) -> None:
        """Count launches: `calls` in order of communicator and time, and where each one begins."""
        if not len(calls):
            return
        passes = _are_passes(rows, calls, starts)
        others = np.sort(rows.start_ns[~rows.has_op(POINT_TO_POINT_OPS)])
        before = np.searchsorted(others, rows.start_ns[calls[starts]])
        comms = rows.comm[calls[starts]]
        for comm in np.unique(comms).tolist():
            mine = comms == np.uint64(comm)
            self._count(comm, passes[mine], len(np.unique(before[mine])) - 1)

    def _count(self, comm: int, passes: NDArray[np.bool_], steps: int) -> None:
        if comm not in self._known and len(self._known) >= self._max_comms:
            self._known.pop(next(iter(self._known)))
        known = self._known.setdefault(comm, _Launches())
        # A batch may begin or end between the calls of a launch.
        whole = passes[int(not passes[0]) : len(passes) - int(not passes[-1])]
        if known.launches > REMEMBERED:
            known.launches, known.passes = known.launches / 2, known.passes / 2
        known.launches += len(whole)
        known.passes += int(whole.sum())
        known.steps += steps
        is_known = known.launches >= MIN_LAUNCHES and known.steps >= MIN_STEPS
        share = HARDLY if known.is_ring else ALWAYS
        known.is_ring = is_known and known.passes >= share * known.launches


def _are_passes(rows: Collectives, calls: Rows, starts: Rows) -> NDArray[np.bool_]:
    """Tell which launches send to one rank and receive from one, as often."""
    is_send, peer = rows.has_op({"Send"})[calls], rows.peer[calls]

    def only_one(way: NDArray[np.bool_]) -> NDArray[np.bool_]:
        least = np.minimum.reduceat(np.where(way, peer, np.iinfo(peer.dtype).max), starts)
        most = np.maximum.reduceat(np.where(way, peer, -1), starts)
        return np.asarray(least == most, bool)

    sends = np.add.reduceat(is_send.astype(np.int64), starts)
    is_even = 2 * sends == np.diff(starts, append=len(calls))
    return np.asarray(is_even & only_one(is_send) & only_one(~is_send), bool)
