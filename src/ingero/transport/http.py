"""HTTP listeners of every service: uvicorn without signal handling, timeouts for slow peers."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping
from http import HTTPStatus
from typing import Any

import msgspec
import uvicorn
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ingero.errors import Unavailable
from ingero.transport.bearer import (
    AUTHORIZATION,
    BEARER_NEEDED,
    CHALLENGE,
    CHALLENGE_HEADER,
    ListenerToken,
)
from ingero.transport.listen import bound_address, plain_peer

KEEP_ALIVE_S = 75  # agents push every 5 to 60 s and should not pay a handshake each time
DRAIN_S = 5.0
REQUEST_S = 30.0  # from the first byte of a request, or from connecting, to its last byte
MAX_HEAD_BYTES = 64 * 1024
_encode = msgspec.json.Encoder().encode


def json_response(
    content: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a JSON response."""
    return Response(_encode(content), status, dict(headers or {}), "application/json")


def error_response(message: str, status: int, headers: Mapping[str, str] | None = None) -> Response:
    """Return a refusal: one sentence under the key `error`."""
    return json_response({"error": message}, status, headers)


def unauthorized_response() -> Response:
    """Return the 401 for a request without the token of its listener."""
    return error_response(BEARER_NEEDED, HTTPStatus.UNAUTHORIZED, {CHALLENGE_HEADER: CHALLENGE})


def require_token(
    token: ListenerToken, endpoint: Callable[[Request], Awaitable[Response]]
) -> Callable[[Request], Any]:
    """Wrap an endpoint so that it answers only requests with the listener's token."""

    async def check(request: Request) -> Response:
        if token.admits(request.headers.get(AUTHORIZATION)):
            return await endpoint(request)
        return unauthorized_response()

    return check


async def http_error(_: Request, error: Exception) -> Response:
    """Return what Starlette itself refuses (no such path, wrong method) in the same form."""
    assert isinstance(error, HTTPException)
    return error_response(error.detail, error.status_code, error.headers)


class TimedProtocol(HttpToolsProtocol):
    """uvicorn's protocol for peers that are not trusted.

    uvicorn alone waits for a request for ever and reads headers of any size.
    """

    request_timeout_s = REQUEST_S
    _timeout: asyncio.TimerHandle | None = None
    _is_in_head = False
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        super().connection_made(transport)
        if self.client is not None:
            self.client = (plain_peer(self.client[0]), self.client[1])
        self._start_timeout()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_in_head and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self.send_400_response("The headers are too large.")

    def on_message_begin(self) -> None:
        self._is_in_head, self._head_bytes = True, 0
        self._start_timeout()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._stop_timeout()
        super().on_message_complete()

    def pause_writing(self) -> None:
        """Close the connection of a peer that does not read its answer."""
        self._stop_timeout()
        self._timeout = self.loop.call_later(self.request_timeout_s, self.transport.abort)
        super().pause_writing()

    def resume_writing(self) -> None:
        self._stop_timeout()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timeout()
        super().connection_lost(exc)

    def _start_timeout(self) -> None:
        if self._timeout is None:
            self._timeout = self.loop.call_later(self.request_timeout_s, self.transport.close)

    def _stop_timeout(self) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None


class _QuietServer(uvicorn.Server):
    """A server that leaves signals to the service, which owns several servers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpListener:
    """One socket that uvicorn serves inside the running event loop."""

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
            proxy_headers=False,  # a service that wants X-Forwarded-For names the proxies it trusts
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
        """Accept connections; return once the socket is served."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self.listener]))
        while not self._server.started:
            if self._task.done():
                self._task.result()
                raise Unavailable(f"the listener on {self.address} ended before it started")
            await asyncio.sleep(0.005)

    async def stop(self) -> None:
        """Stop accepting, let running requests finish, then close what remains."""
        self._server.should_exit = True
        if self._task is not None:
            await self._task

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._server.server_state.connections)
