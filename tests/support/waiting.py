"""Waiting for a condition, with a bound that a crowded machine does not reach; only a failing test waits that long."""

import asyncio
import time
from collections.abc import Callable

PATIENCE_S = 60.0


def until(condition: Callable[[], object], what: str = "the condition did not come true") -> None:
    """Return once it holds; AssertionError with `what` when it never does."""
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, what
        time.sleep(0.01)


async def until_async(
    condition: Callable[[], object], what: str = "the condition did not come true"
) -> None:
    """The same beside a running loop."""
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, what
        await asyncio.sleep(0.01)
