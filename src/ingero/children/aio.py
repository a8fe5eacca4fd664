"""Child processes of an asyncio program: how they are started and stopped."""

import asyncio
import contextlib
from asyncio.subprocess import Process
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ingero.children.capabilities import keep_capabilities
from ingero.children.copies import Copy
from ingero.children.lifetime import follow_parent
from ingero.children.process import STOP_TIMEOUT_S
from ingero.files import open_own

MAX_LINE_BYTES: Final = 64 * 1024


async def start_service(command: list[str], log_file: Path) -> Process:
    """Start a child that ends with this process; the caller reads its output, a log its errors."""
    with open_own(log_file, append=True) as errors:
        return await asyncio.create_subprocess_exec(
            *command,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            limit=MAX_LINE_BYTES,
            preexec_fn=follow_parent,
        )


async def start_worker(command: list[str], pass_fds: Sequence[int]) -> Process:
    """Start a child that communicates through inherited file descriptors."""
    return await asyncio.create_subprocess_exec(*command, pass_fds=pass_fds)


async def stop_child(process: Process | Copy) -> None:
    """Send SIGTERM, wait, and kill a child that has not ended after the timeout."""
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):  # it has just ended
        process.terminate()
    await wait_or_kill(process, STOP_TIMEOUT_S)


async def wait_or_kill(process: Process | Copy, timeout_s: float) -> None:
    """Wait until a child has ended; kill it after the timeout."""
    try:
        async with asyncio.timeout(timeout_s):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


async def start_helper(command: list[str]) -> Process:
    """Start a child that ends with this process and has no capabilities.

    Its output and errors go where those of this process go.
    """

    def prepare() -> None:
        follow_parent()
        keep_capabilities(())

    return await asyncio.create_subprocess_exec(*command, preexec_fn=prepare)
