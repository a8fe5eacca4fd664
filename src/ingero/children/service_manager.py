"""The service manager (systemd): messages to it, and commands for it."""

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Final

from ingero.errors import Unavailable

SOCKET_VARIABLE: Final = "NOTIFY_SOCKET"
WATCHDOG_VARIABLE: Final = "WATCHDOG_USEC"
WATCHDOG_PID_VARIABLE: Final = "WATCHDOG_PID"
READY: Final = "READY=1"
RELOADING: Final = "RELOADING=1"
STOPPING: Final = "STOPPING=1"
_WATCHDOG: Final = "WATCHDOG=1"
_RUNNING: Final = Path("/run/systemd/system")
_COMMAND_TIMEOUT_S: Final = 120.0


def tell_manager(*lines: str) -> None:
    """Send these lines to the service manager; without one, nothing happens."""
    address = os.environ.get(SOCKET_VARIABLE)
    if not address:
        return
    if address.startswith("@"):  # an abstract name
        address = "\0" + address[1:]
    with (
        contextlib.suppress(OSError),  # a manager that has gone needs no message
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel,
    ):
        channel.connect(address)
        channel.send("\n".join(lines).encode())


async def feed_watchdog() -> None:
    """Tell a watching service manager at intervals that the event loop still runs."""
    interval_s = _watchdog_interval_s()
    while interval_s is not None:
        tell_manager(_WATCHDOG)
        await asyncio.sleep(interval_s)


def _watchdog_interval_s() -> float | None:
    """Return how often the manager wants a sign of life; None where it wants none.

    It is half of what the manager allows, as the manager recommends.
    """
    allowed_us, owner = (
        os.environ.get(name, "") for name in (WATCHDOG_VARIABLE, WATCHDOG_PID_VARIABLE)
    )
    if not allowed_us.isdigit() or int(allowed_us) <= 0:
        return None
    if owner and owner != str(os.getpid()):
        return None  # the manager watches another process
    return int(allowed_us) / 2e6


def has_systemd() -> bool:
    """Return whether systemd manages this machine."""
    return _RUNNING.is_dir() and shutil.which("systemctl") is not None


def run_systemctl(*arguments: str, may_fail: bool = False) -> None:
    """Run systemctl; raise Unavailable with what it said, unless it may fail."""
    command = ["systemctl", *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{' '.join(command)} failed: {error}") from None
    if done.returncode != 0 and not may_fail:
        said = done.stderr.strip() or done.stdout.strip()
        raise Unavailable(f"{' '.join(command)} failed: {said}")
