"""The readers of the store are shared fairly between callers."""

import asyncio
from collections.abc import Callable

import pytest
from tests.support.waiting import until_async

from ingero.echo.store.api import TooManyQueries
from ingero.echo.store.turns import Turns


class Store:
    """Queries that run until they are ended by name, in the order in which they began."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}

    def query(self, name: str) -> Callable[[], "asyncio.Future[str]"]:
        async def run() -> str:
            self.began.append(name)
            await self._ends.setdefault(name, asyncio.Event()).wait()
            if name.endswith("!"):
                raise ValueError(name)
            return name

        return lambda: asyncio.ensure_future(run())

    def end(self, name: str) -> None:
        self._ends[name].set()


async def submitted(turns: Turns, store: Store, *names: str) -> list["asyncio.Task[str]"]:
    """Submit queries; the first letter of a name is its caller."""
    tasks = [asyncio.create_task(turns.run(name[0], store.query(name))) for name in names]
    for _ in range(3):
        await asyncio.sleep(0)
    return tasks


async def drain(store: Store, tasks: list["asyncio.Task[str]"]) -> None:
    while not all(task.done() for task in tasks):
        for name in store.began:
            store.end(name)
        await asyncio.sleep(0)


async def test_one_caller_leaves_half_of_the_readers_to_others() -> None:
    turns, store = Turns(readers=4), Store()
    tasks = await submitted(turns, store, "a1", "a2", "a3", "a4", "a5")
    assert (store.began, turns.running, turns.waiting) == (["a1", "a2"], 2, 3)
    tasks += await submitted(turns, store, "b1", "b2")
    assert store.began == ["a1", "a2", "b1"], "b begins at once; one reader is left for a third"
    tasks += await submitted(turns, store, "c1", "c2")
    assert store.began == ["a1", "a2", "b1", "c1"]
    await drain(store, tasks)
    assert (len(store.began), turns.running, turns.waiting) == (9, 0, 0)


async def test_queues_are_served_in_turn() -> None:
    turns, store = Turns(readers=1), Store()
    tasks = await submitted(turns, store, "a1", "a2", "a3", "a4", "b1", "b2", "c1")
    await drain(store, tasks)
    assert store.began == ["a1", "a2", "b1", "c1", "a3", "b2", "a4"]


async def test_queues_have_an_end_and_say_whose() -> None:
    turns, store = Turns(readers=2, waiting_each=2, waiting_all=3), Store()
    tasks = await submitted(turns, store, "a1", "a2", "a3", "a4", "b1", "b2", "c1", "c2")
    errors = [str(task.exception()) for task in tasks if task.done()]
    statuses = [task.exception().status for task in tasks if task.done()]  # type: ignore[union-attr] - all failed
    assert (store.began, statuses, turns.waiting) == (["a1", "b1"], [429, 503, 503], 3)
    assert errors[0] == "2 queries of this token are waiting; send it again in 5 s"
    assert turns.refused == {"caller": 1, "total": 2, "waited": 0}
    await drain(store, tasks)
    assert turns.running == 0


async def test_waiting_has_an_end() -> None:
    turns, store = Turns(readers=2, wait_s=0.01), Store()
    tasks = await submitted(turns, store, "a1", "a2")
    with pytest.raises(TooManyQueries, match="other queries take too long"):
        await tasks[1]
    assert (turns.waiting, turns.refused["waited"]) == (0, 1)
    await drain(store, tasks[:1])


async def test_who_gives_up_waiting_leaves_no_trace() -> None:
    turns, store = Turns(readers=2), Store()
    tasks = await submitted(turns, store, "a1", "a2", "a3")
    tasks[1].cancel()
    await asyncio.gather(tasks[1], return_exceptions=True)
    assert turns.waiting == 1
    store.end("a1")
    tasks[2].cancel()  # at the moment of its turn
    await asyncio.gather(*tasks, return_exceptions=True)
    await until_async(lambda: turns.running + turns.waiting == 0)


async def test_an_abandoned_query_keeps_its_reader_until_it_ends() -> None:
    """The store works on it, so that hanging up must not make room for more."""
    turns, store = Turns(readers=2), Store()
    first, second = await submitted(turns, store, "a1!", "a2")
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert (store.began, turns.running) == (["a1!"], 1)
    store.end("a1!")
    await until_async(lambda: "a2" in store.began)
    await drain(store, [second])
    assert turns.running == 0
