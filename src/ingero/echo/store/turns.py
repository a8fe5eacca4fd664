"""Whose query runs next: the readers of the store process are shared fairly between callers."""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, TypeVar

from ingero.echo.store.api import QueryResult, TooManyQueries
from ingero.echo.store.offences import Offences

READERS: Final = 8
WAITING_EACH: Final = 32
WAITING_ALL: Final = 256
WAIT_S: Final = 30.0
RETRY_S: Final = 5

Result = TypeVar("Result")


class Turns:
    """Lets callers in one after the other; all methods run in the event loop.

    Each caller has a queue, and the queues are served in turn. A caller may have as many queries
    under way as leave the same number for each other caller and for one more: half of the readers
    while it is alone. So somebody who has nothing under way seldom waits, whatever the others ask.
    """

    def __init__(
        self,
        readers: int = READERS,
        waiting_each: int = WAITING_EACH,
        waiting_all: int = WAITING_ALL,
        wait_s: float = WAIT_S,
    ) -> None:
        self._readers = readers
        self._waiting_each = waiting_each
        self._waiting_all = waiting_all
        self._wait_s = wait_s
        self._running: Counter[Hashable] = Counter()
        self._queues: OrderedDict[Hashable, deque[asyncio.Future[None]]] = OrderedDict()
        self.refused = Counter({"caller": 0, "total": 0, "waited": 0})
        self.offences = Offences()

    @property
    def running(self) -> int:
        """The number of queries under way."""
        return self._running.total()

    @property
    def waiting(self) -> int:
        """The number of queries in all queues."""
        return sum(len(queue) for queue in self._queues.values())

    async def run(self, caller: Hashable, ask: Callable[[], Awaitable[Result]]) -> Result:
        """Wait for the caller's turn, then ask; raise TooManyQueries if that takes too long.

        A query that nobody waits for any more keeps its place until the store has ended it.
        """
        await self._enter(caller)
        task = asyncio.ensure_future(ask())
        task.add_done_callback(lambda done: self._leave(caller, done))
        return await asyncio.shield(task)

    async def run_user_sql(
        self, caller: Hashable, ask: Callable[[], Awaitable[QueryResult]]
    ) -> QueryResult:
        """Like `run`, for a statement that may end the store process."""
        return await self.run(caller, lambda: self.offences.run(caller, ask))

    async def _enter(self, caller: Hashable) -> None:
        if caller not in self._queues and self._may_run(caller):
            self._running[caller] += 1
            return
        own = len(self._queues.get(caller, ()))
        if own >= self._waiting_each:
            raise self._refusal("caller", f"{own} queries of this token are waiting", 429)
        if self.waiting >= self._waiting_all:
            raise self._refusal("total", "too many queries are waiting", 503)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(caller, deque()).append(turn)
        try:
            async with asyncio.timeout(self._wait_s):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():  # its turn came while it gave up
                self._leave(caller)
            else:
                self._forget(caller, turn)
            if isinstance(error, TimeoutError):
                raise self._refusal("waited", "other queries take too long", 503) from None
            raise

    def _may_run(self, caller: Hashable) -> bool:
        active = len({*self._running, *self._queues, caller})
        share = max(1, self._readers // (active + 1))
        return self.running < self._readers and self._running[caller] < share

    def _leave(self, caller: Hashable, done: asyncio.Future[Result] | None = None) -> None:
        if done is not None and not done.cancelled():
            done.exception()  # read here, because the caller may have gone
        self._running[caller] -= 1
        self._running += Counter()  # drops callers with nothing under way
        while (following := next(filter(self._may_run, self._queues), None)) is not None:
            turn = self._queues[following].popleft()
            self._queues.move_to_end(following)
            self._forget_empty(following)
            if not turn.done():  # else its caller has just given up
                self._running[following] += 1
                turn.set_result(None)

    def _forget(self, caller: Hashable, turn: asyncio.Future[None]) -> None:
        if turn in self._queues.get(caller, ()):
            self._queues[caller].remove(turn)
            self._forget_empty(caller)

    def _forget_empty(self, caller: Hashable) -> None:
        if not self._queues[caller]:
            del self._queues[caller]

    def _refusal(self, reason: str, text: str, status: int) -> TooManyQueries:
        self.refused[reason] += 1
        return TooManyQueries(text, RETRY_S, status)
