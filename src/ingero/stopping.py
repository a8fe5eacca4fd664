"""How services are told to stop, and pauses that end when they are."""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Collection

log = logging.getLogger(__name__)


def stop_on_signals() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


async def is_set_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait until the event is set, or for so many seconds; return whether it is set."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(seconds, 0.0)):
            await event.wait()
    return event.is_set()


async def end_tasks(tasks: Collection[asyncio.Task[None]]) -> None:
    """Cancel tasks and wait for them; one that failed is logged, because its service must end."""
    for task in tasks:
        task.cancel()
    for ended in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(ended, Exception):
            log.error("task_failed", exc_info=ended)
