"""OTLP over HTTP: the ordinary endpoint for metrics, traces and logs, and a short cut for the plain metrics push.

`PushProtocol` answers `POST /v1/metrics` with a Content-Length and no Content-Encoding where uvicorn's parser completes
the message, without a scope, a task or an event. Everything else takes the ordinary way.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ingero.contract.names import CLUSTER_HEADER, CLUSTER_QUERY, METRICS_PATH, WAIT_HEADER
from ingero.contract.otlp import Kind
from ingero.contract.otlp_body import (
    MAX_BODY_BYTES,
    Encoding,
    PartialSuccess,
    decompress,
    encode_error,
    encode_response,
    encoding_of,
)
from ingero.errors import MalformedPush, TooLarge

Headers = Iterable[tuple[str, str]]
GRPC_CODES = {400: 3, 401: 16, 413: 8, 415: 3, 429: 8, 503: 14}
_MAX_CACHED_URLS = 16384


@dataclass(frozen=True, slots=True)
class Inbound:
    """One request, decompressed. `cluster` is what the query or the header said, the query first."""

    kind: Kind
    body: bytes
    encoding: Encoding
    cluster: str | None
    authorization: str | None
    wait: bool = False  # the sender wants its answer only once what it sent can be queried


@dataclass(frozen=True, slots=True)
class Reply:
    """What a service answers; `message` explains an error, `retry_after_s` says when asking again may help."""

    status: int = 200
    partial: PartialSuccess | None = None
    message: str = ""
    retry_after_s: int | None = None
    headers: tuple[tuple[str, str], ...] = ()


Receive = Callable[[Inbound], Reply | Awaitable[Reply]]


async def settled(reply: Reply | Awaitable[Reply]) -> Reply:
    """The reply of a service that answers at once, or of one that must write first."""
    return await reply if inspect.isawaitable(reply) else reply


def cluster_of(query: str, header: str | None) -> str | None:
    """The cluster a request names outside its body."""
    named = parse_qs(query).get(CLUSTER_QUERY) if query else None
    return named[0] if named else header or None


def otlp_endpoint(
    kind: Kind,
    receive: Receive,
    headers_for: Callable[[str | None], Headers],
    max_body_bytes: int = MAX_BODY_BYTES,
) -> Callable[[Request], Any]:
    """A Starlette endpoint. `headers_for(cluster)` goes onto errors that `receive` never sees."""

    async def endpoint(request: Request) -> Response:
        cluster = cluster_of(request.url.query, request.headers.get(CLUSTER_HEADER))
        encoding = encoding_of(request.headers.get("content-type", ""))
        if encoding is None:
            message = "Content-Type must be application/x-protobuf or application/json"
            reply = Reply(415, message=message, headers=tuple(headers_for(cluster)))
            return render(kind, Encoding.JSON, reply)
        try:
            body = await _read(request, max_body_bytes)
            body = decompress(body, request.headers.get("content-encoding", ""))
            authorization, wait = request.headers.get("authorization"), WAIT_HEADER in request.headers
            reply = await settled(receive(Inbound(kind, body, encoding, cluster, authorization, wait)))
        except MalformedPush as error:
            reply = Reply(400, message=str(error), headers=tuple(headers_for(cluster)))
        except TooLarge as error:
            reply = Reply(413, message=str(error), headers=tuple(headers_for(cluster)))
        return render(kind, encoding, reply)

    return endpoint


def render(kind: Kind, encoding: Encoding, reply: Reply) -> Response:
    """A reply as HTTP."""
    ok = reply.status == HTTPStatus.OK
    body = (
        encode_response(kind, encoding, reply.partial)
        if ok
        else encode_error(encoding, GRPC_CODES.get(reply.status, 13), reply.message)
    )
    response = Response(body, reply.status, dict(reply.headers), str(encoding))
    if reply.retry_after_s is not None:
        response.headers["Retry-After"] = str(reply.retry_after_s)
    if reply.status == HTTPStatus.UNAUTHORIZED:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


async def _read(request: Request, limit_bytes: int) -> bytes:
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > limit_bytes:
        raise TooLarge(f"the body is larger than {limit_bytes} bytes")
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit_bytes:
                raise TooLarge(f"the body is larger than {limit_bytes} bytes")
    except ClientDisconnect:
        raise MalformedPush("the sender left before the body was complete") from None
    return bytes(body)


Answer = Callable[[bytes, Encoding, str | None, bytes | None, bytes], bytes]


def push_protocol(answer: Answer, max_body_bytes: int = MAX_BODY_BYTES) -> type[HttpToolsProtocol]:
    """A protocol class whose plain pushes go to `answer(body, encoding, cluster, authorization, date header)`."""
    clusters: dict[tuple[bytes, bytes | None], str | None] = {}

    def named_cluster(url: bytes, header: bytes | None) -> str | None:
        key = (url, header)
        if key not in clusters:
            if len(clusters) >= _MAX_CACHED_URLS:
                clusters.clear()
            query = url.partition(b"?")[2].decode("ascii", "replace")
            clusters[key] = cluster_of(query, header.decode("latin-1") if header else None)
        return clusters[key]

    class PushProtocol(_Push):
        _answer = staticmethod(answer)
        _named_cluster = staticmethod(named_cluster)
        _max_body_bytes = max_body_bytes

    return PushProtocol


_ENCODINGS = {b"application/x-protobuf": Encoding.PROTOBUF, b"application/json": Encoding.JSON}
_PATH = METRICS_PATH.encode()
_TYPE, _LENGTH, _CLUSTER, _AUTHORIZATION, _ODD = range(1, 6)
_NOTED = {
    b"content-type": _TYPE,
    b"content-length": _LENGTH,
    CLUSTER_HEADER.encode(): _CLUSTER,
    b"authorization": _AUTHORIZATION,
    b"content-encoding": _ODD,
    b"expect": _ODD,
    b"transfer-encoding": _ODD,
    b"upgrade": _ODD,
    b"connection": _ODD,
}
_NOTED |= {name.title(): code for name, code in _NOTED.items()}  # as most clients spell them


class _Push(HttpToolsProtocol):
    """Decides at the end of the headers which way a request goes; see the module's docstring."""

    _answer: Answer
    _named_cluster: Callable[[bytes, bytes | None], str | None]
    _max_body_bytes: int
    _parts: list[bytes] | None = None
    _leaving = False
    _last_push_s = 0.0
    _idle_check: asyncio.TimerHandle | None = None

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._encoding: Encoding | None = None
        self._is_plain = True
        self._size = -1
        self._cluster_header: bytes | None = None
        self._authorization: bytes | None = None

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))
        code = _NOTED.get(name) or _NOTED.get(name.lower())
        if code is None:
            return
        if code == _TYPE:
            self._encoding = _ENCODINGS.get(value)
        elif code == _LENGTH:
            self._size = int(value) if value.isdigit() else -1
        elif code == _CLUSTER:
            self._cluster_header = value
        elif code == _AUTHORIZATION:
            self._authorization = value
        elif value.lower() != b"keep-alive":
            self._is_plain = False

    def _may_cut_short(self) -> bool:
        url = self.url
        return (
            self._is_plain
            and self._encoding is not None
            and 0 <= self._size <= self._max_body_bytes
            and url.startswith(_PATH)
            and (len(url) == len(_PATH) or url[len(_PATH)] == 63)  # a question mark
            and self.parser.get_method() == b"POST"
            and (self.cycle is None or self.cycle.response_complete)
            and self.parser.should_keep_alive()
            and not self.flow.write_paused
        )

    def on_headers_complete(self) -> None:
        if self._may_cut_short():
            self._parts = []
            return
        url, headers = self.url, self.headers
        super().on_message_begin()
        self.url = url
        for name, value in headers:
            super().on_header(name, value)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self._parts is None:
            super().on_body(body)
        else:
            self._parts.append(body)

    def on_message_complete(self) -> None:
        parts, self._parts = self._parts, None
        if parts is None:
            super().on_message_complete()
            return
        assert self._encoding is not None
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        cluster = self._named_cluster(self.url, self._cluster_header)
        defaults = self.server_state.default_headers
        date = defaults[0][1] if defaults else b""
        self.transport.write(self._answer(body, self._encoding, cluster, self._authorization, date))
        self.server_state.total_requests += 1
        if self._leaving:
            self.transport.close()
        else:
            self._last_push_s = self.loop.time()
            if self._idle_check is None:
                self._idle_check = self.loop.call_later(self.timeout_keep_alive, self._close_if_idle)

    def _close_if_idle(self) -> None:
        """One timer per connection that looks now and then, instead of one per push."""
        self._idle_check = None
        idle_s = self.loop.time() - self._last_push_s
        if idle_s >= self.timeout_keep_alive:
            if self._parts is None and (self.cycle is None or self.cycle.response_complete):
                self.timeout_keep_alive_handler()
        else:
            self._idle_check = self.loop.call_later(self.timeout_keep_alive - idle_s, self._close_if_idle)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._idle_check is not None:
            self._idle_check.cancel()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        if self._parts is not None:
            self._leaving = True  # answer the push that is on its way, then close
        else:
            super().shutdown()
