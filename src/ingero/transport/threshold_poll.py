"""Asks Fleet for the threshold, for agents whose push replies do not carry it."""

import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import aiohttp
from yarl import URL

from ingero.contract.names import JSON_TYPE, QUORUM_REASON_HEADER
from ingero.contract.threshold import Delivery, ServedThreshold, decode_answer
from ingero.transport.bounded import read_reply_beginning
from ingero.transport.connect import plain_reason
from ingero.transport.otlp.client import ClientOptions, open_session, parse_retry_after

MAX_ANSWER_BYTES = 8 * 1024


class PollOutcome(StrEnum):
    """The outcome of a poll; each is a label value of the poll counter."""

    OK = "ok"
    CLIENT_ERROR = "client_error"  # network, redirect, 4xx, too large, not a threshold
    SERVER_ERROR = "server_error"
    RATE_LIMITED = "rate_limited"


@dataclass(frozen=True, slots=True)
class PollReply:
    """The answer to a poll; `wait_s` replaces the next interval, `threshold` may be absent."""

    outcome: PollOutcome
    threshold: ServedThreshold | None = None
    wait_s: float | None = None
    detail: str = ""


class ThresholdPoll:
    """Requests the threshold with the same TLS files and headers as pushes."""

    def __init__(self, url: str, options: ClientOptions, interval_s: float) -> None:
        self._url = URL(url, encoded=True)
        self._options = options
        self._interval_s = interval_s
        self._session: aiohttp.ClientSession | None = None

    async def ask(self) -> PollReply:
        """Request the threshold once; redirects are refused and the body is limited."""
        if self._session is None:
            self._session = open_session(self._options)
        headers = {"Accept": JSON_TYPE, **self._options.request_headers()}
        try:
            async with self._session.get(
                self._url, headers=headers, allow_redirects=False
            ) as response:
                body = await read_reply_beginning(response, MAX_ANSWER_BYTES + 1)
                return self._read(response.status, response.headers, body)
        except (aiohttp.ClientError, TimeoutError, OSError, ssl.SSLError, ValueError) as error:
            return PollReply(PollOutcome.CLIENT_ERROR, detail=plain_reason(error))

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _read(self, status: int, headers: Mapping[str, str], body: bytes) -> PollReply:
        wait_s = parse_retry_after(headers.get("Retry-After"), time.time())
        if status == 429:
            return PollReply(
                PollOutcome.RATE_LIMITED,
                wait_s=2 * self._interval_s if wait_s is None else wait_s,
                detail="HTTP 429",
            )
        if status >= 500:
            return PollReply(PollOutcome.SERVER_ERROR, wait_s=wait_s, detail=f"HTTP {status}")
        if status != 200:
            return PollReply(PollOutcome.CLIENT_ERROR, detail=f"HTTP {status}")
        if len(body) > MAX_ANSWER_BYTES:
            return PollReply(
                PollOutcome.CLIENT_ERROR,
                detail=f"the answer is larger than {MAX_ANSWER_BYTES} bytes",
            )
        delivery, served = decode_answer(body, headers.get(QUORUM_REASON_HEADER))
        if delivery is not Delivery.HIT or served is None:
            return PollReply(PollOutcome.CLIENT_ERROR, detail="the answer is not a threshold")
        return PollReply(PollOutcome.OK, served if served.value else None)
