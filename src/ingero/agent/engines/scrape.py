"""One page of a process on this host, over HTTP, with limits on time and size.

The page may come from any process. There are no redirects, proxies, compression or kept
connections, and only addresses on which a process of this host listens are asked.
"""

import http.client
import io
import os
import socket
import threading
import time
from dataclasses import dataclass
from typing import Final

from ingero.agent.engines.ports import network_of

HEALTH: Final = "/health"  # where a server says that it is well
TIMEOUT_S: Final = 2.0
MAX_PAGE_BYTES: Final = 4 << 20  # engines write 50 KB
_CLONE_NEWNET: Final = 0x40000000
_CHUNK: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer of a process."""

    status: int
    body: str


def get_page(
    address: str, port: int, path: str, *, pid: int | None = None, timeout_s: float = TIMEOUT_S
) -> Reply | None:
    """Return a page; None without an answer in time, or with one that is too long.

    With `pid`, the connection is made in the network namespace of that process.
    """
    deadline = time.monotonic() + timeout_s
    try:
        with _connect(address, port, pid, timeout_s) as connection:
            host = f"[{address}]" if ":" in address else address
            request = f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n"
            connection.sendall(f"{request}Accept-Encoding: identity\r\n\r\n".encode())
            received = _receive(connection, deadline)
    except OSError:
        return None
    return None if received is None else _parse(received)


def _connect(address: str, port: int, pid: int | None, timeout_s: float) -> socket.socket:
    if pid is None or network_of(pid) in (None, network_of("self")):
        return socket.create_connection((address, port), timeout_s)
    opened: list[socket.socket] = []
    problems: list[OSError] = []

    def connect() -> None:
        # the thread stays in the other namespace, so that it does nothing else and ends
        try:
            _enter_network(pid)
            opened.append(socket.create_connection((address, port), timeout_s))
        except OSError as error:
            problems.append(error)

    thread = threading.Thread(target=connect)
    thread.start()
    thread.join()
    if problems:
        raise problems[0]
    return opened[0]


def _enter_network(pid: int) -> None:
    import ctypes  # noqa: PLC0415 - only for engines in containers

    libc = ctypes.CDLL(None, use_errno=True)
    namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(namespace, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "another network namespace cannot be entered")
    finally:
        os.close(namespace)


def _receive(connection: socket.socket, deadline: float) -> bytes | None:
    """Read to the end of a reply; a peer that sends byte by byte gets no extra time."""
    received = bytearray()
    while True:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return None
        connection.settimeout(left_s)
        chunk = connection.recv(_CHUNK)
        if not chunk:
            return bytes(received)
        received += chunk
        if len(received) > MAX_PAGE_BYTES:
            return None


class _Received:
    """What was received, in the form that http.client reads from."""

    def __init__(self, received: bytes) -> None:
        self._received = received

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self._received)


def _parse(received: bytes) -> Reply | None:
    response = http.client.HTTPResponse(_Received(received))  # type: ignore[arg-type]  # see above
    try:
        response.begin()
        body = response.read(MAX_PAGE_BYTES)
    except (http.client.HTTPException, ValueError, OSError):
        return None
    return Reply(response.status, body.decode(errors="replace"))
