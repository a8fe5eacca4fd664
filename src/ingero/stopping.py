"""How services are told to stop, and pauses that end when they are."""

import asyncio
import contextlib
import signal


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
