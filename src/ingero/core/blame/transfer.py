"""Slow links: all members arrive together, but the transfer takes longer than comparable ones."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ingero.contract.collective import POINT_TO_POINT_OPS
from ingero.core.collectives.columns import Collectives, Floats, Recorder
from ingero.core.collectives.matching import match_collectives
from ingero.core.durations import readable_seconds
from ingero.core.robust import MAD_TO_SIGMA

RATIO_FLOOR = 1.3
LOSS_FLOOR = 0.01  # of the step


_ALL_BITS = 0xFFFFFFFFFFFFFFFF
_MIX = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class SlowLink:
    """A communicator whose transfers are slow; `members` and `fast_members` are recorder codes.

    `fast` are the members of each communicator that is as fast as it should be.
    """

    comm: int
    op: str
    size_bytes: int
    ratio: float
    error: float
    loss_s: float
    members: tuple[int, ...]
    fast: tuple[frozenset[int], ...]

    @property
    def fast_members(self) -> tuple[int, ...]:
        """The members of all fast communicators."""
        return tuple(sorted(frozenset().union(*self.fast)))

    def describe(self, recorders: Sequence[Recorder]) -> str:
        """Return the evidence for this link."""
        ranks = ", ".join(str(recorders[m].global_rank) for m in self.members)
        return (
            f"{self.op} of {self.size_bytes} bytes among ranks {ranks}: transfer {self.ratio:.2f}x "
            f"that of the same operation elsewhere (±{self.error:.2f}), "
            f"{readable_seconds(self.loss_s)} a step"
        )


@dataclass(frozen=True, slots=True)
class Transfers:
    """The whole collectives within steps: a row of `part` of each, its step and its transfer."""

    part: Collectives
    row: NDArray[np.intp]
    step: NDArray[np.intp]
    transfer_s: Floats
    members: dict[int, tuple[int, ...]]  # recorder codes by communicator


def measure_transfers(collectives: Collectives, row_step: NDArray[np.intp]) -> Transfers:
    """Return the transfers of a recording: of each collective, the time of who waited least.

    Two ranks that send to each other are a communicator of their own.
    """
    rows = np.flatnonzero((row_step >= 0) & (collectives.nranks > 1))
    part = collectives.take(rows)
    groups = match_collectives(part)
    part = _pairs_apart(part)
    size = int(groups.max(initial=-1)) + 1
    shortest = np.full(size, np.inf)
    np.minimum.at(shortest, groups, part.duration_ns / 1e9)
    present = np.bincount(groups, minlength=size)
    first = np.unique(groups, return_index=True)[1]
    first = first[present[groups[first]] >= part.nranks[first]]
    pairs = np.unique(np.stack([part.comm.view(np.int64), part.who], 1), axis=0)
    members: dict[int, list[int]] = {}
    for comm, who in pairs.tolist():
        members.setdefault(comm & _ALL_BITS, []).append(who)
    known = {comm: tuple(codes) for comm, codes in members.items()}
    return Transfers(part, first, row_step[rows][first], shortest[groups[first]], known)


def find_slow_links(
    transfers: Transfers, begin: int, end: int, step_s: float
) -> tuple[SlowLink, ...]:
    """Return the communicators slower than comparable ones in some steps, the costliest first.

    Comparable ones have the same operation, size and width.
    """
    part = transfers.part
    chosen = np.flatnonzero((transfers.step >= begin) & (transfers.step < end))
    if not len(chosen) or end <= begin:
        return ()
    at = transfers.row[chosen]
    kind = np.stack([part.op[at], part.size_bytes[at], part.nranks[at]], 1)
    kinds, which = np.unique(kind, axis=0, return_inverse=True)
    found: list[SlowLink] = []
    for code in range(len(kinds)):
        found += _compare(transfers, chosen[which.reshape(-1) == code], end - begin, step_s)
    return tuple(sorted(found, key=lambda link: -link.loss_s))


def _compare(
    transfers: Transfers, chosen: NDArray[np.intp], steps: int, step_s: float
) -> list[SlowLink]:
    part, at, transfer_s = transfers.part, transfers.row[chosen], transfers.transfer_s[chosen]
    comms, which = np.unique(part.comm[at], return_inverse=True)
    if len(comms) < 2:
        return []
    level = np.array([np.median(transfer_s[which == i]) for i in range(len(comms))])
    typical = float(np.sort(level)[(len(level) - 1) // 2])
    if typical <= 0:  # shorter than the resolution of the clock
        return []
    error = max(MAD_TO_SIGMA * float(np.median(typical - level[level <= typical])) / typical, 0.05)
    slow = level > max(RATIO_FLOOR, 1 + 4 * error) * typical
    fast = tuple(frozenset(transfers.members[int(comm)]) for comm in comms[~slow])
    links = []
    for i in np.flatnonzero(slow):
        loss = float((level[i] - typical) * (which == i).sum() / steps)
        if loss >= LOSS_FLOOR * step_s:
            links.append(
                SlowLink(
                    int(comms[i]),
                    part.ops[part.op[at[0]]],
                    int(part.size_bytes[at[0]]),
                    float(level[i] / typical),
                    error,
                    loss,
                    transfers.members[int(comms[i])],
                    fast,
                )
            )
    return links


def _pairs_apart(part: Collectives) -> Collectives:
    """Return the rows with a communicator of two for each pair of ranks that sends or receives."""
    pairwise = part.has_op(POINT_TO_POINT_OPS) & (part.peer >= 0)
    if not pairwise.any():
        return part
    low, high = np.minimum(part.rank, part.peer), np.maximum(part.rank, part.peer)
    pair = (low.astype(np.uint64) << np.uint64(32)) + high.astype(np.uint64) + np.uint64(1)
    send = part.ops.index("Send") if "Send" in part.ops else part.ops.index("Recv")
    return replace(
        part,
        comm=np.where(pairwise, part.comm ^ (pair * _MIX), part.comm),
        nranks=np.where(pairwise, 2, part.nranks).astype(part.nranks.dtype),
        op=np.where(pairwise, send, part.op).astype(part.op.dtype),
    )
