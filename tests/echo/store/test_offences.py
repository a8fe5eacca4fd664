"""Whoever ends the store process waits before the next statement, and nobody else does."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ingero.echo.store.api import EndedStore, QueryResult, StoreCrashed, TooManyQueries
from ingero.echo.store.offences import Offences


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


async def sound() -> QueryResult:
    return QueryResult(columns=[], types=[], rows=[], truncated=False, elapsed_ms=0.0)


async def swollen() -> QueryResult:
    return QueryResult(
        columns=[], types=[], rows=[], truncated=False, elapsed_ms=0.0, ended_store=True
    )


async def fatal() -> QueryResult:
    raise EndedStore("out_of_memory", "too large")


def crash(generation: int) -> Callable[[], Awaitable[QueryResult]]:
    async def crashed() -> QueryResult:
        raise StoreCrashed("status -11", generation)

    return crashed


def after(
    event: asyncio.Event, ask: Callable[[], Awaitable[QueryResult]]
) -> Callable[[], Awaitable[QueryResult]]:
    async def waited() -> QueryResult:
        await event.wait()
        return await ask()

    return waited


async def pause_s(offences: Offences, caller: str) -> int:
    """Return how long the caller must wait, 0 if it need not."""
    try:
        await offences.run(caller, sound)
    except TooManyQueries as error:
        assert error.status == 429
        return error.retry_after_s
    return 0


async def test_the_pause_doubles_up_to_five_minutes_and_is_forgotten() -> None:
    clock = Clock()
    offences = Offences(clock)
    pauses = []
    for _ in range(9):
        with pytest.raises(EndedStore):
            await offences.run("a", fatal)
        pauses.append(await pause_s(offences, "a"))
        clock.now_s += pauses[-1]
    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300, 300]
    assert await pause_s(offences, "a") == 0
    clock.now_s += 900
    with pytest.raises(EndedStore):
        await offences.run("a", fatal)
    assert (await pause_s(offences, "a"), await pause_s(offences, "b")) == (5, 0)
    assert offences.refused == 10


async def test_a_statement_that_succeeds_with_all_the_memory_counts_too() -> None:
    offences = Offences(Clock())
    assert (await offences.run("a", swollen)).ended_store
    assert await pause_s(offences, "a") == 5


async def test_who_holds_the_memory_waits_and_not_who_lacks_it() -> None:
    clock, event = Clock(), asyncio.Event()
    offences = Offences(clock)
    hog = asyncio.create_task(offences.run("hog", after(event, sound)))
    await asyncio.sleep(0)
    clock.now_s = 2.0
    with pytest.raises(EndedStore):
        await offences.run("small", fatal)
    event.set()
    await hog
    assert (await pause_s(offences, "hog"), await pause_s(offences, "small")) == (5, 0)


async def test_nobody_hides_behind_a_long_statement_of_somebody_else_twice() -> None:
    clock, event = Clock(), asyncio.Event()
    offences = Offences(clock)
    honest = asyncio.create_task(offences.run("honest", after(event, sound)))
    await asyncio.sleep(0)
    clock.now_s = 2.0
    for _ in range(2):
        with pytest.raises(EndedStore):
            await offences.run("attacker", fatal)
    event.set()
    await honest
    assert await pause_s(offences, "attacker") == 5


async def test_after_a_crash_everybody_under_way_waits_once() -> None:
    event = asyncio.Event()
    offences = Offences(Clock())
    tasks = [
        asyncio.create_task(offences.run(caller, after(event, crash(generation=3))))
        for caller in "aab"
    ]
    await asyncio.sleep(0)
    event.set()
    assert {type(error) for error in await asyncio.gather(*tasks, return_exceptions=True)} == {
        StoreCrashed
    }
    assert [await pause_s(offences, caller) for caller in "abc"] == [5, 5, 0]
