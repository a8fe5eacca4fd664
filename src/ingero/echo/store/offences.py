"""Finds out who ended the store process, and delays their next statement.

A statement can use up the memory of the store process or run on beyond its time. The process is
then replaced within seconds, but meanwhile nobody is answered. Without a pause, one caller could
repeat such a statement and keep everybody else out.
"""

import math
import time
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Final

from ingero.echo.store.api import EndedStore, QueryResult, StoreCrashed, TooManyQueries

FIRST_PAUSE_S: Final = 5.0
LONGEST_PAUSE_S: Final = 300.0
FORGOTTEN_AFTER_S: Final = 900.0
LONG_S: Final = 1.0  # whoever runs longer may hold the memory that a small statement then lacks


@dataclass(frozen=True, slots=True, eq=False)
class _Statement:
    caller: Hashable
    began_s: float


@dataclass(frozen=True, slots=True)
class _Offences:
    count: int
    last_s: float

    @property
    def over_s(self) -> float:
        return self.last_s + min(FIRST_PAUSE_S * 2.0 ** min(self.count - 1, 16), LONGEST_PAUSE_S)


class Offences:
    """Runs user SQL of callers who are not paused; all methods run in the event loop."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._running: set[_Statement] = set()
        self._known: dict[Hashable, _Offences] = {}
        self._spared: set[Hashable] = set()  # bounded by the tokens that there are
        self._judged = 0  # the number of the last crash that was judged
        self.refused = 0

    async def run(self, caller: Hashable, ask: Callable[[], Awaitable[QueryResult]]) -> QueryResult:
        """Ask, and note the callers at fault if that ends the store.

        Raises TooManyQueries while the caller is paused.
        """
        now_s = self._now_s()
        self._known = {
            who: known
            for who, known in self._known.items()
            if now_s - known.last_s < FORGOTTEN_AFTER_S
        }
        if caller in self._known and (left_s := self._known[caller].over_s - now_s) > 0:
            self.refused += 1
            raise TooManyQueries(
                "a statement with this token ended the store process, so the next one must wait; "
                "aggregate or narrow it",
                max(1, math.ceil(left_s)),
                429,
            )
        statement = _Statement(caller, now_s)
        self._running.add(statement)
        try:
            found = await ask()
            if found.ended_store:
                self._judge({caller})
        except EndedStore:
            self._judge({caller})
            raise
        except StoreCrashed as error:
            if error.generation != self._judged:  # everybody under way receives this error
                self._judged = error.generation
                self._judge({running.caller for running in self._running})
            raise
        finally:
            self._running.discard(statement)
        return found

    def _judge(self, suspects: set[Hashable]) -> None:
        """Note those who ran long when the store ended, or the suspects if nobody did.

        A suspect is spared once: whoever ends the store beside a long statement of somebody else
        again is noted, too.
        """
        now_s = self._now_s()
        long = {one.caller for one in self._running if now_s - one.began_s > LONG_S}
        blamed = long | (suspects & self._spared) or suspects
        self._spared |= suspects - blamed
        for caller in blamed:
            before = self._known[caller].count if caller in self._known else 0
            self._known[caller] = _Offences(before + 1, now_s)
