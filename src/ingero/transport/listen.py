"""Listening sockets: addresses as users write them, and errors that name the owner of a port."""

import contextlib
import errno
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ingero.errors import ConfigError, Unavailable

BACKLOG = 4096
EVERYWHERE: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - only compared with
_NO_IPV6: Final = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL})


def parse_address(text: str) -> tuple[str, int]:
    """Split `host:port`, `[::1]:port` or `:port` (empty host: every address); raise ConfigError."""
    host, separator, port = text.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not separator or not port.isascii() or not port.isdigit() or not 0 <= int(port) <= 65535:
        raise ConfigError(
            f"{text!r} is not an address; write host:port, for example 127.0.0.1:4318"
        )
    return host, int(port)


def bind(endpoint: str) -> socket.socket:
    """Return a listening socket; raise Unavailable with the owner of a port that is in use.

    Port 0 lets the kernel choose. `:port` accepts IPv4 and IPv6 on one socket, and IPv4 alone
    where the machine has no IPv6.
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
            # the default differs between systems
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit it: head and body are two writes, and the second must not wait 40 ms
        # for the peer's ACK
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def bind_failure(endpoint: str, error: OSError) -> str:
    """Return why an address cannot be used, with the owner of its port where it is visible."""
    port = parse_address(endpoint)[1]
    if error.errno == errno.EADDRINUSE:
        holder = port_holder(port)
        by = f" by {holder}" if holder else ""
        return f"port {port} is already in use{by}; stop it or choose another address"
    return f"cannot listen on {endpoint}: {error.strerror}"


def bound_address(listener: socket.socket) -> str:
    """Return `host:port` as bound, with the port that the kernel chose."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def port_holder(port: int) -> str | None:
    """Return `name (process 123)` of a port's owner; None if this user may not see it."""
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
    """Return a peer's address without the IPv6 prefix of IPv4, as in `::ffff:10.0.0.1`."""
    return host.removeprefix("::ffff:") if "." in host else host
