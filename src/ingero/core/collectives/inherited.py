"""What ranks waited for in one communicator before they come late to another one.

Where ranks share their work in groups, and the groups meet in other communicators, all members of a
group come late to these with the one that is slow. They waited for it: without that wait they would
have come earlier, and what is left of their lateness is their own.

A wait counts for all collectives of the same step, unless all members of such a collective took
part in it: these left it together. Also those before it count. Steps are cut at an anchor, which
may be anywhere in what the job calls a step, and what is slow for longer repeats in every one.
"""

from dataclasses import dataclass, fields
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ingero.core.collectives.columns import Floats, Ints

# Nodes report at different times, and the groups of one node are complete first.
KEPT_S: Final = 3.0
MAX_KEPT: Final = 1 << 18
MAX_COMMS: Final = 16  # of one rank; what it waits for in further ones is not followed


@dataclass(frozen=True, slots=True)
class _Waits:
    """Columns of equal length: of a member in a step, in a communicator."""

    key: Ints
    member: Ints
    comm: NDArray[np.uint64]
    wait_s: Floats
    at_s: Floats

    def take(self, rows: NDArray[np.bool_] | slice) -> "_Waits":
        return _Waits(*(getattr(self, each.name)[rows] for each in fields(self)))


def _join(first: _Waits, second: _Waits) -> _Waits:
    names = [each.name for each in fields(_Waits)]
    return _Waits(*(np.concatenate((getattr(first, n), getattr(second, n))) for n in names))


class StepWaits:
    """The waits of one cluster at collectives of steps that may still be under way."""

    def __init__(self) -> None:
        self._kept: _Waits | None = None
        # Of each member, the communicator seen last, and whether there are others.
        self._comm = np.zeros(0, np.uint64)
        self._has_more = np.zeros(0, bool)

    def take(
        self,
        key: Ints,
        member: Ints,
        comm: NDArray[np.uint64],
        wait_s: Floats,
        now_s: float,
    ) -> Floats:
        """Add waits; return for each row what its member waited for in other groups."""
        result = np.zeros(len(key))
        chosen = self._find_mixed(member, comm)
        kept, self._kept = self._kept, None
        if not chosen.any():
            return result
        times = np.full(len(key), now_s)
        joined = _Waits(key, member, comm, wait_s, times).take(chosen)
        if kept is not None:
            joined = _join(kept.take(kept.at_s >= now_s - KEPT_S), joined)
        self._kept = joined.take(slice(-MAX_KEPT, None))
        comms = np.unique(joined.comm, return_inverse=True)[1].reshape(-1).astype(np.int64)
        groups = _Groups(joined.member, comms)
        if 2 <= groups.most <= MAX_COMMS:
            before = len(joined.key) - int(chosen.sum())
            result[chosen] = _inherited(joined, comms, groups)[before:]
        return result

    def _find_mixed(self, member: Ints, comm: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Tell which rows are of communicators of which members have others, too."""
        missing = int(member.max(initial=-1)) + 1 - len(self._comm)
        if missing > 0:
            self._comm = np.concatenate((self._comm, np.zeros(missing, np.uint64)))
            self._has_more = np.concatenate((self._has_more, np.zeros(missing, bool)))
        before = self._comm[member]
        self._comm[member] = comm
        is_other = (comm != self._comm[member]) | ((before != comm) & (before != 0))
        self._has_more[member[is_other]] = True
        found: NDArray[np.bool_] = self._has_more[member]
        return found | np.isin(comm, np.unique(comm[found])) if found.any() else found


class _Groups:
    """Which communicators each member has; `of[n]` is the n-th one of each member, or -1."""

    def __init__(self, member: Ints, comm: Ints) -> None:
        self._comms = int(comm.max(initial=-1)) + 1
        pairs = np.unique(member * self._comms + comm)
        owner, group = pairs // max(self._comms, 1), pairs % max(self._comms, 1)
        first = np.concatenate(([True], owner[1:] != owner[:-1]))[: len(owner)]
        begin = np.maximum.accumulate(np.where(first, np.arange(len(owner)), 0))
        nth = np.arange(len(owner)) - begin
        self.most = int(nth.max(initial=-1)) + 1
        self.of = np.full((self.most, int(member.max(initial=-1)) + 1), -1)
        self.of[nth, owner] = group
        self._holding = self._find_holding(np.bincount(group, minlength=self._comms))

    def _find_holding(self, sizes: NDArray[np.intp]) -> Ints:
        """Return codes of pairs of which the second communicator has all members of the first."""
        if self.most < 2 or self.most > MAX_COMMS:
            return np.empty(0, np.int64)
        one, two = self.of[:, None, :], self.of[None, :, :]
        codes, counts = np.unique(
            (one * self._comms + two)[(one >= 0) & (two >= 0)], return_counts=True
        )
        return np.asarray(codes[counts == sizes[codes // self._comms]], np.int64)

    def holds(self, comm: Ints, other: Ints) -> NDArray[np.bool_]:
        """Tell where all members of the first communicator are in the other one, too."""
        return np.isin(comm * self._comms + other, self._holding) | (other < 0)


def _inherited(waits: _Waits, comm: Ints, groups: _Groups) -> Floats:
    step = np.unique(waits.key, return_inverse=True)[1].reshape(-1)
    total = np.zeros(len(step))
    for other in groups.of:
        theirs = other[waits.member]
        of_step = np.bincount(step, np.where(comm == theirs, waits.wait_s, 0.0))
        total += np.where(groups.holds(comm, theirs), 0.0, of_step[step])
    return total
