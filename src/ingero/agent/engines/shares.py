"""Limits how much watching one user of the node may cause, so that nobody slows down others.

Any user can start processes that look like engines and answer slowly, with long pages, or never.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Final

READERS: Final = 4  # pages of one user that are read at the same time
CPU_SHARE: Final = 0.1  # of one CPU, to read the pages of one user
LONGEST_PAUSE_S: Final = 60.0


class Shares:
    """The places that each user has; ended users are forgotten."""

    def __init__(self) -> None:
        self._places: dict[int, asyncio.Semaphore] = {}

    def place_of(self, user: int) -> asyncio.Semaphore:
        """Return the lock to hold while a page of this user is read."""
        return self._places.setdefault(user, asyncio.Semaphore(READERS))

    def forget_others(self, users: Iterable[int]) -> None:
        """Drop the shares of all users but these."""
        kept = set(users)
        self._places = {user: place for user, place in self._places.items() if user in kept}


def pause_s(took_s: float, cpu_s: float, engines: int) -> float:
    """Return how long an engine is left alone after a page, where its user has so many engines.

    All engines of one user together take at most the readers and the CPU of that user. A usual
    page takes milliseconds, so that the pause is shorter than a round.
    """
    return min(max(took_s * engines / READERS, cpu_s * engines / CPU_SHARE), LONGEST_PAUSE_S)


def crowd(users: Iterable[int], newcomer: int) -> int | None:
    """Return a user who must give up an engine for a newcomer with fewer; None if there is none."""
    count = Counter(users)
    user, most = max(count.items(), key=lambda each: each[1], default=(newcomer, 0))
    return user if most > count[newcomer] + 1 else None
