"""Transfers of communicators, live: which of them became slower than they were.

The member of a collective that waits least shows the transfer alone. What is usual for a
communicator is learned while it hardly changes.
"""

import math
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ingero.contract.collective import POINT_TO_POINT_OPS
from ingero.core.collectives.columns import Collectives
from ingero.core.collectives.matching import Groups
from ingero.core.places.links import LinkPlace, Ranks, locate_link

SMOOTH: Final = 0.2  # per tick: about five seconds
SLOWLY: Final = 0.01
LEARNED: Final = 10  # ticks with transfers before a communicator is judged
SLOW: Final = 1.3  # times the usual transfer
FAST: Final = 1.15
MAX_KINDS: Final = 16_384  # operations and sizes of all communicators; further ones are left out
Kind = tuple[int, str, int]  # communicator, operation, bytes


@dataclass(slots=True)
class _Transfer:
    job: str | None
    members: dict[int, str | None] = field(default_factory=dict)  # nodes by rank
    usual_s: float = math.nan
    now_s: float = math.nan
    ticks: int = 0


class LiveTransfers:
    """The transfers of one cluster, by communicator, operation and size."""

    def __init__(self) -> None:
        self._known: dict[Kind, _Transfer] = {}

    def take(self, rows: Collectives, groups: Groups) -> None:
        """Add the collectives that all members reported, timed by the GPU."""
        usable = rows.is_gpu_timed & (rows.seq >= 0) & (rows.nranks > 1)
        chosen = np.flatnonzero(usable & ~rows.has_op(POINT_TO_POINT_OPS))
        if not len(chosen):
            return
        size = int(groups[chosen].max()) + 1
        shortest = np.full(size, np.inf)
        np.minimum.at(shortest, groups[chosen], rows.gpu_duration_ns[chosen] / 1e9)
        whole = np.bincount(groups[chosen], minlength=size)[groups[chosen]] >= rows.nranks[chosen]
        chosen = chosen[whole]
        comm, op = rows.comm[chosen].tolist(), rows.op[chosen].tolist()
        found: dict[Kind, list[float]] = {}
        for row, kind in enumerate(
            zip(comm, (rows.ops[o] for o in op), rows.size_bytes[chosen].tolist(), strict=True)
        ):
            found.setdefault(kind, []).append(float(shortest[groups[chosen[row]]]))
            self._note_member(kind, rows, int(chosen[row]))
        for kind, values in found.items():
            if kind in self._known:
                _follow(self._known[kind], float(np.median(values)))

    def locate(self, job: str | None) -> LinkPlace | None:
        """Return the slow link of a job; None where no communicator became slower."""
        slow: set[Ranks] = set()
        fast: set[Ranks] = set()
        nodes: dict[int, str | None] = {}
        for each in self._known.values():
            if each.job != job or each.ticks <= LEARNED:
                continue
            nodes |= each.members
            ratio = each.now_s / each.usual_s if each.usual_s > 0 else 1.0
            if ratio > SLOW:
                slow.add(frozenset(each.members))
            elif ratio < FAST:
                fast.add(frozenset(each.members))
        return locate_link(slow, fast - slow, nodes)

    def _note_member(self, kind: Kind, rows: Collectives, row: int) -> None:
        recorder = rows.recorders[rows.who[row]]
        known = self._known.get(kind)
        if known is None:
            if len(self._known) >= MAX_KINDS:
                return
            known = self._known[kind] = _Transfer(recorder.job)
        if recorder.global_rank is not None:
            known.members[recorder.global_rank] = recorder.node


def _follow(known: _Transfer, value: float) -> None:
    known.ticks += 1
    known.now_s = value if math.isnan(known.now_s) else known.now_s + SMOOTH * (value - known.now_s)
    if math.isnan(known.usual_s):
        known.usual_s = value
    elif known.ticks <= LEARNED:
        known.usual_s += (value - known.usual_s) / known.ticks
    elif known.now_s < FAST * known.usual_s:
        known.usual_s += SLOWLY * (value - known.usual_s)
