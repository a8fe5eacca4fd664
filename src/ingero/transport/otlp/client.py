"""Pushes to Fleet over HTTP and reads threshold and verdicts from the reply; errors are values."""

import asyncio
import email.utils
import errno
import gzip
import random
import re
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Protocol, TypeVar

import aiohttp
import msgspec
from yarl import URL

from ingero.contract import names
from ingero.contract.causes import Ask, decode_asks
from ingero.contract.otlp.body import Encoding, decode_response
from ingero.contract.otlp.codec import encode_json, encode_protobuf
from ingero.contract.otlp.values import LogsRequest, MetricsRequest, TracesRequest
from ingero.contract.threshold import Delivery, ServedThreshold, decode_headers
from ingero.contract.verdict import Verdict, decode_verdicts
from ingero.core.health.modes import PushOutcome
from ingero.errors import ConfigError, MalformedPush
from ingero.transport.bearer import authorization
from ingero.transport.bounded import read_reply_beginning
from ingero.transport.connect import NEEDS_TLS, NO_TLS, NOT_HTTP, is_plaintext, plain_reason
from ingero.transport.endpoint import Endpoint
from ingero.transport.endpoint import Protocol as Wire

MAX_REPLY_BYTES = 64 * 1024
MAX_RETRY_AFTER_S = 300.0  # an absurd value must not stop an agent from pushing
RETRY_DELAY_S = 0.2
PACKET_BYTES: Final = 1400  # a smaller body takes one packet, compressed or not
GZIP_LEVEL: Final = 1  # higher levels cost more time and save little of OTLP
IDLE_CONNECTION_S = 30.0  # new connections follow changes of DNS to other replicas
T = TypeVar("T")
_NOT_HTTP: Final = f"{NOT_HTTP}/1.1; a gRPC port needs --fleet-protocol grpc"
_SECONDS = re.compile(r"\d{1,9}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class PushReply:
    """The outcome of a push, and what its reply carried; errors carry threshold headers, too."""

    outcome: PushOutcome
    detail: str = ""
    retry_after_s: float | None = None
    delivery: Delivery = Delivery.MISS
    threshold: ServedThreshold | None = None
    verdicts: tuple[Verdict, ...] = ()
    asks: tuple[Ask, ...] = ()
    rejected_points: int = 0
    timed_out: bool = False


def no_token() -> None:
    """Return no token: the default where Fleet requires none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """How to connect; headers and the current token are sent with every request.

    With `is_compressed`, bodies that do not fit into a packet are sent as gzip. With `is_patient`,
    a push that timed out is not repeated at once: a busy receiver may still be reading it.
    """

    timeout_s: float
    tls: ssl.SSLContext | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    token: Callable[[], str | None] = no_token
    is_compressed: bool = False
    is_patient: bool = False

    def repeats(self, reply: "PushReply") -> bool:
        """Return whether a push with this reply is sent once more."""
        is_late = self.is_patient and reply.timed_out
        return reply.outcome is PushOutcome.TRANSPORT and not is_late

    def __post_init__(self) -> None:
        for name, value in self.headers.items():
            if re.search(r"[\r\n\0]", name + value):
                raise ConfigError(f"header {name!r} contains a line break")
            if not (name + value).isascii():
                raise ConfigError(f"header {name!r} must be ASCII")

    def request_headers(self) -> dict[str, str]:
        """Return the headers of the next request."""
        return dict(self.headers) | authorization(self.token())


class MetricsClient(Protocol):
    """What a service needs that sends measurements now and then, over HTTP or gRPC."""

    async def push(self, request: MetricsRequest) -> PushReply: ...


class PushClient(Protocol):
    """A client for pushes, over HTTP or gRPC."""

    async def push(self, request: MetricsRequest, *, retry: bool = True) -> PushReply: ...

    async def close(self) -> None: ...


class LogsClient(Protocol):
    """A client for log records, over HTTP or gRPC."""

    async def push_logs(self, request: LogsRequest) -> PushReply: ...

    async def close(self) -> None: ...


class HttpPush:
    """Pushes over HTTP; redirects are refused, as they would send the certificate elsewhere."""

    def __init__(
        self,
        endpoint: Endpoint,
        cluster: str,
        node: str,
        options: ClientOptions,
        chance: random.Random,
    ) -> None:
        self._url = URL(endpoint.push_url(cluster, node), encoded=True)
        self._traces_url = URL(endpoint.traces_url, encoded=True)
        self._logs_url = URL(endpoint.logs_url(cluster, node), encoded=True)
        self._encoding = Encoding.JSON if endpoint.protocol is Wire.HTTP_JSON else Encoding.PROTOBUF
        self._options = options
        self._chance = chance
        self._session: aiohttp.ClientSession | None = None

    async def push(self, request: MetricsRequest, *, retry: bool = True) -> PushReply:
        """Push once, and once more after a network error; any reply is final."""
        body = encode_json(request) if self._encoding is Encoding.JSON else encode_protobuf(request)
        reply = await self._post(self._url, body, self._encoding)
        if retry and self._options.repeats(reply):
            await asyncio.sleep(RETRY_DELAY_S * self._chance.uniform(0.8, 1.2))
            reply = await self._post(self._url, body, self._encoding)
        return reply

    async def push_spans(self, request: TracesRequest) -> PushReply:
        """Push spans, always as protobuf, like other exporters of spans."""
        return await self._post(self._traces_url, encode_protobuf(request), Encoding.PROTOBUF)

    async def push_logs(self, request: LogsRequest) -> PushReply:
        """Push log records once, always as protobuf."""
        return await self._post(self._logs_url, encode_protobuf(request), Encoding.PROTOBUF)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _post(self, url: URL, body: bytes, encoding: Encoding) -> PushReply:
        headers = {"Content-Type": encoding.value, **self._options.request_headers()}
        if self._options.is_compressed and len(body) > PACKET_BYTES:
            body, headers["Content-Encoding"] = gzip.compress(body, GZIP_LEVEL), "gzip"
        try:
            async with self._open().post(
                url, data=body, headers=headers, allow_redirects=False
            ) as response:
                reply = await read_reply_beginning(response, MAX_REPLY_BYTES + 1)
                return _http_reply(response.status, response.headers, reply, encoding)
        except (aiohttp.ClientSSLError, ssl.SSLError) as error:
            if is_plaintext(error):
                return PushReply(outcome=PushOutcome.TRANSPORT, detail=NO_TLS)
            return PushReply(outcome=PushOutcome.AUTH, detail=f"TLS: {error}")
        except aiohttp.ClientResponseError:
            return PushReply(outcome=PushOutcome.TRANSPORT, detail=_NOT_HTTP)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            return PushReply(
                outcome=PushOutcome.TRANSPORT,
                detail=reason_of(url.scheme, error),
                timed_out=isinstance(error, TimeoutError),
            )

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = open_session(self._options)
        return self._session


def reason_of(scheme: str, error: Exception) -> str:
    """Return why there is no answer; a server with TLS closes connections that come without it."""
    is_closed = isinstance(error, aiohttp.ServerDisconnectedError | ConnectionResetError)
    is_closed |= isinstance(error, aiohttp.ClientOSError) and error.errno == errno.ECONNRESET
    return NEEDS_TLS if is_closed and scheme == "http" else plain_reason(error)


def open_session(options: ClientOptions) -> aiohttp.ClientSession:
    """Return a session for one host: a timeout for whole requests, no cookies."""
    connector = aiohttp.TCPConnector(
        limit=2,
        ssl=options.tls if options.tls is not None else True,
        keepalive_timeout=IDLE_CONNECTION_S,
    )
    return aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=options.timeout_s),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        max_line_size=16 * 1024,
        max_field_size=16 * 1024,
    )


def _http_reply(
    status: int, headers: Mapping[str, str], body: bytes, encoding: Encoding
) -> PushReply:
    retry_after_s = (
        parse_retry_after(headers.get("Retry-After"), time.time()) if status in (429, 503) else None
    )
    outcome, detail = _outcome(status, retry_after_s)
    rejected = 0
    if len(body) > MAX_REPLY_BYTES:
        outcome, detail = (
            PushOutcome.SERVER_ERROR,
            f"the reply is larger than {MAX_REPLY_BYTES} bytes",
        )
    elif outcome is PushOutcome.OK:
        rejected, detail = partial_success(body, encoding)
    return with_delivery(
        PushReply(
            outcome=outcome, detail=detail, retry_after_s=retry_after_s, rejected_points=rejected
        ),
        headers.get(names.THRESHOLD_HEADER),
        headers.get(names.QUORUM_HEADER),
        headers.get(names.VERDICT_HEADER),
        headers.get(names.QUORUM_REASON_HEADER),
        headers.get(names.ASK_HEADER),
    )


NOT_OTLP: Final = "no OTLP receiver is at this address; Fleet takes pushes on port 4318"


def _outcome(status: int, retry_after_s: float | None) -> tuple[PushOutcome, str]:
    if 200 <= status < 300:
        return PushOutcome.OK, ""
    if status == 429 or (status == 503 and retry_after_s is not None):
        return PushOutcome.SHED, f"HTTP {status}"
    if status in (401, 403):
        return PushOutcome.AUTH, f"HTTP {status}"
    if status >= 500:
        return PushOutcome.SERVER_ERROR, f"HTTP {status}"
    if status in (404, 405):
        return PushOutcome.REFUSED, f"HTTP {status}: {NOT_OTLP}"
    return PushOutcome.REFUSED, f"HTTP {status}"


def partial_success(body: bytes, encoding: Encoding) -> tuple[int, str]:
    """Return the number of points that the receiver rejected, and why."""
    try:
        partial = decode_response(MetricsRequest, body, encoding)
    except MalformedPush:
        return 0, ""  # the status says accepted, whatever a proxy wrote into the body
    return partial.rejected, partial.message


def with_delivery(
    reply: PushReply,
    threshold: str | None,
    quorum: str | None,
    verdicts: str | None,
    reason: str | None,
    asks: str | None,
) -> PushReply:
    """Return the reply with threshold, verdicts and asks; what is unreadable is ignored."""
    delivery, served = decode_headers(threshold, quorum, reason)
    return replace(
        reply,
        delivery=delivery,
        threshold=served,
        verdicts=_decoded(decode_verdicts, verdicts),
        asks=_decoded(decode_asks, asks),
    )


def _decoded(decode: Callable[[str], Iterable[T]], text: str | None) -> tuple[T, ...]:
    try:
        return tuple(decode(text)) if text else ()
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return ()


def parse_retry_after(text: str | None, now_unix_s: float) -> float | None:
    """Return the seconds to wait, at most five minutes; 0 for a past date, None if invalid."""
    written = (text or "").strip()
    if _SECONDS.fullmatch(written):
        return min(float(written), MAX_RETRY_AFTER_S)
    try:
        moment = email.utils.parsedate_to_datetime(written)
    except ValueError:
        return None
    return min(max(moment.timestamp() - now_unix_s, 0.0), MAX_RETRY_AFTER_S)
