"""Commands of this checkout as child processes that end with the test."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

BIN = Path(sys.executable).parent


@contextlib.asynccontextmanager
async def process(*command: str) -> AsyncIterator[asyncio.subprocess.Process]:
    started = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    try:
        yield started
    finally:
        if started.returncode is None:
            started.kill()
        await started.communicate()
