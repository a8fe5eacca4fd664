"""One part of the agent as its supervisor sees it: a child process that is started again."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from ingero.agent.service.health import PartHealth
from ingero.agent.service.link import Beat, decode_beat
from ingero.agent.service.plan import Order, PlannedPart
from ingero.children.aio import stop_child
from ingero.children.copies import Copy, start_copy
from ingero.children.supervisor import FIRST_PAUSE_S, HEALTHY_S, LONGEST_PAUSE_S

HUNG_AFTER_S: Final = 60.0  # without a sign of life; parts give one every five seconds
MAX_LINE_BYTES: Final = 4 << 20
RunPart = Callable[[Order, int], int]  # by order and link; returns its exit status
log = logging.getLogger(__name__)


class SupervisorLink:
    """The supervisor's end; `theirs` is the end that a new part inherits."""

    def __init__(
        self, theirs: socket.socket, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.theirs, self._reader = theirs, reader
        self._writer = writer  # the connection is closed as soon as nobody holds it

    async def read(self) -> bytes:
        """Return the next line; empty when the part has ended."""
        return await self._reader.readline()

    def close(self) -> None:
        """Close this end."""
        self._writer.close()


async def open_link() -> SupervisorLink:
    """Return a new connection to a part."""
    ours, theirs = socket.socketpair()
    return SupervisorLink(theirs, *await asyncio.open_connection(sock=ours, limit=MAX_LINE_BYTES))


@dataclass
class Part:
    """Runs one part until stopped."""

    plan: PlannedPart
    order: Order
    run_part: RunPart
    first_pause_s: float = FIRST_PAUSE_S
    hung_after_s: float = HUNG_AFTER_S
    restarts: int = 0
    state: str = "off"
    why: str = ""
    beat: Beat = field(default_factory=Beat)
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    _process: Copy | None = None

    def __post_init__(self) -> None:
        self.why = self.plan.off
        if self.plan.off:
            self.settled.set()

    async def run(self, after: asyncio.Event | None = None) -> None:
        """Start the part, and start it again whenever it ends, until cancelled.

        The first start waits for `after`.
        """
        if self.plan.off:
            return
        if after is not None:
            self.state, self.why = "waiting", "for another part to start"
            await after.wait()
            self.why = ""
        loop, pause_s = asyncio.get_running_loop(), self.first_pause_s
        try:
            while True:
                began_s = loop.time()
                ended = await self._run_once()
                if loop.time() - began_s > HEALTHY_S:
                    pause_s = self.first_pause_s
                self.state, self.why = "waiting", ended
                self.restarts += 1
                self.settled.set()
                log.warning(
                    "part_ended",
                    extra={"part": self.plan.name, "why": ended, "again_in_s": pause_s},
                )
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        finally:
            if self._process is not None:
                await stop_child(self._process)
            self.state = "stopped"

    async def _run_once(self) -> str:
        """Run the part until it ends, and return how it ended."""
        link = await open_link()
        theirs = link.theirs
        self.state, self.beat = "starting", Beat()
        try:
            run = partial(self.run_part, self.order, theirs.fileno())
            kept = (theirs.fileno(),)
            self._process = start_copy(run, self.plan.name, kept, self.plan.capabilities)
        except OSError as error:
            return f"it cannot be started: {error}"
        finally:
            theirs.close()
        try:
            hung = await self._follow(link)
        finally:
            link.close()
        if hung:
            log.error("part_hangs", extra={"part": self.plan.name, "after_s": self.hung_after_s})
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        status = await self._process.wait()
        return "it gave no sign of life" if hung else describe_status(status)

    async def _follow(self, link: SupervisorLink) -> bool:
        """Take what the part reports until it ends; return whether it hangs."""
        while True:
            try:
                async with asyncio.timeout(self.hung_after_s):
                    line = await link.read()
            except TimeoutError:
                return True
            except ValueError:  # a line longer than the limit
                continue
            if not line:
                return False
            found = decode_beat(line)
            if found is None:
                continue
            for note in found.notes:
                if note not in self.beat.notes:
                    log.info("part_note", extra={"part": self.plan.name, "note": note})
            self.beat = found
            if self.state != "running":
                self.state = "running"
                log.info("part_started", extra={"part": self.plan.name, "pid": self.pid})
                self.settled.set()

    @property
    def pid(self) -> int | None:
        """The process that runs now."""
        running = self._process is not None and self._process.returncode is None
        return self._process.pid if running and self._process is not None else None

    def reload(self) -> None:
        """Make the part read its limits again."""
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGHUP)

    def health(self) -> PartHealth:
        """Return what `/healthz` says about this part."""
        return PartHealth(
            self.plan.name,
            self.state,
            self.restarts,
            self.pid,
            self.why,
            self.beat.notes,
            self.beat.addresses,
        )


def describe_status(status: int) -> str:
    """Return how a process ended, in words."""
    if status >= 0:
        return f"it ended with status {status}"
    try:
        return f"it was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"it was ended by signal {-status}"
