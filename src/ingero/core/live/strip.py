"""The own times of the last steps of each rank, for the picture of ranks and steps."""

from collections.abc import Hashable, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ingero.core.robust import Column, Index, nan_median, sorted_order

STEPS: Final = 300
MAX_MEMBERS: Final = 8192  # 10 MB; ranks beyond that are not drawn
_FIRST: Final = 64
_LOW: Final = 0xFFFF  # the bits of a step number that are kept
_NEW: Final = 32  # of each member are looked at first where only new steps are asked for
_FAR: Final = 0x7FFF  # from one step to the next that is kept
_MOST_MS: Final = 65504.0  # that 16 bits hold


class StepStrip:
    """The last 300 own times of each member, by the row index that the engine gave to it.

    A step takes four bytes: the low bits of its number, from which the number of the last step
    gives the whole again, and milliseconds to a twentieth of a percent.
    """

    def __init__(self) -> None:
        self._low: NDArray[np.uint16] = np.zeros((0, STEPS), np.uint16)
        self._own_ms: NDArray[np.float16] = np.zeros((0, STEPS), np.float16)  # NaN is none
        self._last: NDArray[np.int64] = np.zeros(0, np.int64)  # number of the last step
        self._count: NDArray[np.int64] = np.zeros(0, np.int64)
        self._owners: dict[int, Hashable] = {}

    @property
    def size_bytes(self) -> int:
        """The memory of all rows."""
        arrays = (self._low, self._own_ms, self._last, self._count)
        return sum(array.nbytes for array in arrays)

    def add(
        self, member: Index, step: Index, own_s: Column, owners: Mapping[int, Hashable]
    ) -> None:
        """Add own times in the order in which they came; steps below 0 are numbered here.

        `owners` says whose an index is: what another owner had there is forgotten. So is what a
        member had before its steps began again.
        """
        drawn = np.flatnonzero(member < MAX_MEMBERS)
        if not len(drawn):
            return
        drawn = drawn[sorted_order(member[drawn])]
        counts = np.bincount(member[drawn])
        indexes = np.flatnonzero(counts)
        counts = counts[indexes]
        self._grow(int(indexes[-1]) + 1)
        self._adopt(indexes, owners)
        held = np.minimum(counts, STEPS)
        turn = np.arange(len(drawn)) - np.repeat(np.cumsum(counts) - held, counts)
        drawn, turn = drawn[turn >= 0], turn[turn >= 0]  # the last ones of each member
        row = member[drawn]
        turn += self._count[row]
        number = np.where(step[drawn] < 0, turn, step[drawn])
        ends = np.cumsum(held)
        self._begin_again(indexes, number[ends - held])
        self._last[indexes] = number[ends - 1]
        self._low[row, turn % STEPS] = number & _LOW
        self._own_ms[row, turn % STEPS] = np.minimum(1e3 * own_s[drawn], _MOST_MS)
        self._count[indexes] += held

    def _begin_again(self, indexes: Index, number: Index) -> None:
        """Forget the steps of members whose next one is far from the last: it is of another run."""
        last = self._last[indexes]
        is_other = (number < last - STEPS) | (number > last + _FAR)
        self._own_ms[indexes[is_other]] = np.nan

    def _adopt(self, indexes: Index, owners: Mapping[int, Hashable]) -> None:
        """Forget what another owner had at these indexes."""
        for index in indexes.tolist():
            if self._owners.get(index) != owners.get(index):
                self._owners[index] = owners.get(index)
                self._own_ms[index], self._count[index] = np.nan, 0

    def percentages(
        self, members: Index, after: int | None = None
    ) -> tuple[list[int], list[list[int | None]]]:
        """Return the numbers of the last steps, and per step the excess of each member in percent.

        The excess is over the median of the step. It is None where a member did not report it.
        With `after`, only later steps are returned.
        """
        column = np.flatnonzero(members < len(self._count))
        row = members[column]
        first = 0 if after is None else after + 1
        step, own_ms = self._newest_first(row, STEPS if after is None else _NEW)
        if after is not None and len(row) and step[:, -1].max() >= first:
            step, own_ms = self._newest_first(row, STEPS)
        which, turn = np.nonzero((step >= first) & ~np.isnan(own_ms))
        which, turn = which[::-1], turn[::-1]  # of a step that was sent twice, the last counts
        step = step[which, turn]
        numbers = np.unique(step)[-STEPS:]
        if not len(numbers):
            return [], []
        is_shown = step >= numbers[0]
        which, turn, step = which[is_shown], turn[is_shown], step[is_shown]
        own = np.full((len(numbers), len(members)), np.nan)
        own[np.searchsorted(numbers, step), column[which]] = own_ms[which, turn]
        excess = np.rint(100 * (own / nan_median(own, axis=1)[:, None] - 1))
        is_unknown = ~np.isfinite(excess)
        values: list[list[int | None]] = np.where(is_unknown, 0, excess).astype(np.int64).tolist()
        for place, member in np.argwhere(is_unknown).tolist():
            values[place][member] = None
        return numbers.tolist(), values

    def _newest_first(self, row: Index, most: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return numbers and own times of the last steps of some rows, the newest first."""
        slot = (self._count[row, None] - 1 - np.arange(most)) % STEPS
        low = self._low[row[:, None], slot]
        back = (low[:, :-1] - low[:, 1:]).view(np.int16).cumsum(1, np.int64)
        step = np.repeat(self._last[row, None], most, 1)
        step[:, 1:] -= back
        return step, self._own_ms[row[:, None], slot].astype(np.float32)

    def _grow(self, size: int) -> None:
        have = len(self._count)
        if size <= have:
            return
        more = min(max(size, 2 * have, _FIRST), MAX_MEMBERS) - have
        self._low = np.concatenate([self._low, np.zeros((more, STEPS), np.uint16)])
        empty = np.full((more, STEPS), np.nan, np.float16)
        self._own_ms = np.concatenate([self._own_ms, empty])
        self._last = np.concatenate([self._last, np.zeros(more, np.int64)])
        self._count = np.concatenate([self._count, np.zeros(more, np.int64)])
