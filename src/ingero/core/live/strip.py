"""The own times of the last steps of each rank, for the picture of ranks and steps."""

from collections.abc import Hashable, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ingero.core.robust import Column, Index, nan_median, sorted_order

STEPS: Final = 300
MAX_MEMBERS: Final = 4096  # 10 MB; ranks beyond that are not drawn
_FIRST: Final = 64


class StepStrip:
    """The last 300 own times of each member, by the row index that the engine gave to it."""

    def __init__(self) -> None:
        self._step: NDArray[np.int64] = np.full((0, STEPS), -1, np.int64)
        self._own_s: NDArray[np.float32] = np.full((0, STEPS), np.nan, np.float32)
        self._count: NDArray[np.int64] = np.zeros(0, np.int64)
        self._owners: dict[int, Hashable] = {}

    def add(
        self, member: Index, step: Index, own_s: Column, owners: Mapping[int, Hashable]
    ) -> None:
        """Add own times in the order in which they came; steps below 0 are numbered here.

        `owners` says whose an index is: what another owner had there is forgotten.
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
        number = step[drawn]
        self._step[row, turn % STEPS] = np.where(number < 0, turn, number)
        self._own_s[row, turn % STEPS] = own_s[drawn]
        self._count[indexes] += held

    def _adopt(self, indexes: Index, owners: Mapping[int, Hashable]) -> None:
        """Forget what another owner had at these indexes."""
        for index in indexes.tolist():
            if self._owners.get(index) != owners.get(index):
                self._owners[index] = owners.get(index)
                self._step[index], self._own_s[index], self._count[index] = -1, np.nan, 0

    def percentages(
        self, members: Index, after: int | None = None
    ) -> tuple[list[int], list[list[int | None]]]:
        """Return the numbers of the last steps, and per step the excess of each member in percent.

        The excess is over the median of the step. It is None where a member did not report it.
        With `after`, only later steps are returned.
        """
        held = members[members < len(self._count)]
        numbers = np.unique(self._step[held])
        numbers = numbers[numbers > (-1 if after is None else after)][-STEPS:]
        if not len(numbers):
            return [], []
        own = np.full((len(numbers), len(members)), np.nan)
        for column, index in enumerate(members.tolist()):
            if index >= len(self._count):
                continue
            place = np.searchsorted(numbers, self._step[index])
            place[place == len(numbers)] = 0
            is_shown = (numbers[place] == self._step[index]) & (self._step[index] >= 0)
            own[place[is_shown], column] = self._own_s[index, is_shown]
        excess = 100 * (own / nan_median(own, axis=1)[:, None] - 1)
        values = [
            [None if np.isnan(each) else round(each) for each in row] for row in excess.tolist()
        ]
        return numbers.tolist(), values

    def _grow(self, size: int) -> None:
        have = len(self._count)
        if size <= have:
            return
        more = min(max(size, 2 * have, _FIRST), MAX_MEMBERS) - have
        self._step = np.concatenate([self._step, np.full((more, STEPS), -1, np.int64)])
        self._own_s = np.concatenate([self._own_s, np.full((more, STEPS), np.nan, np.float32)])
        self._count = np.concatenate([self._count, np.zeros(more, np.int64)])
