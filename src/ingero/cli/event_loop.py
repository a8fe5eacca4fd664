"""The event loop of services and fan-outs."""

import asyncio


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop: uvloop's where the extra `fast` is installed, else Python's own."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
