"""Slow links: all members arrive together, but the transfer takes longer than comparable ones."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ingero.core.collectives.columns import Collectives, Recorder
from ingero.core.collectives.matching import match_collectives
from ingero.core.robust import MAD_TO_SIGMA

RATIO_FLOOR = 1.3
LOSS_FLOOR = 0.01  # of the step


@dataclass(frozen=True, slots=True)
class SlowLink:
    """A communicator whose transfers are slow; `members` and `fast_members` are recorder codes."""

    comm: int
    op: str
    size_bytes: int
    ratio: float
    error: float
    loss_s: float
    members: tuple[int, ...]
    fast_members: tuple[int, ...]

    def describe(self, recorders: Sequence[Recorder]) -> str:
        """Return the evidence for this link."""
        ranks = ", ".join(str(recorders[m].global_rank) for m in self.members)
        return (
            f"{self.op} of {self.size_bytes} bytes among ranks {ranks}: transfer {self.ratio:.2f}x "
            f"that of the same operation elsewhere (±{self.error:.2f}), "
            f"{self.loss_s * 1e3:.2f} ms a step"
        )


def find_slow_links(
    collectives: Collectives, row_step: NDArray[np.intp], steps: int, step_s: float
) -> list[SlowLink]:
    """Return communicators slower than comparable ones, the costliest first.

    Comparable ones have the same operation, size and width.
    """
    rows = np.flatnonzero((row_step >= 0) & (collectives.nranks > 1))
    if not len(rows) or not steps:
        return []
    part = collectives.take(rows)
    groups = match_collectives(part)
    size = int(groups.max()) + 1
    shortest = np.full(size, np.inf)
    np.minimum.at(shortest, groups, part.duration_ns / 1e9)
    present = np.bincount(groups, minlength=size)
    whole = present[groups] >= part.nranks
    first = np.unique(groups, return_index=True)[1]
    first = first[whole[first]]
    kind = np.stack([part.op[first], part.size_bytes[first], part.nranks[first]], 1)
    found = []
    for key in np.unique(kind, axis=0):
        at = first[(kind == key).all(axis=1)]
        found += _compare(part, at, shortest[groups[at]], steps, step_s)
    return sorted(found, key=lambda link: -link.loss_s)


def _compare(
    part: Collectives,
    at: NDArray[np.intp],
    transfer_s: NDArray[np.float64],
    steps: int,
    step_s: float,
) -> list[SlowLink]:
    comms, which = np.unique(part.comm[at], return_inverse=True)
    if len(comms) < 2:
        return []
    level = np.array([np.median(transfer_s[which == i]) for i in range(len(comms))])
    typical = float(np.sort(level)[(len(level) - 1) // 2])
    if typical <= 0:  # shorter than the resolution of the clock
        return []
    error = max(MAD_TO_SIGMA * float(np.median(typical - level[level <= typical])) / typical, 0.05)
    slow = level > max(RATIO_FLOOR, 1 + 4 * error) * typical
    fast = tuple(int(w) for w in np.unique(part.who[np.isin(part.comm, comms[~slow])]))
    links = []
    for i in np.flatnonzero(slow):
        often = (which == i).sum() / steps
        loss = float((level[i] - typical) * often)
        if loss >= LOSS_FLOOR * step_s:
            members = tuple(int(w) for w in np.unique(part.who[part.comm == comms[i]]))
            op = part.ops[part.op[at[0]]]
            ratio = float(level[i] / typical)
            links.append(
                SlowLink(
                    int(comms[i]),
                    op,
                    int(part.size_bytes[at[0]]),
                    ratio,
                    error,
                    loss,
                    members,
                    fast,
                )
            )
    return links
