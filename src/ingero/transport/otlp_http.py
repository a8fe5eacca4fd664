"""OTLP over HTTP: the ordinary endpoint for metrics, traces and logs, and a short cut for the plain metrics push.

`PushProtocol` is uvicorn's own httptools protocol that first looks whether a segment is one whole plain push, and then
answers on the spot, without callbacks, a scope, a task or an event. Everything else takes the ordinary way.
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

from ingero.contract.names import CLUSTER_HEADER, CLUSTER_QUERY, WAIT_HEADER
from ingero.contract.otlp import Kind
from ingero.contract.otlp_body import (
    MAX_BODY_BYTES,
    Encoding,
    PartialSuccess,
    decompress,
    encode_response,
    encoding_of,
)
from ingero.contract.push_request import read_request
from ingero.contract.rpc_status import encode_status
from ingero.errors import MalformedPush, TooLarge
from ingero.transport.http import TimedProtocol

Headers = Iterable[tuple[str, str]]
GRPC_CODES = {400: 3, 401: 16, 413: 8, 415: 3, 429: 8, 503: 14}
_MAX_CACHED_NAMES = 16384
_JSON, _PROTOBUF = Encoding.JSON, Encoding.PROTOBUF  # looked up with every push
_MAX_CACHED_QUERY_BYTES = 512  # a longer one is read each time: whoever sends it decides how long it is


@dataclass(frozen=True, slots=True)
class Inbound:
    """One request, decompressed. `cluster` is what the query or the header said, the query first."""

    kind: Kind
    body: bytes
    encoding: Encoding
    cluster: str | None
    authorization: str | None
    address: str | None = None  # of the sender, as the connection has it
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
            address = request.client.host if request.client else None
            reply = await settled(receive(Inbound(kind, body, encoding, cluster, authorization, address, wait)))
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
        else encode_status(encoding, GRPC_CODES.get(reply.status, 13), reply.message, reply.retry_after_s)
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


Answer = Callable[[bytes, Encoding, str | None, bytes | None, bytes, str | None], bytes]


def push_protocol(answer: Answer, max_body_bytes: int = MAX_BODY_BYTES) -> type[TimedProtocol]:
    """A protocol class whose plain pushes go to `answer(body, encoding, cluster, authorization, date, address)`."""
    clusters: dict[bytes, str | None] = {b"": None}  # by query

    def named_cluster(query: bytes, header: bytes | None) -> str | None:
        named = cluster_of(query.decode("ascii"), None)
        if len(query) <= _MAX_CACHED_QUERY_BYTES:
            if len(clusters) >= _MAX_CACHED_NAMES:
                clusters.clear()
            clusters[query] = named
        return named if named or not header else header.decode("latin-1")

    class PushProtocol(_Push):
        _answer = staticmethod(answer)
        _clusters = clusters
        _named_cluster = staticmethod(named_cluster)
        _max_body_bytes = max_body_bytes

    return PushProtocol


class _Push(TimedProtocol):
    """Looks at each segment that begins a request; see the module's docstring."""

    _answer: Answer
    _clusters: dict[bytes, str | None]
    _named_cluster: Callable[[bytes, bytes | None], str | None]
    _max_body_bytes: int
    _is_mid_message = False
    _last_push_s = 0.0
    _idle_check: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        plain = read_request(data) if self._is_between_requests() else None
        if plain is None or len(plain[4]) > self._max_body_bytes:
            super().data_received(data)
            return
        if self.timeout_keep_alive_task is not None:
            self._unset_keepalive_if_required()
        if self._patience is not None:
            self._stop_expecting()
        is_json, query, header, authorization, body = plain
        cluster = self._clusters.get(query)
        if cluster is None and (query or header):
            cluster = self._named_cluster(query, header)
        state = self.server_state
        defaults = state.default_headers
        date = defaults[0][1] if defaults else b""
        address = self.client[0] if self.client else None
        encoding = _JSON if is_json else _PROTOBUF
        self.transport.write(self._answer(body, encoding, cluster, authorization, date, address))
        state.total_requests += 1
        self._last_push_s = self.loop.time()
        if self._idle_check is None:
            self._idle_check = self.loop.call_later(self.timeout_keep_alive, self._close_if_idle)

    def _is_between_requests(self) -> bool:
        return (
            not self._is_mid_message
            and (self.cycle is None or self.cycle.response_complete)
            and not self.flow.write_paused
            and not self.transport.is_closing()
        )

    def on_message_begin(self) -> None:
        self._is_mid_message = True
        super().on_message_begin()

    def on_message_complete(self) -> None:
        self._is_mid_message = False
        super().on_message_complete()

    def _close_if_idle(self) -> None:
        """One timer per connection that looks now and then, instead of one per push."""
        self._idle_check = None
        idle_s = self.loop.time() - self._last_push_s
        if idle_s < self.timeout_keep_alive:
            self._idle_check = self.loop.call_later(self.timeout_keep_alive - idle_s, self._close_if_idle)
        elif self._is_between_requests():
            self.timeout_keep_alive_handler()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._idle_check is not None:
            self._idle_check.cancel()
        super().connection_lost(exc)
