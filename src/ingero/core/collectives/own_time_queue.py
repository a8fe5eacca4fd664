"""Own times that wait in Fleet until the advances of the same steps are known."""

import numpy as np

from ingero.core.collectives.columns import Floats, Ints
from ingero.core.collectives.live_arrivals import StepAdvances

HOLD_S = 3.0  # longer than collectives wait for their peers

Ready = tuple[Ints, Ints, Ints, Floats]  # member, step, count, and rows of own, idle and span


class OwnTimeQueue:
    """Points of one cluster in the order in which they came.

    A member's points stay in order: where one waits, so do those after it.
    """

    def __init__(self) -> None:
        self._parts: list[tuple[Ints, Ints, Ints, Floats, float]] = []
        self._keys = np.empty((3, 0), np.int64)
        self._values = np.empty((3, 0))
        self._arrived = np.empty(0)

    def add(self, member: Ints, step: Ints, count: Ints, values: Floats, now_s: float) -> None:
        """Add points; `values` has the rows own, idle and span in seconds."""
        self._parts.append((member, step, count, values, now_s))

    def take_ready(self, advances: StepAdvances, now_s: float) -> Ready | None:
        """Return the points of which nothing more is awaited, or which have waited long enough."""
        self._gather()
        if not len(self._arrived):
            return None
        member, step, count = self._keys
        waits = advances.is_pending(member, step, count) & (now_s - self._arrived < HOLD_S)
        if waits.any():
            first = np.full(int(member.max()) + 1, len(member))
            np.minimum.at(first, member[waits], np.flatnonzero(waits))
            waits = np.arange(len(member)) >= first[member]
        else:
            keys, values = self._keys, self._values
            self._keys, self._values, self._arrived = keys[:, :0], values[:, :0], np.empty(0)
            return keys[0], keys[1], keys[2], values
        ready, values = self._keys[:, ~waits], self._values[:, ~waits]
        self._keys, self._values = self._keys[:, waits], self._values[:, waits]
        self._arrived = self._arrived[waits]
        return (ready[0], ready[1], ready[2], values) if ready.shape[1] else None

    def forget(self, member: int) -> None:
        """Drop the points of a member whose number is given to another one."""
        self._gather()
        kept = self._keys[0] != member
        self._keys, self._values = self._keys[:, kept], self._values[:, kept]
        self._arrived = self._arrived[kept]

    def _gather(self) -> None:
        if not self._parts:
            return
        parts, self._parts = self._parts, []
        self._keys = np.array(
            [np.concatenate([self._keys[row], *(part[row] for part in parts)]) for row in range(3)],
            np.int64,
        )
        self._values = np.concatenate([self._values, *(part[3] for part in parts)], axis=1)
        arrived = np.repeat([part[4] for part in parts], [len(part[0]) for part in parts])
        self._arrived = np.concatenate([self._arrived, arrived])
