"""Transfers of communicators and of pairs, live: which of them became slower than they were.

The member of a collective that waits least shows the transfer alone. So does the shorter of a send
and its receive; they have no common number, so that the shortest of a tick counts. What is usual is
learned while it hardly changes.
"""

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ingero.contract.collective import POINT_TO_POINT_OPS
from ingero.core.collectives.columns import Collectives
from ingero.core.collectives.matching import Groups
from ingero.core.places.links import LinkPlace, Ranks, locate_link
from ingero.core.robust import Index

SMOOTH: Final = 0.2  # per tick: about five seconds
SLOWLY: Final = 0.01
LEARNED: Final = 10  # ticks with transfers before a communicator is judged
SLOW: Final = 1.3  # times the usual transfer
FAST: Final = 1.15
FRESH_S: Final = 30.0  # a transfer that was not measured for longer has ended and tells nothing
MAX_KINDS: Final = 16_384  # operations and sizes of all communicators; new ones wait for ended ones
SEND: Final = "Send"
# communicator, operation, bytes; sender and receiver within the communicator, -1 in collectives
Kind = tuple[int, str, int, int, int]


@dataclass(slots=True)
class _Transfer:
    job: str | None
    members: dict[int, str | None] = field(default_factory=dict)  # nodes by rank
    usual_s: float = math.nan
    now_s: float = math.nan
    calls: float = math.nan  # of a tick, which lasts about a second
    ticks: int = 0
    seen_s: float = -math.inf  # when it began or was measured last

    @property
    def is_slow(self) -> bool:
        return self.ticks > LEARNED and self.now_s > SLOW * self.usual_s

    @property
    def is_fast(self) -> bool:
        return self.ticks > LEARNED and self.now_s < FAST * self.usual_s

    def goes_on(self, now_s: float) -> bool:
        return now_s - self.seen_s <= FRESH_S


class LiveTransfers:
    """The transfers of one cluster, by communicator, operation and size."""

    def __init__(self) -> None:
        self._known: dict[Kind, _Transfer] = {}

    def take(self, rows: Collectives, groups: Groups, now_s: float) -> None:
        """Add the collectives that all members reported, and sends and receives; GPU-timed ones."""
        if len(self._known) >= MAX_KINDS:
            self._drop_ended(now_s)
        pairwise = rows.has_op(POINT_TO_POINT_OPS)
        usable = rows.is_gpu_timed & (rows.nranks > 1)
        self._take_collectives(
            rows, groups, np.flatnonzero(usable & ~pairwise & (rows.seq >= 0)), now_s
        )
        self._take_pairs(rows, np.flatnonzero(usable & pairwise & (rows.peer >= 0)), now_s)

    def _take_collectives(
        self, rows: Collectives, groups: Groups, chosen: Index, now_s: float
    ) -> None:
        if not len(chosen):
            return
        size = int(groups[chosen].max()) + 1
        shortest = np.full(size, np.inf)
        np.minimum.at(shortest, groups[chosen], rows.gpu_duration_ns[chosen] / 1e9)
        whole = np.bincount(groups[chosen], minlength=size)[groups[chosen]] >= rows.nranks[chosen]
        chosen = chosen[whole]
        comm, op = rows.comm[chosen].tolist(), rows.op[chosen].tolist()
        weight = _weights(rows, chosen)
        found: dict[Kind, list[float]] = {}
        calls: defaultdict[Kind, float] = defaultdict(float)
        for row, (at, code, size_bytes) in enumerate(
            zip(comm, op, rows.size_bytes[chosen].tolist(), strict=True)
        ):
            kind = (at, rows.ops[code], size_bytes, -1, -1)
            found.setdefault(kind, []).append(float(shortest[groups[chosen[row]]]))
            calls[kind] += weight[row] / rows.nranks[chosen[row]]
            self._note_member(kind, rows, int(chosen[row]), now_s)
        for kind, values in found.items():
            if kind in self._known:
                _follow(self._known[kind], float(np.median(values)), calls[kind], now_s)

    def _take_pairs(self, rows: Collectives, chosen: Index, now_s: float) -> None:
        is_send = rows.has_op({SEND})[chosen]
        rank, peer = rows.rank[chosen], rows.peer[chosen]
        kinds = zip(
            rows.comm[chosen].tolist(),
            np.where(is_send, rank, peer).tolist(),
            np.where(is_send, peer, rank).tolist(),
            rows.size_bytes[chosen].tolist(),
            strict=True,
        )
        weight = _weights(rows, chosen)
        shortest: dict[Kind, float] = {}
        calls: defaultdict[Kind, float] = defaultdict(float)
        ends: dict[Kind, set[int]] = {}
        for at, (comm, sender, receiver, size_bytes) in enumerate(kinds):
            kind = (comm, SEND, size_bytes, sender, receiver)
            lasted_s = float(rows.gpu_duration_ns[chosen[at]]) / 1e9
            shortest[kind] = min(shortest.get(kind, math.inf), lasted_s)
            calls[kind] += weight[at] / 2
            ends.setdefault(kind, set()).add(int(rank[at]))
            self._note_member(kind, rows, int(chosen[at]), now_s)
        for kind, lasted_s in shortest.items():
            # One end alone may have waited for the other every time.
            if kind in self._known and len(ends[kind]) > 1:
                _follow(self._known[kind], lasted_s, calls[kind], now_s)

    def locate(self, job: str | None, now_s: float) -> LinkPlace | None:
        """Return the slow link of a job; None where no communicator became slower."""
        known = [each for each in self._fresh(job, now_s) if each.ticks > LEARNED]
        slow: set[Ranks] = {frozenset(each.members) for each in known if each.is_slow}
        fast: set[Ranks] = {frozenset(each.members) for each in known if each.is_fast}
        nodes = {rank: node for each in known for rank, node in each.members.items()}
        return locate_link(slow, fast - slow, nodes)

    def lost_by(self, job: str | None, now_s: float) -> float:
        """Return the share of the time that slow transfers of a job take longer than usual.

        It is more than the job loses where transfers overlap each other or compute.
        """
        return sum(
            each.calls * (each.now_s - each.usual_s)
            for each in self._fresh(job, now_s)
            if each.is_slow
        )

    def _fresh(self, job: str | None, now_s: float) -> Iterator[_Transfer]:
        """Return the transfers of a job that go on."""
        for each in self._known.values():
            if each.job == job and each.goes_on(now_s):
                yield each

    def _note_member(self, kind: Kind, rows: Collectives, row: int, now_s: float) -> None:
        recorder = rows.recorders[rows.who[row]]
        known = self._known.get(kind)
        if known is None:
            if len(self._known) >= MAX_KINDS:
                return
            known = self._known[kind] = _Transfer(recorder.job, seen_s=now_s)
        if recorder.global_rank is not None:
            known.members[recorder.global_rank] = recorder.node

    def _drop_ended(self, now_s: float) -> None:
        self._known = {kind: each for kind, each in self._known.items() if each.goes_on(now_s)}


def _weights(rows: Collectives, chosen: Index) -> list[float]:
    """Return how many calls each row stands for."""
    known = rows.weight[chosen]
    weight: list[float] = np.where(known > 0, known, 1.0).tolist()
    return weight


def _follow(known: _Transfer, value: float, calls: float, now_s: float) -> None:
    known.ticks += 1
    known.seen_s = now_s
    known.now_s = _nearer(known.now_s, value)
    known.calls = _nearer(known.calls, calls)
    if math.isnan(known.usual_s):
        known.usual_s = value
    elif known.ticks <= LEARNED:
        known.usual_s += (value - known.usual_s) / known.ticks
    elif known.is_fast:
        known.usual_s += SLOWLY * (value - known.usual_s)


def _nearer(before: float, value: float) -> float:
    return value if math.isnan(before) else before + SMOOTH * (value - before)
