"""The faults themselves: each is injected, held for a moment and taken back."""

import asyncio
import errno
import os
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.soak.load import Producers
from tests.soak.plan import Fault, Kind
from tests.soak.services import Service
from tests.support.fault_proxy import FaultProxy

HOUR_NS = 3600 * 10**9
DOWN_S = 2.0  # how long a killed service stays away, and connections are refused after a cut
FULL_SHARE = 0.35  # of the time between two faults: how long the disk stays full
LONGEST_FULL_S = 20.0
PADDING = "x" * 20_000  # of each event of a flood
FLOOD_BYTES = 192 << 20  # more than the two segments that the journal has claimed in advance
ZEROS = bytes(1 << 20)


@contextmanager
def small_disk(folder: Path, size_mib: int) -> Iterator[bool]:
    """Mount a small tmpfs on `folder` and remove it at the end; yield whether that was possible."""
    folder.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_mib}m,mode=700", "ingero-soak", str(folder)]
    if os.geteuid() or subprocess.run(mount, check=False).returncode:
        yield False
        return
    try:
        yield True
    finally:
        subprocess.run(["umount", str(folder)], check=True)


class Clock:
    """The file that the preloaded wall clock of every service reads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(bytes(8))

    def set_hours(self, hours: float) -> None:
        """Let every service read a wall clock that is so much ahead of the real one."""
        with self.path.open("r+b") as file:
            file.write(struct.pack("<q", int(hours * HOUR_NS)))


@dataclass
class Faults:
    """Injects one fault at a time; `disk` is None where no small disk could be mounted."""

    services: dict[str, Service]
    proxies: list[FaultProxy]
    clock: Clock
    disk: Path | None
    producers: Producers
    gap_s: float

    async def inject(self, fault: Fault) -> str:
        """Inject a fault, take it back and return what was done."""
        if fault.kind is Kind.KILL:
            return await self._kill(fault.target)
        if fault.kind is Kind.CUT:
            return await self._cut()
        if fault.kind is Kind.FILL:
            return await self._fill()
        self.clock.set_hours(float(fault.target))
        return f"clocks of all services are {fault.target} h ahead"

    async def _kill(self, name: str) -> str:
        service = self.services.get(name)
        if service is None:
            return f"{name} does not run here"
        await asyncio.to_thread(service.kill)
        await asyncio.sleep(DOWN_S)
        await asyncio.to_thread(service.start)
        return f"killed {name} and started it again"

    async def _cut(self) -> str:
        open_now = sum(len(proxy._tasks) for proxy in self.proxies)
        for proxy in self.proxies:
            proxy.refusing = True
            proxy.cut()
        await asyncio.sleep(DOWN_S)
        for proxy in self.proxies:
            proxy.refusing = False
        return f"cut {open_now} connections"

    async def _fill(self) -> str:
        if self.disk is None:
            return "no small disk: mounting a tmpfs needs root"
        before, filled = self.producers.refusals, 0
        ballast = self.disk / "ballast"
        end_s = time.monotonic() + min(LONGEST_FULL_S, FULL_SHARE * self.gap_s)
        try:
            filled = await asyncio.to_thread(_write_until_full, ballast)
            await self.producers.flood(PADDING, FLOOD_BYTES)
            await asyncio.sleep(max(0.0, end_s - time.monotonic()))
        finally:
            ballast.unlink(missing_ok=True)
        refused = self.producers.refusals - before
        return f"filled the last {filled >> 20} MiB of Echo's disk; {refused} requests refused"


def _write_until_full(path: Path) -> int:
    written = 0
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                written += file.write(ZEROS)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
    return written
