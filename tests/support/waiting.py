"""Waiting for a condition, with a timeout that only a failing test reaches."""

import asyncio
import time
from collections.abc import Callable

PATIENCE_S = 60.0


def until(condition: Callable[[], object], what: str = "the condition did not come true") -> None:
    """Return once the condition holds; fail with `what` after the timeout."""
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, what
        time.sleep(0.01)


async def until_async(
    condition: Callable[[], object], what: str = "the condition did not come true"
) -> None:
    """Wait like `until` inside a running event loop."""
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, what
        await asyncio.sleep(0.01)
