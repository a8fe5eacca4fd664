"""Where services listen: addresses as people write them, sockets that say who holds their port, peers by their name."""

import contextlib
import errno
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ingero.errors import ConfigError, Unavailable

BACKLOG = 4096
EVERYWHERE: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - compared with; whoever writes one means it
_NO_IPV6: Final = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL})


def parse_address(text: str) -> tuple[str, int]:
    """`host:port`, `[::1]:port` or `:port` (every address, host is empty); raises ConfigError."""
    host, separator, port = text.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not separator or not port.isascii() or not port.isdigit() or not 0 <= int(port) <= 65535:
        raise ConfigError(
            f"{text!r} is not an address; write host:port, for example 127.0.0.1:4318"
        )
    return host, int(port)


def bind(endpoint: str) -> socket.socket:
    """A listening socket; port 0 lets the kernel choose. Raises Unavailable naming who holds the port.

    `:port` takes IPv4 and IPv6 on one socket, and IPv4 alone where the machine has no IPv6.
    """
    host, port = parse_address(endpoint)
    try:
        return _listen(host or "::", port)
    except OSError as error:
        if host or error.errno not in _NO_IPV6:
            raise Unavailable(bind_failure(endpoint, error)) from None
    try:
        return _listen("0.0.0.0", port)  # noqa: S104 - what was asked for
    except OSError as error:
        raise Unavailable(bind_failure(endpoint, error)) from None


def _listen(host: str, port: int) -> socket.socket:
    family, _, _, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if family == socket.AF_INET6:
            listener.setsockopt(
                socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0
            )  # whatever this system's default is
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # inherited by every connection: head and body are two writes, the second must not wait 40 ms for the peer's ACK
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def bind_failure(endpoint: str, error: OSError) -> str:
    """Why an address cannot be had, and by whom it is held when that can be told."""
    port = parse_address(endpoint)[1]
    if error.errno == errno.EADDRINUSE:
        holder = port_holder(port)
        by = f" by {holder}" if holder else ""
        return f"port {port} is already in use{by}; stop it or choose another address"
    return f"cannot listen on {endpoint}: {error.strerror}"


def bound_address(listener: socket.socket) -> str:
    """`host:port` as bound, with the port the kernel chose."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def port_holder(port: int) -> str | None:
    """`name (process 123)` of whoever listens on a port; None when this user may not know."""
    inodes = {inode for inode, held in _listening() if held == port}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            for descriptor in (process / "fd").iterdir():
                if str(descriptor.readlink()).removeprefix("socket:[").removesuffix("]") in inodes:
                    return f"{(process / 'comm').read_text().strip()} (process {process.name})"
    return None


def _listening() -> Iterator[tuple[str, int]]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A":  # LISTEN
                    yield fields[9], int(fields[1].rsplit(":", 1)[1], 16)


def plain_peer(host: str) -> str:
    """The address of a peer as rules and logs have it: a socket for both families calls IPv4 `::ffff:10.0.0.1`."""
    return host.removeprefix("::ffff:") if "." in host else host
