"""Shares of the agent that a user of the machine may use: CPU time, records, bytes, lines."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

EVERYBODY: Final = -1  # a share of its own, which all users draw from
_MAX_USERS: Final = 4096


class UserBudget:
    """An amount per second for each user, and one for all of them together.

    Unused amounts are saved up to `burst`. A user may overdraw once, because a cost is only known
    after it was paid, and then waits until the debt is paid off. `refusals` counts the waits.
    """

    def __init__(self, per_s: float, burst: float, users: int = 4) -> None:
        """Give each user `per_s`, and all users together what `users` of them have."""
        self.refusals = 0
        self._per_s, self._burst, self._users = per_s, burst, users
        self._left: dict[int, tuple[float, float]] = {}  # amount, and when it was that

    def allows(self, uid: int, now_s: float) -> bool:
        """Return whether a user may spend now; a refusal is counted."""
        allowed = self._amount(uid, now_s) > 0 and self._amount(EVERYBODY, now_s) > 0
        self.refusals += not allowed
        return allowed

    def spend(self, uid: int, amount: float, now_s: float) -> None:
        """Subtract what a user has cost."""
        if len(self._left) >= _MAX_USERS and uid not in self._left:
            self._forget(now_s)
        for who in (uid, EVERYBODY):
            self._left[who] = (self._amount(who, now_s) - amount, now_s)

    @contextmanager
    def cpu_of(self, uid: int) -> Iterator[None]:
        """Charge a user for the CPU seconds that this thread spends inside."""
        before_s = time.thread_time()
        try:
            yield
        finally:
            self.spend(uid, time.thread_time() - before_s, time.monotonic())

    def _amount(self, uid: int, now_s: float) -> float:
        share = self._users if uid == EVERYBODY else 1
        amount, at_s = self._left.get(uid, (share * self._burst, now_s))
        saved = amount + max(now_s - at_s, 0.0) * share * self._per_s
        return min(saved, share * self._burst)

    def _forget(self, now_s: float) -> None:
        """Drop the users that have their full amount again, then the oldest ones."""
        owing = {
            uid: left for uid, left in self._left.items() if self._amount(uid, now_s) < self._burst
        }
        self._left = dict(sorted(owing.items(), key=lambda item: item[1][1])[-_MAX_USERS // 2 :])
