"""OTLP over HTTP: an endpoint for metrics, traces and logs, and a fast path for plain pushes.

`PushProtocol` extends uvicorn's httptools protocol: where a TCP segment is one whole plain push, it
answers at once, without callbacks, a scope, a task or an event. uvicorn handles everything else.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, NamedTuple
from urllib.parse import parse_qs

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from ingero.contract.names import CLUSTER_HEADER, CLUSTER_QUERY, WAIT_HEADER
from ingero.contract.otlp.body import (
    MAX_BODY_BYTES,
    Encoding,
    PartialSuccess,
    encode_response,
    encoding_of,
)
from ingero.contract.otlp.rpc_status import encode_status
from ingero.contract.otlp.values import Kind
from ingero.contract.push.segment import PlainRequest, decode_segment
from ingero.errors import MalformedPush, TooLarge
from ingero.transport.bearer import AUTHORIZATION, CHALLENGE, CHALLENGE_HEADER, Key
from ingero.transport.bounded import read_request_body
from ingero.transport.http import Endpoint, TimedProtocol
from ingero.transport.otlp.decoding import Decompressor

Headers = Iterable[tuple[str, str]]
GRPC_CODES = {400: 3, 401: 16, 403: 7, 408: 4, 413: 3, 415: 3, 429: 8, 503: 14}
_PACKED = "content-encoding"
INTERNAL = 13  # gRPC's code for every other error
log = logging.getLogger(__name__)


class Inbound(NamedTuple):  # made in a third of the time that a frozen dataclass takes
    """One decompressed request; `cluster` is from the query, else from the header."""

    kind: Kind
    body: bytes
    encoding: Encoding
    cluster: str | None
    sender: Key
    address: str | None = None  # of the sender, from the connection
    wait: bool = False  # the sender wants the reply only once its data can be queried


class Reply(NamedTuple):
    """The reply of a service; `message` explains an error, `retry_after_s` when to try again."""

    status: int = 200
    partial: PartialSuccess | None = None
    message: str = ""
    retry_after_s: int | None = None
    headers: tuple[tuple[str, str], ...] = ()


# what an unexpected exception says belongs into the log alone
MISTAKE: Final = Reply(500, message="the service failed; its log has the reason")


@dataclass(frozen=True, slots=True)
class OtlpService:
    """The functions of a service that a listener calls.

    `admit` gets the Authorization header and the address before any of the body is read, and
    returns the sender or the refusal. `headers_for(cluster, sender)` returns the headers of a
    refusal that has none yet; `sender` is None if it was not admitted. `count` gets the status of
    each reply; a call whose sender left before its message has none.
    """

    admit: Callable[[str | None, str | None], Key | Reply]
    receive: Callable[[Inbound], Reply | Awaitable[Reply]]
    headers_for: Callable[[str | None, Key | None], Headers]
    count: Callable[[int], None]


async def settled(reply: Reply | Awaitable[Reply]) -> Reply:
    """Return the reply of a service, which may have to write before it answers."""
    return reply if isinstance(reply, Reply) else await reply


def explained(service: OtlpService, reply: Reply, cluster: str | None, sender: Key | None) -> Reply:
    """Return the reply with the service's headers, which refusals also carry."""
    if reply.status == HTTPStatus.OK or reply.headers:
        return reply
    return reply._replace(headers=tuple(service.headers_for(cluster, sender)))


def cluster_of(query: str, header: str | None) -> str | None:
    """Return the cluster that a request names outside its body: query first, then header."""
    named = parse_qs(query).get(CLUSTER_QUERY) if query else None
    return named[0] if named else header or None


def otlp_endpoint(kind: Kind, service: OtlpService, max_body_bytes: int) -> Endpoint:
    """Return a Starlette endpoint: it admits the sender, reads the body, passes it on."""
    decompressing = Decompressor().decompress

    async def endpoint(request: Request) -> Response:
        encoding = encoding_of(request.headers.get("content-type", ""))
        try:
            reply = await answer(request, encoding)
        except ClientDisconnect:  # nobody is left to answer
            raise
        except Exception:
            log.exception("push_failed")
            reply = MISTAKE
        service.count(reply.status)
        return render(kind, encoding or Encoding.JSON, reply)

    async def answer(request: Request, encoding: Encoding | None) -> Reply:
        query = request.scope["query_string"].decode("latin-1")
        cluster = cluster_of(query, request.headers.get(CLUSTER_HEADER))
        address = request.client.host if request.client else None
        admitted = service.admit(request.headers.get(AUTHORIZATION), address)
        sender = None if isinstance(admitted, Reply) else admitted
        if isinstance(admitted, Reply):
            reply = admitted
        elif encoding is None:
            reply = Reply(
                415, message="Content-Type must be application/x-protobuf or application/json"
            )
        else:
            try:
                body = await read_request_body(request, max_body_bytes)
                wait, packed = WAIT_HEADER in request.headers, request.headers.get(_PACKED, "")
                async with decompressing(body, packed) as plain:
                    inbound = Inbound(kind, plain, encoding, cluster, admitted, address, wait)
                    reply = await settled(service.receive(inbound))
            except (MalformedPush, TooLarge) as error:
                reply = Reply(413 if isinstance(error, TooLarge) else 400, message=str(error))
        return explained(service, reply, cluster, sender)

    return endpoint


def render(kind: Kind, encoding: Encoding, reply: Reply) -> Response:
    """Return a reply as an HTTP response."""
    ok = reply.status == HTTPStatus.OK
    body = (
        encode_response(kind, encoding, reply.partial)
        if ok
        else encode_status(
            encoding, GRPC_CODES.get(reply.status, INTERNAL), reply.message, reply.retry_after_s
        )
    )
    response = Response(body, reply.status, dict(reply.headers), str(encoding))
    if reply.retry_after_s is not None:
        response.headers["Retry-After"] = str(reply.retry_after_s)
    if reply.status == HTTPStatus.UNAUTHORIZED:
        response.headers[CHALLENGE_HEADER] = CHALLENGE
    return response


# None where the request needs more work than a plain push; then it is answered like any other
Answer = Callable[[PlainRequest, bytes, str | None], bytes | None]
FastPath = Callable[[bytes, float, int], bytes | None]


def no_fast_path(segment: bytes, now_s: float, wall_ns: int) -> bytes | None:
    """Leave every push to `answer`: the default without compiled code."""
    return None


def push_protocol(
    answer: Answer, max_body_bytes: int = MAX_BODY_BYTES, fast_path: FastPath = no_fast_path
) -> type[TimedProtocol]:
    """Return a protocol class that answers plain pushes itself.

    It calls `fast_path(segment, now, Unix time)` and, where that returns None,
    `answer(request, date, address)`.
    """

    class PushProtocol(_Push):
        _answer = staticmethod(answer)
        _fast_path = staticmethod(fast_path)
        _max_body_bytes = max_body_bytes

    return PushProtocol


class _Push(TimedProtocol):
    """Checks each segment that starts a request; see the docstring of the module."""

    _answer: Answer
    _fast_path: FastPath
    _max_body_bytes: int
    _after_plain_push = False  # the last request was one, and uvicorn has nothing under way
    _is_mid_message = False
    _last_push_s = 0.0
    _idle_check: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        try:
            is_answered = self._answered(data)
        except Exception:  # the long way says so to the sender and counts it
            log.exception("plain_push_failed")
            is_answered = False
        if not is_answered:
            super().data_received(data)

    def _answered(self, data: bytes) -> bool:
        """Answer a segment that is a plain push; False for one that must take the long way."""
        if self._after_plain_push and not self.transport.is_closing():
            now_s = time.monotonic()
            reply = self._fast_path(data, now_s, time.time_ns())
            if reply is not None:
                self.transport.write(reply)
                self._last_push_s = now_s
                return True
        plain = decode_segment(data) if self._is_between_requests() else None
        if plain is None or len(plain[4]) > self._max_body_bytes:
            return False
        return self._take(plain)

    def _take(self, plain: PlainRequest) -> bool:
        """Answer a plain push; False for one that must take the long way."""
        defaults = self.server_state.default_headers
        date = defaults[0][1] if defaults else b""
        reply = self._answer(plain, date, self.client[0] if self.client else None)
        if reply is None:
            return False
        self._unset_keepalive_if_required()
        self._stop_timeout()
        self.transport.write(reply)
        self._after_plain_push = not self.flow.write_paused
        self._last_push_s = time.monotonic()
        if self._idle_check is None:
            self._idle_check = self.loop.call_later(self.timeout_keep_alive, self._close_if_idle)
        return True

    def _is_between_requests(self) -> bool:
        return (
            not self._is_mid_message
            and (self.cycle is None or self.cycle.response_complete)
            and not self.flow.write_paused
            and not self.transport.is_closing()
        )

    def on_message_begin(self) -> None:
        self._is_mid_message = True
        self._after_plain_push = False
        super().on_message_begin()

    def on_message_complete(self) -> None:
        self._is_mid_message = False
        super().on_message_complete()

    def pause_writing(self) -> None:
        self._after_plain_push = False
        super().pause_writing()

    def _close_if_idle(self) -> None:
        """Close a connection without pushes; one timer per connection instead of one per push."""
        self._idle_check = None
        idle_s = time.monotonic() - self._last_push_s
        if idle_s < self.timeout_keep_alive:
            self._idle_check = self.loop.call_later(
                self.timeout_keep_alive - idle_s, self._close_if_idle
            )
        elif self._is_between_requests():
            self.timeout_keep_alive_handler()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._idle_check is not None:
            self._idle_check.cancel()
        super().connection_lost(exc)
