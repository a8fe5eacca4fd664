"""HTTP listeners of every service: sockets that say who holds their port, uvicorn without its signal handling."""

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ingero.errors import ConfigError, Unavailable

BACKLOG = 4096
KEEP_ALIVE_S = 75  # agents push every 5 to 60 s and should not pay a handshake each time
DRAIN_S = 5.0
REQUEST_S = 30.0  # from the first byte of a request, or from connecting, to its last byte
MAX_HEAD_BYTES = 64 * 1024
log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode


def parse_address(text: str) -> tuple[str, int]:
    """`host:port`, `[::1]:port` or `:port` (every address); raises ConfigError."""
    host, separator, port = text.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not separator or not port.isascii() or not port.isdigit() or not 0 <= int(port) <= 65535:
        raise ConfigError(f"{text!r} is not an address; write host:port, for example 127.0.0.1:4318")
    return host, int(port)


def bind(endpoint: str) -> socket.socket:
    """A listening socket; port 0 lets the kernel choose. Raises Unavailable naming who holds the port."""
    host, port = parse_address(endpoint)
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    except OSError as error:
        raise Unavailable(f"cannot listen on {endpoint}: {error.strerror or error}") from None
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # inherited by every connection: head and body are two writes, and the second must not wait 40 ms for the peer's ACK
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise Unavailable(bind_failure(endpoint, error)) from None
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


def json_response(content: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON answer, encoded once by msgspec."""
    return Response(_encode(content), status, dict(headers or {}), "application/json")


class TimedProtocol(HttpToolsProtocol):
    """uvicorn's own, for peers that are not trusted: it would wait for ever for a request, and read headers without
    end."""

    _patience: asyncio.TimerHandle | None = None
    _is_in_head = False
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        super().connection_made(transport)
        self._expect_request()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_in_head and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self.send_400_response("The headers are too large.")

    def on_message_begin(self) -> None:
        self._is_in_head, self._head_bytes = True, 0
        self._expect_request()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._stop_expecting()
        super().on_message_complete()

    def pause_writing(self) -> None:
        """The peer does not read its answer."""
        self._stop_expecting()
        self._patience = self.loop.call_later(REQUEST_S, self.transport.abort)
        super().pause_writing()

    def resume_writing(self) -> None:
        self._stop_expecting()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_expecting()
        super().connection_lost(exc)

    def _expect_request(self) -> None:
        if self._patience is None:
            self._patience = self.loop.call_later(REQUEST_S, self.transport.close)

    def _stop_expecting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


class _QuietServer(uvicorn.Server):
    """Leaves signals to the service that owns several of these."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpListener:
    """One socket served by uvicorn inside the running loop."""

    def __init__(
        self,
        app: Any,
        listener: socket.socket,
        tls: ssl.SSLContext | None = None,
        protocol: type[TimedProtocol] = TimedProtocol,
    ) -> None:
        config = uvicorn.Config(
            app,
            http=protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # whoever wants X-Forwarded-For asks for it, and says whom it trusts
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=int(DRAIN_S),
        )
        config.load()
        config.ssl = tls
        self.listener = listener
        self.address = bound_address(listener)
        self._server = _QuietServer(config)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Accept connections; returns once the socket is served."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self.listener]))
        while not self._server.started:
            if self._task.done():
                self._task.result()
                raise Unavailable(f"the listener on {self.address} ended before it began")
            await asyncio.sleep(0.005)

    async def stop(self) -> None:
        """Stop accepting, let running requests end, close the rest after a while."""
        self._server.should_exit = True
        if self._task is not None:
            await self._task

    @property
    def connections(self) -> int:
        """Open connections."""
        return len(self._server.server_state.connections)
