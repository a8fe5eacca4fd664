"""A service that runs as a child process and is started again whenever it ends."""

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ingero.children.aio import start_service, stop_child
from ingero.children.process import last_line
from ingero.errors import Unavailable
from ingero.files import copy_file

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
HEALTHY_S: Final = 60.0  # a child that ran this long is started again after the first pause
MAX_LOG_BYTES: Final = 64 << 20
LOG_CHECK_S: Final = 60.0
log = logging.getLogger(__name__)


@dataclass
class SupervisedService:
    """One service: the command that starts it, its log, and the process that runs now.

    The service prints one JSON line with its addresses once it listens.
    """

    name: str
    command: Callable[[], list[str]]
    log_file: Path
    addresses: dict[str, str] = field(default_factory=dict)
    restarts: int = 0
    _process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start the service and wait until it listens; Unavailable carries the end of its log."""
        process = self._process = await start_service(self.command(), self.log_file)
        assert process.stdout is not None
        line = await process.stdout.readline()
        if not line:
            reason = last_line(self.log_file, f"status {await process.wait()}")
            raise Unavailable(f"{self.name} did not start: {reason}; its log is {self.log_file}")
        self.addresses = json.loads(line)["addresses"]

    async def watch(self, first_pause_s: float = FIRST_PAUSE_S) -> None:
        """Start the service again whenever it ends, with growing pauses."""
        pause_s = first_pause_s
        loop = asyncio.get_running_loop()
        while True:
            assert self._process is not None
            began_s = loop.time()
            status = await self._process.wait()
            pause_s = first_pause_s if loop.time() - began_s > HEALTHY_S else pause_s
            self.restarts += 1
            log.warning(
                "child_ended", extra={"child": self.name, "status": status, "again_in_s": pause_s}
            )
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            try:
                await self.start()
                log.warning(
                    "child_started_again", extra={"child": self.name, "restarts": self.restarts}
                )
            except Unavailable as error:
                log.error("child_did_not_start", extra={"child": self.name, "why": str(error)})

    async def stop(self) -> None:
        """Stop the service; kill it when it does not end in time."""
        if self._process is not None:
            await stop_child(self._process)


async def bound_logs(files: Sequence[Path]) -> None:
    """Keep logs below their largest size, until cancelled."""
    while True:
        await asyncio.sleep(LOG_CHECK_S)
        for file in files:
            with contextlib.suppress(OSError):  # a full disk: the next check may find room
                bound_log(file, MAX_LOG_BYTES)


def bound_log(file: Path, most_bytes: int) -> None:
    """Copy a log that is too large to `.1` and empty it; its writer goes on appending."""
    if file.stat().st_size > most_bytes:
        copy_file(file, file.with_name(f"{file.name}.1"))
        os.truncate(file, 0)
