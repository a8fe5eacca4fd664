"""Own times that wait in Fleet until the advances of the same steps are known."""

import numpy as np

from ingero.contract.measurements.own_time_columns import POINT_WORDS
from ingero.core.collectives.columns import Floats, Ints
from ingero.core.collectives.live_arrivals import StepAdvances

HOLD_S = 3.0  # longer than collectives wait for their peers

Ready = tuple[Ints, Ints, Ints, Floats]  # member, step, count, and rows of own, idle and span


class OwnTimeQueue:
    """Points of one cluster in the order in which they came.

    A member's points stay in order: where one waits, so do those after it.
    """

    def __init__(self) -> None:
        # Members and points as octets, when they came, and whether their times are milliseconds.
        self._parts: list[tuple[bytes, bytes, float, bool]] = []
        self._keys = np.empty((3, 0), np.int64)
        self._values = np.empty((3, 0))
        self._arrived = np.empty(0)

    def add(self, member: Ints, step: Ints, count: Ints, values: Floats, now_s: float) -> None:
        """Add points; `values` has the rows own, idle and span in seconds."""
        points = np.zeros((len(member), POINT_WORDS), np.int64)
        points[:, 0], points[:, 1] = step, count
        points.view(np.float64)[:, 3:] = values.T
        self._parts.append((member.astype(np.int64).tobytes(), points.tobytes(), now_s, False))

    def add_encoded(self, member: bytes, points: bytes, now_s: float) -> None:
        """Add points as `OwnTimeColumns` holds them, each with the number of its member."""
        self._parts.append((member, points, now_s, True))

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
        member = np.frombuffer(b"".join([part[0] for part in parts]), np.int64)
        points = np.frombuffer(b"".join([part[1] for part in parts]), np.int64)
        points = points.reshape(-1, POINT_WORDS)
        keys = np.empty((3, len(member)), np.int64)
        keys[0], keys[1:] = member, points[:, :2].T
        values = points.view(np.float64)[:, 3:].T.copy()
        sizes = [len(part[0]) // member.itemsize for part in parts]
        in_ms = [part[3] for part in parts]
        if all(in_ms):
            values /= 1e3
        elif any(in_ms):
            np.divide(values, 1e3, out=values, where=np.repeat(in_ms, sizes))
        arrived = np.repeat([part[2] for part in parts], sizes)
        if len(self._arrived):
            keys = np.concatenate([self._keys, keys], axis=1)
            values = np.concatenate([self._values, values], axis=1)
            arrived = np.concatenate([self._arrived, arrived])
        self._keys, self._values, self._arrived = keys, values, arrived
