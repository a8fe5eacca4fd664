"""Pushes to Fleet over gRPC; threshold, quorum and verdicts are metadata of the reply."""

import asyncio
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ingero.contract import names
from ingero.contract.otlp.body import Encoding
from ingero.contract.otlp.codec import encode_protobuf
from ingero.contract.otlp.rpc_status import STATUS_METADATA, decode_retry_after_s
from ingero.contract.otlp.values import LogsRequest, MetricsRequest
from ingero.core.health.modes import PushOutcome
from ingero.transport.endpoint import Endpoint
from ingero.transport.otlp.client import (
    MAX_REPLY_BYTES,
    MAX_RETRY_AFTER_S,
    PACKET_BYTES,
    RETRY_DELAY_S,
    ClientOptions,
    PushReply,
    parse_retry_after,
    partial_success,
    with_delivery,
)


class GrpcPush:
    """Pushes like `HttpPush`, over gRPC."""

    def __init__(
        self,
        endpoint: Endpoint,
        cluster: str,
        node: str,
        options: ClientOptions,
        pems: "GrpcPems",
        chance: random.Random,
    ) -> None:
        self._endpoint = endpoint
        self._pems = pems
        self._options = options
        self._chance = chance
        identity = ((names.CLUSTER_HEADER, cluster), (names.NODE_QUERY.replace("_", "-"), node))
        # metadata must be ASCII; the body names both in any case
        self._identity = tuple((name, value) for name, value in identity if value.isascii())
        self._channel: Any = None
        self._calls: dict[str, Any] = {}

    async def push(self, request: MetricsRequest, *, retry: bool = True) -> PushReply:
        body = encode_protobuf(request)
        reply = await self._call(names.METRICS_METHOD, body)
        if retry and self._options.repeats(reply):
            await asyncio.sleep(RETRY_DELAY_S * self._chance.uniform(0.8, 1.2))
            reply = await self._call(names.METRICS_METHOD, body)
        return reply

    async def push_logs(self, request: LogsRequest) -> PushReply:
        """Push log records once."""
        return await self._call(names.LOGS_METHOD, encode_protobuf(request))

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()

    async def _call(self, method: str, body: bytes) -> PushReply:
        import grpc  # noqa: PLC0415 - heavy, and most agents push over HTTP

        if self._channel is None:
            self._connect(grpc)
        is_packed = self._options.is_compressed and len(body) > PACKET_BYTES
        call = self._calls[method](
            body,
            timeout=self._options.timeout_s,
            metadata=self._metadata(),
            compression=grpc.Compression.Gzip if is_packed else None,
        )
        try:
            answer = await call
            outcome, detail, timed_out = PushOutcome.OK, "", False
        except grpc.aio.AioRpcError as error:
            answer, timed_out = b"", error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            outcome, detail = (
                _GRPC_OUTCOMES.get(error.code().name, PushOutcome.SERVER_ERROR),
                error.details() or "",
            )
        found = dict(
            [*(await call.initial_metadata() or ()), *(await call.trailing_metadata() or ())]
        )
        rejected = 0
        if outcome is PushOutcome.OK:
            rejected, detail = partial_success(answer, Encoding.PROTOBUF)
        retry_after_s = retry_after(found)
        if outcome is PushOutcome.TRANSPORT and retry_after_s is not None:
            outcome = PushOutcome.SHED  # the receiver did answer, and asked for a delay
        return with_delivery(
            PushReply(
                outcome=outcome,
                detail=detail,
                retry_after_s=retry_after_s,
                rejected_points=rejected,
                timed_out=timed_out,
            ),
            found.get(names.THRESHOLD_METADATA),
            found.get(names.QUORUM_METADATA),
            found.get(names.VERDICT_METADATA),
            found.get(names.QUORUM_REASON_METADATA),
            found.get(names.ASK_METADATA),
        )

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return (
            *self._identity,
            *((name.lower(), value) for name, value in self._options.request_headers().items()),
        )

    def _connect(self, grpc: Any) -> None:
        options = (("grpc.max_receive_message_length", MAX_REPLY_BYTES), ("grpc.enable_retries", 0))
        if self._endpoint.is_secure:
            credentials = grpc.ssl_channel_credentials(
                self._pems.ca, self._pems.key, self._pems.cert
            )
            self._channel = grpc.aio.secure_channel(self._endpoint.base, credentials, options)
        else:
            self._channel = grpc.aio.insecure_channel(self._endpoint.base, options)
        self._calls = {
            method: self._channel.unary_unary(method)
            for method in (names.METRICS_METHOD, names.LOGS_METHOD)
        }


def retry_after(metadata: Mapping[str, str | bytes]) -> float | None:
    """Return the delay that a receiver asks for: OTLP's RetryInfo, else the header of a proxy."""
    status, header = metadata.get(STATUS_METADATA), metadata.get("retry-after")
    asked_s = decode_retry_after_s(status) if isinstance(status, bytes) else None
    if asked_s is not None:
        return min(asked_s, MAX_RETRY_AFTER_S)
    return parse_retry_after(header, time.time()) if isinstance(header, str) else None


@dataclass(frozen=True, slots=True)
class GrpcPems:
    """TLS files as bytes, because gRPC takes no SSL context."""

    ca: bytes | None = None
    key: bytes | None = None
    cert: bytes | None = None


_GRPC_OUTCOMES = {
    "UNAVAILABLE": PushOutcome.TRANSPORT,
    "DEADLINE_EXCEEDED": PushOutcome.TRANSPORT,
    "CANCELLED": PushOutcome.TRANSPORT,
    "UNAUTHENTICATED": PushOutcome.AUTH,
    "PERMISSION_DENIED": PushOutcome.AUTH,
    "RESOURCE_EXHAUSTED": PushOutcome.SHED,
    "INVALID_ARGUMENT": PushOutcome.REFUSED,
    "FAILED_PRECONDITION": PushOutcome.REFUSED,
    "UNIMPLEMENTED": PushOutcome.REFUSED,
}
