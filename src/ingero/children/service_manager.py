"""Messages to the service manager that started this process (systemd, `Type=notify`)."""

import contextlib
import os
import socket
from typing import Final

SOCKET_VARIABLE: Final = "NOTIFY_SOCKET"
WATCHDOG_VARIABLE: Final = "WATCHDOG_USEC"
WATCHDOG_PID_VARIABLE: Final = "WATCHDOG_PID"
READY: Final = "READY=1"
RELOADING: Final = "RELOADING=1"
STOPPING: Final = "STOPPING=1"
WATCHDOG: Final = "WATCHDOG=1"


def tell_manager(*lines: str) -> None:
    """Send these lines; nothing happens where no manager waits for them."""
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


def watchdog_interval_s() -> float | None:
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
