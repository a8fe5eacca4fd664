"""Sends one question to one node: TLS, pinned certificates, and failures as values."""

import asyncio
import contextlib
import errno
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from ingero.contract.names import FLEET_TOKEN_VARIABLE, NODE_NAME_HEADER
from ingero.errors import AuthError, TooLarge
from ingero.transport.bearer import authorization
from ingero.transport.bounded import read_reply_beginning, read_reply_body
from ingero.transport.fanout.failures import (
    NO_SERVER,
    changed_certificate,
    connection_failure,
    error_text,
    one_line,
)
from ingero.transport.fanout.nodes import FanoutPolicy, split_host_port, split_scheme
from ingero.transport.tls import (
    ClientTls,
    client_context,
    fingerprint,
    is_loopback,
    unverified_context,
)

ERROR_BODY_BYTES: Final = 4096
ERROR_TEXT_LENGTH: Final = 512
NAME_LENGTH: Final = 253


@dataclass(frozen=True, slots=True)
class NodeReply:
    """The answer of one node, or why there is none; name and failure are one printable line."""

    address: str
    name: str
    body: bytes = b""
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """A request that every node gets; one with a body is a POST."""

    path: str
    body: Mapping[str, Any] | None = None


class NodeClient:
    """Connections to nodes, kept open between questions unless only one will be asked."""

    def __init__(self, policy: FanoutPolicy, *, keep_open: bool) -> None:
        self.policy = policy
        self._keep_open = keep_open
        self._context = client_context(policy.tls, ssl.TLSVersion.TLSv1_3)
        self._pinned_context = unverified_context(policy.tls, ssl.TLSVersion.TLSv1_3)
        self._plain: set[str] = set()  # nodes that were found to answer without TLS
        self._sessions: dict[bytes, aiohttp.ClientSession] = {}  # by pinned fingerprint, or b""

    async def close(self) -> None:
        """Close every connection."""
        for session in self._sessions.values():
            await session.close()

    async def ask(self, node: str, question: Question, *, is_last: bool) -> NodeReply:
        """Return the node's answer, or the reason why there is none."""
        try:
            return await self.request(node, question, is_last=is_last)
        except TimeoutError:
            return NodeReply(node, node, failure=f"no answer within {self.policy.timeout_s:g} s")
        except aiohttp.ClientConnectorCertificateError as error:
            return NodeReply(node, node, failure=await self._unknown_certificate(node, error))
        except aiohttp.ServerFingerprintMismatch as error:
            return NodeReply(node, node, failure=changed_certificate(node, error))
        except (UnicodeError, aiohttp.InvalidURL):
            return NodeReply(node, node, failure="cannot connect: not a valid host name")
        except (aiohttp.ClientError, OSError, ssl.SSLError) as error:
            return NodeReply(
                node, node, failure=connection_failure(error) + self._hint(node, error)
            )

    async def request(self, node: str, question: Question, *, is_last: bool) -> NodeReply:
        """Return the node's answer; raise aiohttp's errors, TimeoutError or OSError."""
        pinned = b"" if self._url(node).startswith("http://") else self.policy.pinned(node)
        was_plain = node in self._plain
        is_closing = is_last and not self._keep_open  # an open connection holds 256 KiB
        try:
            async with self._session(pinned).request(
                "GET" if question.body is None else "POST",
                self._url(node) + question.path,
                json=question.body,
                allow_redirects=False,
                headers={"Connection": "close"} if is_closing else {},
                ssl=self._pinned_context if pinned else self._context,
            ) as reply:
                return await self._read(node, reply)
        except aiohttp.ClientConnectorSSLError as error:
            if was_plain or not self._may_be_plain(node, error):
                raise
            self._plain.add(node)
            return await self.request(node, question, is_last=is_last)

    async def _read(self, node: str, reply: aiohttp.ClientResponse) -> NodeReply:
        name = one_line(reply.headers.get(NODE_NAME_HEADER, ""))[:NAME_LENGTH] or node
        if reply.status != 200:
            text = error_text(
                (await read_reply_beginning(reply, ERROR_BODY_BYTES)).decode("utf-8", "replace")
            )
            failure = f"HTTP {reply.status}: {text or reply.reason or 'without a reason'}"
            hints = {401: self._token_hint(), 404: f"; {NO_SERVER}"}
            hint = hints.get(reply.status, "")
            return NodeReply(node, name, failure=one_line(failure)[:ERROR_TEXT_LENGTH] + hint)
        limit_bytes = self.policy.max_reply_bytes
        try:
            return NodeReply(node, name, await read_reply_body(reply, limit_bytes))
        except TooLarge:
            failure = f"its answer is larger than {limit_bytes >> 20} MiB; add a LIMIT"
            return NodeReply(node, name, failure=failure)

    def _token_hint(self) -> str:
        places = f"${FLEET_TOKEN_VARIABLE} or fleet.token_file of ingero.yaml"
        return f"; not the token in {places}" if self.policy.token else f"; put it into {places}"

    def _session(self, pinned: bytes) -> aiohttp.ClientSession:
        """Return the session for a fingerprint, because a connector checks one fingerprint or none.

        The TLS context, with its client certificate, is given with each request.
        """
        if pinned not in self._sessions:
            headers = authorization(self.policy.token)
            timeout = aiohttp.ClientTimeout(total=self.policy.timeout_s)
            trust = aiohttp.Fingerprint(pinned) if pinned else True
            connector = aiohttp.TCPConnector(
                limit=0, keepalive_timeout=60, enable_cleanup_closed=False, ssl=trust
            )
            self._sessions[pinned] = aiohttp.ClientSession(
                connector=connector, timeout=timeout, headers=headers, trust_env=False
            )
        return self._sessions[pinned]

    def _url(self, node: str) -> str:
        scheme, host = split_scheme(node)
        if not scheme:
            scheme = "http" if node in self._plain else "https"
        return f"{scheme}://{host}"

    def _may_be_plain(self, node: str, error: aiohttp.ClientConnectorSSLError) -> bool:
        """Whether to ask again without TLS: on loopback or where allowed, never if pinned."""
        scheme, host = split_scheme(node)
        if self.policy.pinned(node):
            return False
        is_plain = "WRONG_VERSION_NUMBER" in str(error) or "RECORD_LAYER_FAILURE" in str(error)
        return not scheme and is_plain and (is_loopback(host) or not self.policy.require_tls)

    def _hint(self, node: str, error: Exception) -> str:
        """Return advice about client certificates where the server closed the connection.

        A TLS 1.3 server refuses a client certificate, or its absence, after the handshake.
        """
        is_closed = isinstance(error, aiohttp.ServerDisconnectedError) or (
            isinstance(error, OSError)
            and not isinstance(error, aiohttp.ClientConnectorError)
            and (error.errno in (errno.ECONNRESET, errno.EPIPE) or "ALERT" in str(error))
        )
        if not is_closed or self._url(node).startswith("http://"):
            return ""
        if self.policy.tls.cert is not None:
            return "; does it accept the certificate given with --client-cert?"
        return "; if it requires a client certificate, give --client-cert and --client-key"

    async def _unknown_certificate(
        self, node: str, error: aiohttp.ClientConnectorCertificateError
    ) -> str:
        host = split_scheme(node)[1]
        try:
            seen = await peer_fingerprint(node, self.policy.timeout_s)
        except (OSError, TimeoutError, AuthError) as again:
            return f"its certificate is not trusted and could not be read again: {again}"
        why = getattr(error.certificate_error, "verify_message", "") or "it does not verify"
        if self.policy.tls.ca is not None:
            ca = self.policy.tls.ca
            return f"its certificate is not accepted with {ca}: {why} (fingerprint {seen})"
        return (
            f"its certificate is unknown: {why} (fingerprint {seen}); "
            f"compare it with what the node printed, then run `ingero nodes trust {host}`"
        )


async def peer_fingerprint(node: str, timeout_s: float) -> str:
    """Return the fingerprint of the certificate that a node presents, trusted or not."""
    context = unverified_context(ClientTls())
    host, port = split_host_port(node)
    async with asyncio.timeout(timeout_s):
        _, writer = await asyncio.open_connection(host, port, ssl=context)
    try:
        return fingerprint(writer.get_extra_info("ssl_object").getpeercert(binary_form=True))
    finally:
        writer.transport.abort()  # nothing more to exchange, so do not wait for a TLS shutdown
        with contextlib.suppress(OSError):
            await writer.wait_closed()
