"""The load generator itself, without a network."""

import asyncio
import contextlib

from tests.support.waiting import PATIENCE_S

from ingero.echo.stress import StressPlan, run_stress


async def test_ctrl_c_ends_every_producer_and_leaves_nothing_to_complain_about() -> None:
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    sending = asyncio.Event()

    async def send(body: bytes) -> int:
        sending.set()
        await asyncio.sleep(3600)
        return 0

    plan = StressPlan(node_ids=("a", "b"), events=4, chains=0, batch=1, rate=0, cluster="c")
    running = asyncio.create_task(run_stress(plan, send, lambda _: None))
    await asyncio.wait_for(sending.wait(), PATIENCE_S)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.wait_for(running, PATIENCE_S)
    assert running.cancelled()
    await asyncio.sleep(0)
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []
    del running
    assert complaints == []
