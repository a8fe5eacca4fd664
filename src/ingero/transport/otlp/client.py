"""Sends OTLP metrics to Fleet, over HTTP, and reads what the reply brings back. Failure is a value here."""

import asyncio
import email.utils
import random
import re
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import aiohttp
import msgspec
from yarl import URL

from ingero.contract import names
from ingero.contract.otlp.body import Encoding, decode_response
from ingero.contract.otlp.codec import encode_json, encode_protobuf
from ingero.contract.otlp.values import MetricsRequest, TracesRequest
from ingero.contract.threshold import Delivery, ServedThreshold, decode_headers
from ingero.contract.verdict import Verdict, decode_verdicts
from ingero.core.health.modes import PushOutcome
from ingero.errors import ConfigError, MalformedPush
from ingero.transport.bearer import authorization
from ingero.transport.bounded import read_reply_beginning
from ingero.transport.endpoint import Endpoint
from ingero.transport.endpoint import Protocol as Wire

MAX_REPLY_BYTES = 64 * 1024
MAX_RETRY_AFTER_S = 300.0  # an absurd value must not silence an agent
RETRY_DELAY_S = 0.2
IDLE_CONNECTION_S = 30.0  # a new connection now and then follows DNS to other replicas
_SECONDS = re.compile(r"\d{1,9}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class PushReply:
    """What a push came to, and what came back with it. Threshold headers are read on every answer, errors too."""

    outcome: PushOutcome
    detail: str = ""
    retry_after_s: float | None = None
    delivery: Delivery = Delivery.MISS
    threshold: ServedThreshold | None = None
    verdicts: tuple[Verdict, ...] = ()
    rejected_points: int = 0


def no_token() -> None:
    """Stands in where no token is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """How to connect; headers go with every request, and so does the token as it is at that moment."""

    timeout_s: float
    tls: ssl.SSLContext | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    token: Callable[[], str | None] = no_token

    def __post_init__(self) -> None:
        for name, value in self.headers.items():
            if re.search(r"[\r\n\0]", name + value):
                raise ConfigError(f"header {name!r} contains a line break")
            if not (name + value).isascii():
                raise ConfigError(f"header {name!r} must be ASCII")

    def request_headers(self) -> dict[str, str]:
        """What goes with the next request."""
        return dict(self.headers) | authorization(self.token())


class PushClient(Protocol):
    """HTTP and gRPC look the same from here."""

    async def push(self, request: MetricsRequest, *, retry: bool = True) -> PushReply: ...

    async def close(self) -> None: ...


class HttpPush:
    """Posts to /v1/metrics. Redirects are refused: they would take the client certificate elsewhere."""

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
        self._encoding = Encoding.JSON if endpoint.protocol is Wire.HTTP_JSON else Encoding.PROTOBUF
        self._options = options
        self._chance = chance
        self._session: aiohttp.ClientSession | None = None

    async def push(self, request: MetricsRequest, *, retry: bool = True) -> PushReply:
        """One push; a network error is tried once more, any answer is final."""
        body = encode_json(request) if self._encoding is Encoding.JSON else encode_protobuf(request)
        reply = await self._post(self._url, body, self._encoding)
        if retry and reply.outcome is PushOutcome.TRANSPORT:
            await asyncio.sleep(RETRY_DELAY_S * self._chance.uniform(0.8, 1.2))
            reply = await self._post(self._url, body, self._encoding)
        return reply

    async def push_spans(self, request: TracesRequest) -> PushReply:
        """Spans are always protobuf, as exporters of spans send them."""
        return await self._post(self._traces_url, encode_protobuf(request), Encoding.PROTOBUF)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _post(self, url: URL, body: bytes, encoding: Encoding) -> PushReply:
        headers = {"Content-Type": encoding.value, **self._options.request_headers()}
        try:
            async with self._open().post(
                url, data=body, headers=headers, allow_redirects=False
            ) as response:
                reply = await read_reply_beginning(response, MAX_REPLY_BYTES + 1)
                return _http_reply(response.status, response.headers, reply, encoding)
        except (aiohttp.ClientSSLError, ssl.SSLError) as error:
            return PushReply(outcome=PushOutcome.AUTH, detail=f"TLS: {error}")
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            return PushReply(
                outcome=PushOutcome.TRANSPORT, detail=str(error) or type(error).__name__
            )

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = open_session(self._options)
        return self._session


def open_session(options: ClientOptions) -> aiohttp.ClientSession:
    """A session with our limits: one host, whole-request timeout, no cookies."""
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
    )


def _outcome(status: int, retry_after_s: float | None) -> tuple[PushOutcome, str]:
    if 200 <= status < 300:
        return PushOutcome.OK, ""
    if status == 429 or (status == 503 and retry_after_s is not None):
        return PushOutcome.SHED, f"HTTP {status}"
    if status in (401, 403):
        return PushOutcome.AUTH, f"HTTP {status}"
    if status >= 500:
        return PushOutcome.SERVER_ERROR, f"HTTP {status}"
    return PushOutcome.REFUSED, f"HTTP {status}"


def partial_success(body: bytes, encoding: Encoding) -> tuple[int, str]:
    """Points the receiver did not take, and why."""
    try:
        partial = decode_response(MetricsRequest, body, encoding)
    except MalformedPush:
        return 0, ""  # a 2xx is a 2xx, whatever a proxy wrote into it
    return partial.rejected, partial.message


def with_delivery(
    reply: PushReply, threshold: str | None, quorum: str | None, verdicts: str | None
) -> PushReply:
    """The reply with what Fleet sent along; an unreadable verdict is ignored, as older agents ignore all."""
    delivery, served = decode_headers(threshold, quorum)
    try:
        found = tuple(decode_verdicts(verdicts)) if verdicts else ()
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        found = ()
    return PushReply(
        outcome=reply.outcome,
        detail=reply.detail,
        retry_after_s=reply.retry_after_s,
        delivery=delivery,
        threshold=served,
        verdicts=found,
        rejected_points=reply.rejected_points,
    )


def parse_retry_after(text: str | None, now_unix_s: float) -> float | None:
    """Seconds to wait, at most five minutes; None for nothing, garbage and negative values. A past date is 0."""
    written = (text or "").strip()
    if _SECONDS.fullmatch(written):
        return min(float(written), MAX_RETRY_AFTER_S)
    try:
        moment = email.utils.parsedate_to_datetime(written)
    except ValueError:
        return None
    return min(max(moment.timestamp() - now_unix_s, 0.0), MAX_RETRY_AFTER_S)
