"""Delays at exchanges that own times do not show."""

import numpy as np

from ingero.core.collectives.columns import Floats, Ints

KEPT_S = 10.0  # how long the delay of a step is that of the steps after it


class HiddenDelays:
    """What members add at exchanges without their own time showing it.

    It is known of the steps that are sent whole, and used for those in between.
    """

    def __init__(self) -> None:
        self._delay_s = np.zeros(0)
        self._at_s = np.zeros(0)

    def follow(self, member: Ints, hidden_s: Floats, now_s: float) -> Floats:
        """Return the delay of each point: that of its own steps, or else the last one known."""
        missing = int(member.max(initial=-1)) + 1 - len(self._delay_s)
        if missing > 0:
            self._delay_s = np.concatenate((self._delay_s, np.zeros(missing)))
            self._at_s = np.concatenate((self._at_s, np.zeros(missing)))
        known = np.isfinite(hidden_s)
        last = np.where(now_s - self._at_s <= KEPT_S, self._delay_s, 0.0)[member]
        if known.any():
            size = len(self._delay_s)
            counts = np.bincount(member[known], minlength=size)
            sums = np.bincount(member[known], hidden_s[known], size)
            fresh = counts > 0
            self._delay_s[fresh] = sums[fresh] / counts[fresh]
            self._at_s[fresh] = now_s
            last = np.where(fresh[member], self._delay_s[member], last)
        return np.where(known, hidden_s, last)

    def forget(self, member: int) -> None:
        """Drop what is known about a member that is gone."""
        if member < len(self._delay_s):
            self._delay_s[member] = 0.0
