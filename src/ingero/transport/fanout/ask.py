"""One question to many nodes at once: replies in the order the nodes were named, failures as values.

A reply is kept as bytes until it is its turn, so that memory holds compact answers and never all rows as objects.
"""

import asyncio
import contextlib
import errno
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self, TypeVar

import aiohttp
import msgspec

from ingero.contract.api_paths import NODE_TIME
from ingero.contract.names import FLEET_TOKEN_VARIABLE, NODE_NAME_HEADER
from ingero.contract.node_api import TimeReply
from ingero.core.clocks.skew import ClockOffset, TimeSample, estimate_offset
from ingero.core.rowmerge import RowMerge
from ingero.errors import AuthError, TooLarge
from ingero.transport.bearer import authorization
from ingero.transport.bounded import read_reply_beginning, read_reply_body
from ingero.transport.fanout.failures import (
    NOT_DECODABLE,
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

MAX_REPLY_BYTES: Final = 32 << 20
ERROR_BODY_BYTES: Final = 4096
ERROR_TEXT_LENGTH: Final = 512
NAME_LENGTH: Final = 253
SKEW_SAMPLES: Final = 3
FRESH_NS: Final = 60_000_000_000  # a clock that was looked at this recently is not looked at again
AT_ONCE: Final = 128  # more at a time only fills memory: replies are printed in order anyway
BACKLOG_BYTES: Final = 32 << 20  # of replies that wait for a slower node before them
Answer = TypeVar("Answer")
decode_time = msgspec.json.Decoder(TimeReply).decode


@dataclass(frozen=True, slots=True)
class NodeReply:
    """What one node said, or why it did not; a silent node is often the answer. Name and failure are one clean line."""

    address: str
    name: str
    body: bytes = b""
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """What to ask every node."""

    path: str
    body: Mapping[str, Any] | None = None  # a question with a body is a POST


def decode_reply(
    reply: NodeReply, decode: Callable[[bytes], Answer], merge: RowMerge
) -> Answer | None:
    """The decoded answer, or None after noting in `merge` why there is none."""
    if reply.failure is not None:
        merge.fail(reply.address, reply.failure)
        return None
    try:
        return decode(reply.body)
    except NOT_DECODABLE as error:
        merge.fail(reply.address, f"its answer cannot be read: {error}")
        return None


class _Backlog:
    """Replies that are not yet given out: while they fill their room, only the next in line is still asked."""

    def __init__(self) -> None:
        self._turn = 0
        self._bytes = 0
        self._changed = asyncio.Condition()

    async def room_for(self, position: int) -> None:
        async with self._changed:
            await self._changed.wait_for(
                lambda: self._bytes < BACKLOG_BYTES or position == self._turn
            )

    def arrived(self, reply: NodeReply) -> None:
        self._bytes += len(reply.body)

    async def given_out(self, reply: NodeReply) -> None:
        async with self._changed:
            self._turn += 1
            self._bytes -= len(reply.body)
            self._changed.notify_all()


class Fanout:
    """Connections to many nodes, kept open between questions unless only one will be asked."""

    def __init__(
        self,
        policy: FanoutPolicy,
        clock_ns: Callable[[], int] = time.time_ns,
        *,
        keep_open: bool = True,
    ) -> None:
        self.policy = policy
        self._keep_open = keep_open
        self._offsets: dict[str, ClockOffset] = {}
        self._measured_ns: dict[str, int] = {}
        self._room = asyncio.Semaphore(AT_ONCE)
        self._names: dict[str, str] = {}  # by address
        self._first_called: dict[str, str] = {}  # address by name
        self._unread: list[NodeReply] = []
        self._clock_ns = clock_ns
        self._context = client_context(policy.tls, ssl.TLSVersion.TLSv1_3)
        self._plain: set[str] = set()
        self._pinned_context = unverified_context(policy.tls, ssl.TLSVersion.TLSv1_3)
        self._sessions: dict[
            bytes, aiohttp.ClientSession
        ] = {}  # by pinned fingerprint, none for all others

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for session in self._sessions.values():
            await session.close()

    def _session(self, pinned: bytes) -> aiohttp.ClientSession:
        """A connector checks one fingerprint or none, whatever context, client certificate and all, a request names."""
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

    async def ask(
        self, nodes: Sequence[str], question: Question, *, measure_skew: bool = True
    ) -> AsyncIterator[NodeReply]:
        """Ask all nodes at once; yields replies in the order of `nodes`, each as soon as those before it are in.

        A node's clock is looked at after its answer, on the same connection: a second handshake would cost more than
        the three short questions, and the answer does not wait for them.
        """
        clocks: list[asyncio.Task[None]] = []
        backlog = _Backlog()

        async def one(position: int, node: str) -> NodeReply:
            looks = measure_skew and self._clock_ns() > self._measured_ns.get(node, 0) + FRESH_NS
            await self._room.acquire()
            is_measuring = False
            try:
                await backlog.room_for(position)
                reply = await self._ask_one(node, question, is_last=not looks)
                backlog.arrived(reply)
                is_measuring = looks and reply.failure is None
            finally:
                if not is_measuring:
                    self._room.release()
            if (
                is_measuring
            ):  # keeps its place meanwhile, so that there are never more connections than places
                clocks.append(asyncio.create_task(self._measure(node)))
                clocks[-1].add_done_callback(lambda _: self._room.release())
            return reply

        asked = deque(
            asyncio.create_task(one(position, node)) for position, node in enumerate(nodes)
        )
        try:
            while asked:
                reply = await asked[0]
                asked.popleft()  # lets go of the reply: thousands of them would fill the memory
                await backlog.given_out(reply)
                yield self._named(reply)
                del reply
            await asyncio.gather(*clocks)
        finally:
            self._unread = [task.result() for task in asked if task.done() and not task.cancelled()]
            running: list[asyncio.Task[Any]] = [*asked, *clocks]
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def unread(self) -> list[NodeReply]:
        """After `ask` was left early: the replies that had arrived behind one still awaited, in node order."""
        return [self._named(reply) for reply in self._unread]

    def offsets(self, nodes: Sequence[str]) -> dict[str, ClockOffset]:
        """Clock offsets measured so far, by node name, in the order of `nodes`."""
        known = [node for node in nodes if node in self._offsets and node in self._names]
        return {self._names[node]: self._offsets[node] for node in known}

    def _named(self, reply: NodeReply) -> NodeReply:
        """Of two nodes that call themselves the same, the later one is told apart by its address."""
        is_first = self._first_called.setdefault(reply.name, reply.address) == reply.address
        self._names[reply.address] = reply.name if is_first else f"{reply.name} ({reply.address})"
        return replace(reply, name=self._names[reply.address])

    async def _ask_one(self, node: str, question: Question, *, is_last: bool) -> NodeReply:
        try:
            return await self._request(node, question, is_last=is_last)
        except TimeoutError:
            return NodeReply(node, node, failure=f"no answer within {self.policy.timeout_s:g} s")
        except aiohttp.ClientConnectorCertificateError as error:
            return NodeReply(node, node, failure=await self._unknown_certificate(node, error))
        except aiohttp.ServerFingerprintMismatch as error:
            return NodeReply(node, node, failure=changed_certificate(node, error))
        except (UnicodeError, aiohttp.InvalidURL):
            return NodeReply(node, node, failure="cannot connect: that is no host name")
        except (aiohttp.ClientError, OSError, ssl.SSLError) as error:
            return NodeReply(
                node, node, failure=connection_failure(error) + self._hint(node, error)
            )

    async def _request(self, node: str, question: Question, *, is_last: bool) -> NodeReply:
        pinned = b"" if self._url(node).startswith("http://") else self.policy.pinned(node)
        method = "GET" if question.body is None else "POST"
        was_plain = node in self._plain
        leaving = (
            {} if self._keep_open or not is_last else {"Connection": "close"}
        )  # 256 KiB each while open
        try:
            async with self._session(pinned).request(
                method, self._url(node) + question.path, json=question.body, allow_redirects=False, headers=leaving,
                ssl=self._pinned_context if pinned else self._context,
            ) as reply:  # fmt: skip
                return await self._read(node, reply)
        except aiohttp.ClientConnectorSSLError as error:
            if was_plain or not self._may_be_plain(node, error):
                raise
            self._plain.add(node)
            return await self._request(node, question, is_last=is_last)

    async def _read(self, node: str, reply: aiohttp.ClientResponse) -> NodeReply:
        name = one_line(reply.headers.get(NODE_NAME_HEADER, ""))[:NAME_LENGTH] or node
        if reply.status != 200:
            text = error_text(
                (await read_reply_beginning(reply, ERROR_BODY_BYTES)).decode("utf-8", "replace")
            )
            failure = f"HTTP {reply.status}: {text or reply.reason or 'without a reason'}"
            hint = self._token_hint() if reply.status == 401 else ""
            return NodeReply(node, name, failure=one_line(failure)[:ERROR_TEXT_LENGTH] + hint)
        try:
            return NodeReply(node, name, await read_reply_body(reply, MAX_REPLY_BYTES))
        except TooLarge:
            limit = f"{MAX_REPLY_BYTES >> 20} MiB"
            return NodeReply(node, name, failure=f"its answer is larger than {limit}; add a LIMIT")

    def _token_hint(self) -> str:
        places = f"${FLEET_TOKEN_VARIABLE} or fleet.token_file of ingero.yaml"
        return f"; not the token in {places}" if self.policy.token else f"; put it into {places}"

    async def _measure(self, node: str) -> None:
        """Three looks at a node's clock; a node that does not tell is left out, the question itself goes on."""
        samples = []
        for number in range(SKEW_SAMPLES):
            sent = self._clock_ns()
            try:
                reply = await self._request(
                    node, Question(NODE_TIME), is_last=number == SKEW_SAMPLES - 1
                )
                received = self._clock_ns()
                samples.append(TimeSample(sent, received, decode_time(reply.body).timestamp_ns))
            except (aiohttp.ClientError, OSError, TimeoutError, ssl.SSLError, *NOT_DECODABLE):
                return
        self._offsets[node] = estimate_offset(samples)
        self._measured_ns[node] = received

    def _url(self, node: str) -> str:
        scheme, host = split_scheme(node)
        if not scheme:
            scheme = "http" if node in self._plain else "https"
        return f"{scheme}://{host}"

    def _may_be_plain(self, node: str, error: aiohttp.ClientConnectorSSLError) -> bool:
        """A server on this machine may speak plaintext, elsewhere only when that was allowed; never a pinned one."""
        scheme, host = split_scheme(node)
        if self.policy.pinned(node):
            return False
        speaks_plain = "WRONG_VERSION_NUMBER" in str(error) or "RECORD_LAYER_FAILURE" in str(error)
        return not scheme and speaks_plain and (is_loopback(host) or not self.policy.require_tls)

    def _hint(self, node: str, error: Exception) -> str:
        """In TLS 1.3 a server refuses a client's certificate, or the lack of one, by hanging up after the handshake."""
        hung_up = isinstance(error, aiohttp.ServerDisconnectedError) or (
            isinstance(error, OSError)
            and not isinstance(error, aiohttp.ClientConnectorError)
            and (error.errno in (errno.ECONNRESET, errno.EPIPE) or "ALERT" in str(error))
        )
        if not hung_up or self._url(node).startswith("http://"):
            return ""
        if self.policy.tls.cert is not None:
            return "; does it accept the certificate given with --client-cert?"
        return "; if it wants to see a certificate of ours, give --client-cert and --client-key"

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
            return f"its certificate is not accepted with {self.policy.tls.ca}: {why} (fingerprint {seen})"
        return (
            f"its certificate is unknown: {why} (fingerprint {seen}); compare it with what the node printed, then run "
            f"`ingero nodes trust {host}`"
        )


async def peer_fingerprint(node: str, timeout_s: float) -> str:
    """Fingerprint of whatever certificate a node shows, trusted or not."""
    context = unverified_context(ClientTls())
    host, port = split_host_port(node)
    async with asyncio.timeout(timeout_s):
        _, writer = await asyncio.open_connection(host, port, ssl=context)
    try:
        return fingerprint(writer.get_extra_info("ssl_object").getpeercert(binary_form=True))
    finally:
        writer.transport.abort()  # all is said: no farewell to wait for
        with contextlib.suppress(OSError):
            await writer.wait_closed()
