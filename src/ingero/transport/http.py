"""HTTP listeners of every service: uvicorn without signal handling, timeouts for slow peers."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

import msgspec
import uvicorn
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ingero.contract.names import JSON_TYPE
from ingero.errors import TooLarge, Unavailable
from ingero.stopping import is_set_within
from ingero.transport.access import Access, Denied, lacks_scope
from ingero.transport.admission import Admission, AdmittedApp
from ingero.transport.bearer import AUTHORIZATION, CHALLENGE, CHALLENGE_HEADER, Key, TokenScope
from ingero.transport.connections import ConnectionRoom, Handshake, TlsAcceptor
from ingero.transport.listen import bound_address, plain_peer

KEEP_ALIVE_S = 75  # agents push every 5 to 60 s and should not pay a handshake each time
DRAIN_S = 5.0
REQUEST_S = 30.0  # from the first byte of a request, or from connecting, to its last byte
MAX_HEAD_BYTES = 64 * 1024  # also of trailers, and between two pieces of a body
MAX_HEADERS = 200
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})  # they change nothing
MAX_PIPELINED = 64  # requests that wait for the reply to an earlier one
ALL_CLUSTERS_NEEDED = "this answer covers every cluster; use a token without allowed_clusters"
Endpoint = Callable[[Request], Awaitable[Response]]
_KEY = "ingero.key"
# a browser that is made to show or frame a reply runs nothing of it
_NO_PAGE: Final = (
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"x-frame-options", b"DENY"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)
_encode = msgspec.json.Encoder().encode


def json_response(
    content: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a JSON response."""
    return Response(_encode(content), status, dict(headers or {}), "application/json")


def error_response(message: str, status: int, headers: Mapping[str, str] | None = None) -> Response:
    """Return a refusal: one sentence under the key `error`."""
    return json_response({"error": message}, status, headers)


def denied_response(denied: Denied) -> Response:
    """Return the refusal of a request without a valid token."""
    headers = {}
    if denied.status == HTTPStatus.UNAUTHORIZED:
        headers[CHALLENGE_HEADER] = CHALLENGE
    if denied.retry_after_s is not None:
        headers["Retry-After"] = str(denied.retry_after_s)
    return error_response(denied.message, denied.status, headers)


def require_token(access: Access, endpoint: Endpoint, *scopes: TokenScope) -> Endpoint:
    """Wrap an endpoint so that it answers only requests whose token has one of the scopes.

    Requests that change something must be JSON, which a form of a foreign web page cannot send.
    """

    async def check(request: Request) -> Response:
        address = request.client.host if request.client else None
        admitted = _admitted(access, request, address, scopes)
        if isinstance(admitted, Denied):
            return denied_response(admitted)
        if request.method not in SAFE_METHODS and not is_json(request):
            needed = f"Content-Type must be {JSON_TYPE}"
            return error_response(needed, HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
        request.scope[_KEY] = admitted
        return await endpoint(request)

    return check


def _admitted(
    access: Access, request: Request, address: str | None, scopes: tuple[TokenScope, ...]
) -> Key | Denied:
    """Return who sends a request: the owner of a token, or a user that a proxy has signed in."""
    header = request.headers.get(AUTHORIZATION)
    if header is None and access.users is not None:
        user = access.users.find(request.headers, address)
        if user is not None:
            return user if user.may(*scopes) else Denied(HTTPStatus.FORBIDDEN, lacks_scope(scopes))
    return access.check(header, address, *scopes)


def require_all_clusters(access: Access, endpoint: Endpoint) -> Endpoint:
    """Wrap an endpoint that covers every cluster: its token must be valid for all of them."""

    async def check(request: Request) -> Response:
        if key_of(request).clusters is None:
            return await endpoint(request)
        return error_response(ALL_CLUSTERS_NEEDED, HTTPStatus.FORBIDDEN)

    return require_token(access, check, TokenScope.READ)


def key_of(request: Request) -> Key:
    """Return the token of a request that `require_token` let pass."""
    key: Key = request.scope[_KEY]
    return key


def is_json(request: Request) -> bool:
    """Return whether the body is JSON, which a form of a foreign web page cannot send."""
    kind = request.headers.get("content-type", "").partition(";")[0]
    return kind.strip().lower() == JSON_TYPE


async def http_error(_: Request, error: Exception) -> Response:
    """Return what Starlette itself refuses (no such path, wrong method) in the same form."""
    assert isinstance(error, HTTPException)
    return error_response(error.detail, error.status_code, error.headers)


class RefusalsAreNoPage:
    """The outermost layer of a listener: adds security headers to every refusal.

    Applications add these headers to their other replies themselves. Replies to pushes need none.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        limited = never_a_page(send)

        async def sent(message: Message) -> None:
            is_refusal = message.get("status", 0) >= HTTPStatus.BAD_REQUEST
            await (limited if is_refusal else send)(message)

        await self._app(scope, receive, sent)


def never_a_page(send: Send) -> Send:
    """Add security headers to replies that are no page of ours, such as JSON and errors.

    If a browser is made to show or frame such a reply, it must not run anything in it. Redirects
    stay on this server, whatever name it was asked by.
    """

    async def limited(message: Message) -> None:
        if message["type"] == "http.response.start":
            given = message.get("headers", [])
            names = {name.lower() for name, _ in given}
            added = [pair for pair in _NO_PAGE if pair[0] not in names]
            kept = [(name, _own_place(name, value)) for name, value in given]
            message = {**message, "headers": [*kept, *added]}
        await send(message)

    return limited


def _own_place(name: bytes, value: bytes) -> bytes:
    """Return the value of a header; of a redirect, only its path and query."""
    if name.lower() != b"location":
        return value
    place = urlsplit(value)
    return b"/" + place.path.lstrip(b"/") + (b"?" + place.query if place.query else b"")


class TimedProtocol(HttpToolsProtocol):
    """uvicorn's protocol for peers that are not trusted.

    uvicorn alone waits for a request for ever and reads headers of any size.
    """

    request_timeout_s = REQUEST_S
    room: ConnectionRoom  # of the service, set by the listener
    handshake: Handshake | None = None  # how an encrypted connection began
    _timeout: asyncio.TimerHandle | None = None
    _head_bytes = 0  # since the request began, or since the last piece of its body

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        super().connection_made(transport)
        if self.client is not None:
            self.client = (plain_peer(self.client[0]), self.client[1])
        self._start_timeout()
        self.room.enter(self._address(), transport, instead_of=self.handshake)

    def data_received(self, data: bytes) -> None:
        self._head_bytes += len(data)
        super().data_received(data)
        if self._is_idle():  # empty lines between requests are no request
            self._start_timeout()
        if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The headers are too large.")

    def _is_idle(self) -> bool:
        return self.timeout_keep_alive_task is None and (
            self.cycle is None or self.cycle.response_complete
        )

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= MAX_PIPELINED:
            raise TooLarge(f"more than {MAX_PIPELINED} requests wait for a reply")
        self._start_timeout()
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.headers) >= MAX_HEADERS:
            raise TooLarge(f"more than {MAX_HEADERS} headers")
        super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._head_bytes = 0
        self._stop_timeout()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse data that is not HTTP, with the headers of every other reply."""
        lines = [b"HTTP/1.1 400 Bad Request"]
        lines += [
            name + b": " + value for name, value in (*self.server_state.default_headers, *_NO_PAGE)
        ]
        lines += [b"content-type: text/plain; charset=utf-8", b"connection: close"]
        lines += [b"content-length: %d" % len(msg), b"", msg.encode("ascii")]
        self.transport.write(b"\r\n".join(lines))
        self.transport.close()

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
        self.room.leave(self._address(), self.transport)
        super().connection_lost(exc)

    def _address(self) -> str | None:
        return self.client[0] if self.client else None

    def _start_timeout(self) -> None:
        if self._timeout is None:
            self._timeout = self.loop.call_later(self.request_timeout_s, self.transport.close)

    def _stop_timeout(self) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None


class _QuietServer(uvicorn.Server):
    """A server that leaves signals to the service, which owns several servers."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.stopping = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        """Wake up once a second for the Date header, not ten times, and at once to stop."""
        while not await self.on_tick(0):
            await is_set_within(self.stopping, 1.0)


class HttpListener:
    """One socket that uvicorn serves inside the running event loop."""

    def __init__(
        self,
        app: ASGIApp,
        listener: socket.socket,
        tls: ssl.SSLContext | None = None,
        protocol: type[TimedProtocol] = TimedProtocol,
        admission: Admission | None = None,
    ) -> None:
        admission = admission or Admission()
        own_protocol = type(protocol.__name__, (protocol,), {"room": admission.connections})
        config = uvicorn.Config(
            RefusalsAreNoPage(AdmittedApp(app, admission)),
            http=own_protocol,
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
        self.listener = listener
        self.address = bound_address(listener)
        self._server = _QuietServer(config)
        self._tls = TlsAcceptor(listener, tls, admission.connections) if tls is not None else None
        self._make = partial(own_protocol, config, self._server.server_state, {})
        self._task: asyncio.Task[None] | None = None
        self._accepting: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Accept connections; return once the socket is served."""
        plain = [self.listener] if self._tls is None else []
        self._task = asyncio.create_task(self._server.serve(sockets=plain))
        while not self._server.started:
            if self._task.done():
                self._task.result()
                raise Unavailable(f"the listener on {self.address} ended before it started")
            await asyncio.sleep(0.005)
        if self._tls is not None:
            self._accepting = asyncio.create_task(self._tls.run(self._secured))

    def _secured(self, handshake: Handshake) -> TimedProtocol:
        protocol: TimedProtocol = self._make()
        protocol.handshake = handshake
        return protocol

    async def stop(self) -> None:
        """Stop accepting, let running requests finish, then close the remaining connections."""
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.wait([self._accepting])
            self.listener.close()
        self._server.should_exit = True
        self._server.stopping.set()
        if self._task is not None:
            await self._task

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._server.server_state.connections)
