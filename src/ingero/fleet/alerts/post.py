"""Posts JSON to a target, and tells which failures are worth another try."""

import re
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import aiohttp

from ingero.transport.bounded import read_reply_beginning
from ingero.transport.connect import plain_reason
from ingero.transport.tls import ClientTls, client_context

_FINAL: Final = frozenset({400, 405, 413, 415, 422})  # the same message would be refused again
_CONFLICT: Final = 409
_MAX_REPLY_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class Delivery:
    """The outcome of one message; empty `why` means that it arrived, or that none was needed."""

    why: str = ""
    is_final: bool = False
    is_needless: bool = False


ARRIVED: Final = Delivery()
NEEDLESS: Final = Delivery(is_needless=True)  # the target has no word for such a message


class Poster:
    """Sends requests to one address, without following redirects, which would carry secrets."""

    def __init__(self, timeout_s: float, ca_file: Path | None = None) -> None:
        self._timeout_s, self._ca_file = timeout_s, ca_file
        self._session: aiohttp.ClientSession | None = None

    async def send(
        self,
        url: str,
        body: bytes,
        headers: dict[str, str],
        *,
        method: str = "POST",
        may_exist: bool = False,
        is_secret_url: bool = False,
    ) -> Delivery:
        """Send one body; with `may_exist`, a conflict means that it arrived before.

        An answer that repeats a secret URL is kept without its path and query.
        """
        headers = {"Content-Type": "application/json", **headers}
        try:
            async with self._open(url).request(
                method, url, data=body, headers=headers, allow_redirects=False
            ) as reply:
                answer = await read_reply_beginning(reply, _MAX_REPLY_BYTES)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return Delivery(plain_reason(error))
        is_there = may_exist and reply.status == _CONFLICT
        if 200 <= reply.status < 300 or is_there:
            return ARRIVED
        said = answer.decode(errors="replace").strip()
        if is_secret_url:
            said = _without_parts(said, url)
        return Delivery(f"HTTP {reply.status}: {said[:200]}", reply.status in _FINAL)

    def _open(self, url: str) -> aiohttp.ClientSession:
        if self._session is None:
            tls: ssl.SSLContext | bool = True
            if url.startswith("https://"):
                tls = client_context(ClientTls(ca=self._ca_file, cert=None, key=None))
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=self._timeout_s),
                connector=aiohttp.TCPConnector(limit=2, ssl=tls),
            )
        return self._session

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None


def _without_parts(answer: str, url: str) -> str:
    parts = urlsplit(url)
    for part in re.findall(r"[^/?&=]{8,}", f"{parts.path}?{parts.query}"):
        answer = answer.replace(part, "…").replace(unquote(part), "…")
    return answer
