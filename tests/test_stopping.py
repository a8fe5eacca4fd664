"""Pauses that end when a service stops, also where they are cancelled as their event is set."""

import asyncio

import pytest
from tests.support.waiting import PATIENCE_S

from ingero.stopping import end_tasks, is_set_within


async def test_a_pause_ends_when_its_event_is_set_or_its_time_is_over() -> None:
    event = asyncio.Event()
    assert not await is_set_within(event, -1.0)
    assert not await is_set_within(event, 0.0)
    asyncio.get_running_loop().call_soon(event.set)
    assert await is_set_within(event, PATIENCE_S)
    assert await is_set_within(event, 0.0)


@pytest.mark.parametrize("steps", range(6))
async def test_a_loop_of_pauses_can_be_cancelled_just_after_its_event(steps: int) -> None:
    event = asyncio.Event()

    async def forever() -> None:
        while True:
            await is_set_within(event, 60.0)
            event.clear()

    task = asyncio.create_task(forever())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    event.set()
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task], timeout=PATIENCE_S)
    assert task.cancelled()


async def test_tasks_end_also_where_one_of_them_had_failed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail() -> None:
        raise RuntimeError("a defect")

    failed, running = asyncio.create_task(fail()), asyncio.create_task(asyncio.sleep(60.0))
    await asyncio.wait([failed])
    await end_tasks([failed, running])
    assert running.cancelled()
    assert "task_failed" in caplog.text and "a defect" in caplog.text
