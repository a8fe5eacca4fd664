"""Requests between socket and processor: admission, reply headers, copies for exporters."""

import asyncio
import time
from array import array
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Protocol

from ingero.compiled import FAST_PATH, compiled_or_pure
from ingero.config.providers import ProviderLookup
from ingero.contract.names import DEFAULT_CLUSTER
from ingero.contract.otlp.body import Encoding, count_received
from ingero.contract.otlp.rpc_status import encode_status
from ingero.contract.otlp.values import Kind, MetricsRequest
from ingero.contract.push.decode import NodeReport, problem_with_id
from ingero.contract.push.segment import PlainRequest
from ingero.errors import MalformedPush, TooLarge
from ingero.fleet.allowed_clusters import refused_cluster
from ingero.fleet.intake.answers import GRPC_NAMES, HTTP_NAMES, Answers, Headers, Names, render
from ingero.fleet.intake.large_push import decode_large_push
from ingero.fleet.processor import CLOCK_SKEW_NS, FleetProcessor, Taken
from ingero.fleet.providers import body_with_provider
from ingero.transport.access import Access, Denied
from ingero.transport.bearer import Key, TokenScope
from ingero.transport.otlp.decoding import (
    INLINE_BYTES,
    INLINE_COMPRESSED_BYTES,
    DecodingThread,
    finish_in_slices,
    unpack_small,
)
from ingero.transport.otlp.server_http import (
    GRPC_CODES,
    FastPath,
    Inbound,
    OtlpService,
    Reply,
    cluster_of,
    no_fast_path,
)

PushFastPath: Any = compiled_or_pure(FAST_PATH, "PushFastPath", None)
STOPPING = "shutting down"
_MAX_KEPT_QUERIES = 16384
_MAX_KEPT_QUERY_BYTES = 512  # the sender decides how long a query is: longer ones are parsed anew
_Store = Callable[[bytes, str | None, float, int], Reply | None]


class Sink(Protocol):
    """An exporter: gets a copy of each received request, and must return at once."""

    def offer(self, kind: Kind, body: bytes, encoding: Encoding, taken: Taken) -> None: ...


class Receiver:
    """Answers the requests of both OTLP listeners; a service has one receiver."""

    def __init__(self, processor: FleetProcessor, providers: ProviderLookup | None = None) -> None:
        self.processor = processor
        self.answers = Answers(processor.served)
        # what follows is set by the service as it builds its other parts
        self.sinks: dict[Kind, Sequence[Sink]] = {}
        self.http_token = Access(None)
        self.max_requests_per_s = 0  # without a limit
        # rules change what was received, so that every push is decoded
        self.providers = providers if providers is not None and not providers.is_empty else None
        self.refuses = ""  # why no push is accepted now: stopping, or not ready yet
        # by transport and status, without the plain pushes that were accepted
        self.replies: Counter[tuple[str, int]] = Counter()
        self.plain_pushes = array("q", [0])  # accepted; compiled code adds to it as well
        self.items: Counter[str] = Counter()  # received spans and log records
        self._allowance = 0  # of this second
        self._decoding = DecodingThread()
        self.clusters_by_query: dict[bytes, str | None] = {b"": None}

    def limit_requests(self, per_s: int) -> None:
        """Refuse requests beyond so many in a second, from now on; 0 means no limit."""
        self.max_requests_per_s = self._allowance = per_s

    def second_passed(self) -> None:
        """Renew the request allowance and drop kept replies; called with every tick."""
        self._allowance = self.max_requests_per_s
        self.answers.second_passed()

    def reply_counts(self) -> Counter[tuple[str, int]]:
        """Count all replies by transport and status."""
        return self.replies + Counter({("http", 200): self.plain_pushes[0]})

    # --- Plain pushes ---
    def fast_path(self, max_body_bytes: int) -> FastPath:
        """Return the compiled fast path for pushes of known nodes; `answer` handles all others."""
        compiled = self._compiled(self.answers.rendered, min(max_body_bytes, INLINE_BYTES))
        fast_path: FastPath = no_fast_path if compiled is None else compiled.answer
        return fast_path

    def _compiled(self, replies: tuple[Any, Any], max_body_bytes: int) -> Any:
        if PushFastPath is None or self.providers is not None:
            return None
        return PushFastPath(
            self,
            replies,
            report=NodeReport,
            taken=Taken,
            kind=MetricsRequest,
            json=Encoding.JSON,
            protobuf=Encoding.PROTOBUF,
            max_body_bytes=max_body_bytes,
            skew_ns=CLOCK_SKEW_NS,
        )

    def answer(
        self, request: PlainRequest, date: bytes, address: str | None = None
    ) -> bytes | None:
        """Handle a plain metrics push and return the whole HTTP reply.

        Returns None for a body that is large, packed or not, and where rules about providers apply.
        """
        is_json, query, header, authorization, sent, is_gzip = request
        is_large = len(sent) > (INLINE_COMPRESSED_BYTES if is_gzip else INLINE_BYTES)
        if self.providers is not None or is_large:
            return None
        admitted: Key | Reply | None = None
        if self.refuses or self.max_requests_per_s or self.http_token.is_required:
            presented = authorization.decode("latin-1") if authorization else None
            admitted = self._admit(self.http_token, presented, address)
        encoding = Encoding.JSON if is_json else Encoding.PROTOBUF
        cluster = self._named_cluster(query, header)
        reply: bytes | Reply | None = None
        if isinstance(admitted, Reply):
            reply = admitted
        else:
            body = unpack_small(sent) if is_gzip else sent
            if body is None:  # whoever handles it takes from the allowance again
                self._allowance += 1
                return None
            if admitted is not None and admitted.is_confined:
                inbound = Inbound(MetricsRequest, body, encoding, cluster, admitted, address)
                reply = refused_cluster(admitted, inbound)
            if reply is None:
                reply = self._push_plain(body, encoding, cluster, address, date)
        if isinstance(reply, bytes):
            self.plain_pushes[0] += 1
            return reply
        self.replies["http", reply.status] += 1
        sender = admitted if isinstance(admitted, Key) else None
        headers = self._refusal_headers(HTTP_NAMES, self.http_token, cluster, sender)
        code = GRPC_CODES[reply.status]
        content = encode_status(encoding, code, reply.message, reply.retry_after_s)
        return render(reply._replace(headers=headers), encoding, date, content)

    def _push_plain(
        self, body: bytes, encoding: Encoding, cluster: str | None, address: str | None, date: bytes
    ) -> bytes | Reply:
        """Store a push and return the whole reply to it, or why it is refused."""
        try:
            taken = self.processor.push(
                body, encoding, cluster, time.monotonic(), time.time_ns(), address
            )
        except MalformedPush as error:
            return Reply(400, message=str(error))
        except TooLarge as error:
            return Reply(413, message=str(error))
        for sink in self.sinks.get(MetricsRequest, ()):
            sink.offer(MetricsRequest, body, encoding, taken)
        return self.answers.whole_reply(taken.cluster, taken.node, taken.partial, encoding, date)

    def _named_cluster(self, query: bytes, header: bytes | None) -> str | None:
        kept = self.clusters_by_query
        if query in kept:
            named = kept[query]
        else:
            named = cluster_of(query.decode("ascii"), None)
            if len(query) <= _MAX_KEPT_QUERY_BYTES:
                if len(kept) >= _MAX_KEPT_QUERIES:
                    kept.clear()
                kept[query] = named
        return named if named or not header else header.decode("latin-1")

    # --- All other requests ---
    def http_service(self, access: Access) -> OtlpService:
        """Return how any request over HTTP is handled; `answer` asks for the same tokens."""
        self.http_token = access
        return self._service("http", access, HTTP_NAMES, partial(self._receive, HTTP_NAMES))

    def grpc_service(self, access: Access) -> OtlpService:
        """Return how any request over gRPC is handled."""
        compiled = self._compiled((self.answers.replies[GRPC_NAMES], {}), INLINE_BYTES)
        store = _store_nothing if compiled is None else compiled.store
        return self._service("grpc", access, GRPC_NAMES, partial(self._receive_call, store))

    def _service(
        self,
        transport: str,
        access: Access,
        names: Names,
        receive: Callable[[Inbound], Reply | Awaitable[Reply]],
    ) -> OtlpService:
        def headers_for(cluster: str | None, sender: Key | None) -> Headers:
            return self._refusal_headers(names, access, cluster, sender)

        def count(status: int) -> None:
            self.replies[transport, status] += 1

        return OtlpService(
            lambda authorization, address: self._admit(access, authorization, address),
            receive,
            headers_for,
            count,
        )

    def _refusal_headers(
        self, names: Names, access: Access, cluster: str | None, sender: Key | None
    ) -> Headers:
        may_know = not access.is_required or (
            sender is not None and sender.may_see(cluster or DEFAULT_CLUSTER)
        )
        return self.answers.headers(names, cluster or "") if may_know else ()

    def _receive_call(self, store: _Store, inbound: Inbound) -> Reply | Awaitable[Reply]:
        """Do what `_receive` does; the push of a known node in one compiled step."""
        if inbound.kind is MetricsRequest and not inbound.sender.is_confined:
            reply = store(inbound.body, inbound.cluster, time.monotonic(), time.time_ns())
            if reply is not None:
                return reply
        return self._receive(GRPC_NAMES, inbound)

    def _receive(self, names: Names, inbound: Inbound) -> Reply | Awaitable[Reply]:
        """Handle a request of an admitted sender; raise MalformedPush or TooLarge."""
        if len(inbound.body) > INLINE_BYTES:
            return self._receive_large(names, inbound)
        refused = refused_cluster(inbound.sender, inbound)
        return refused or self._accepted(names, self._take(inbound))

    async def _receive_large(self, names: Names, inbound: Inbound) -> Reply:
        """Decode in a thread, then store in short slices."""
        refused = await asyncio.to_thread(refused_cluster, inbound.sender, inbound)
        return refused or self._accepted(names, await self._take_large(inbound))

    def _accepted(self, names: Names, taken: Taken) -> Reply:
        return self.answers.reply(names, taken.cluster, taken.node, taken.partial)

    def _admit(self, access: Access, authorization: str | None, address: str | None) -> Key | Reply:
        """Return the sender of a request, or the refusal; the body is not needed for either."""
        if self.refuses:
            return Reply(503, message=f"{self.refuses}; push again", retry_after_s=1)
        admitted = access.check(authorization, address, TokenScope.PUSH)
        if isinstance(admitted, Denied):
            return Reply(
                admitted.status, message=admitted.message, retry_after_s=admitted.retry_after_s
            )
        if self.max_requests_per_s:
            if self._allowance <= 0:
                retry_after_s = max(1, round(self.processor.policy.push_interval_s))
                return Reply(
                    429,
                    message="more requests than max_requests_per_s",
                    retry_after_s=retry_after_s,
                )
            self._allowance -= 1
        return admitted

    def _provided(self, inbound: Inbound) -> Inbound:
        """Return a request with the provider that the rules of the operator assign."""
        if self.providers is None or inbound.kind is not MetricsRequest:
            return inbound
        body = body_with_provider(inbound.body, inbound.encoding, self.providers, inbound.address)
        return inbound._replace(body=body)

    def _take(self, inbound: Inbound) -> Taken:
        inbound = self._provided(inbound)
        kind, body, encoding = inbound.kind, inbound.body, inbound.encoding
        cluster = inbound.cluster
        if kind is MetricsRequest:
            taken = self.processor.push(
                body, encoding, cluster, time.monotonic(), time.time_ns(), inbound.address
            )
        else:
            self.items[kind.__name__] += count_received(kind, body, encoding)
            taken = Taken(_valid_or_empty(cluster), "")
        return self._offered(inbound, taken)

    async def _take_large(self, inbound: Inbound) -> Taken:
        if self.providers is not None:
            inbound = await self._decoding.run(self._provided, inbound)
        kind, body, encoding = inbound.kind, inbound.body, inbound.encoding
        cluster = inbound.cluster
        if kind is not MetricsRequest:
            count = await self._decoding.run(count_received, kind, body, encoding)
            self.items[kind.__name__] += count
            return self._offered(inbound, Taken(_valid_or_empty(cluster), ""))
        decoded = await self._decoding.run(decode_large_push, body, encoding)
        steps = self.processor.take_large(
            decoded, cluster, time.monotonic(), time.time_ns(), inbound.address
        )
        return self._offered(inbound, await finish_in_slices(steps))

    def _offered(self, inbound: Inbound, taken: Taken) -> Taken:
        for sink in self.sinks.get(inbound.kind, ()):
            sink.offer(inbound.kind, inbound.body, inbound.encoding, taken)
        return taken


def _store_nothing(body: bytes, named: str | None, now_s: float, wall_ns: int) -> Reply | None:
    """Leave every push to `Receiver._receive`: without compiled code, or with rules."""
    return None


def _valid_or_empty(cluster: str | None) -> str:
    return cluster if cluster and not problem_with_id(cluster) else ""
