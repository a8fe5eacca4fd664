"""OTLP over gRPC: the three Export services on raw bytes, with reloading of certificates."""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import grpc

from ingero.contract.names import CLUSTER_HEADER, WAIT_HEADER
from ingero.contract.otlp.body import MAX_DECODED_BYTES, Encoding, encode_response
from ingero.contract.otlp.rpc_status import (
    RETRY_METADATA,
    STATUS_METADATA,
    encode_retry_info,
    encode_status,
)
from ingero.contract.otlp.values import Kind, LogsRequest, MetricsRequest, TracesRequest
from ingero.errors import AuthError, MalformedPush, Unavailable
from ingero.transport.bearer import AUTHORIZATION
from ingero.transport.listen import parse_address, plain_peer, port_holder
from ingero.transport.otlp.server_http import (
    GRPC_CODES,
    INTERNAL,
    Headers,
    Inbound,
    Receive,
    Reply,
    settled,
)
from ingero.transport.tls import ServerTls, server_context

SERVICES: Final[dict[str, Kind]] = {
    "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export": MetricsRequest,
    "/opentelemetry.proto.collector.trace.v1.TraceService/Export": TracesRequest,
    "/opentelemetry.proto.collector.logs.v1.LogsService/Export": LogsRequest,
}
PATHS: Final = {kind: path for path, kind in SERVICES.items()}
_BY_NUMBER: Final = {code.value[0]: code for code in grpc.StatusCode}
_OPTIONS: Final = (
    # a second server on the port is an error; otherwise the two would share the traffic silently
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
)
log = logging.getLogger(__name__)


class _Service(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc ships no types
    def __init__(
        self,
        receive: Receive,
        headers_for: Callable[[str | None], Headers],
        max_running: float = math.inf,
    ) -> None:
        self._receive = receive
        self._headers_for = headers_for
        self._max_running = max_running
        self._running = 0
        self._handlers = {
            path: grpc.unary_unary_rpc_method_handler(self._export(kind))
            for path, kind in SERVICES.items()
        }

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        return self._handlers.get(details.method)

    def _export(self, kind: Kind) -> Callable[[bytes, Any], Any]:
        async def export(body: bytes, context: Any) -> bytes:
            reply = await self._answer(kind, body, context)
            code = _BY_NUMBER[GRPC_CODES.get(reply.status, INTERNAL)]
            await _send_metadata(context, reply, code)
            if reply.status != 200:
                await context.abort(code, reply.message)
            return encode_response(kind, Encoding.PROTOBUF, reply.partial)

        return export

    async def _answer(self, kind: Kind, body: bytes, context: Any) -> Reply:
        metadata = dict(context.invocation_metadata() or ())
        cluster = metadata.get(CLUSTER_HEADER)
        if self._running >= self._max_running:
            headers = tuple(self._headers_for(cluster))
            return Reply(
                429,
                message="too many calls at once",
                retry_after_s=1,
                headers=headers,
            )
        self._running += 1
        try:
            authorization, wait = metadata.get(AUTHORIZATION), WAIT_HEADER in metadata
            address = peer_address(context.peer())
            inbound = Inbound(kind, body, Encoding.PROTOBUF, cluster, authorization, address, wait)
            return await settled(self._receive(inbound))
        except MalformedPush as error:
            return Reply(400, message=str(error), headers=tuple(self._headers_for(cluster)))
        finally:
            self._running -= 1


def peer_address(peer: str) -> str | None:
    """Return the address in gRPC's name of a peer, as in `ipv4:10.0.0.1:5000`.

    The brackets of `ipv6:[::1]:5000` may be escaped.
    """
    family, _, rest = unquote(peer).partition(":")
    return plain_peer(rest.rpartition(":")[0].strip("[]")) if family in ("ipv4", "ipv6") else None


async def _send_metadata(context: Any, reply: Reply, code: grpc.StatusCode) -> None:
    """Send headers and trailers: agents read either, and an error has only trailers."""
    metadata: tuple[tuple[str, str | bytes], ...] = reply.headers
    if reply.retry_after_s is not None:
        status = encode_status(Encoding.PROTOBUF, code.value[0], reply.message, reply.retry_after_s)
        metadata = (
            *metadata,
            ("retry-after", str(reply.retry_after_s)),
            (STATUS_METADATA, status),
            (RETRY_METADATA, encode_retry_info(reply.retry_after_s)),
        )
    context.set_trailing_metadata(metadata)
    if reply.status == 200:
        await context.send_initial_metadata(metadata)


@dataclass(slots=True)
class GrpcListener:
    """A running gRPC server."""

    server: Any
    address: str

    async def start(self) -> None:
        await self.server.start()

    async def stop(self, grace_s: float = 5.0) -> None:
        """Refuse new calls and let running ones finish."""
        await self.server.stop(grace_s)


def grpc_listener(
    endpoint: str,
    tls: ServerTls | None,
    receive: Receive,
    headers_for: Callable[[str | None], Headers],
    max_message_bytes: int = MAX_DECODED_BYTES,
    max_calls: int | None = None,
) -> GrpcListener:
    """Return a bound server that is not yet started; call it inside the running event loop.

    `headers_for` returns metadata. Up to half of `max_calls` are handled at once; further calls are
    refused with a delay. gRPC itself refuses calls beyond `max_calls`, before their message is read
    and without a delay.
    """
    options = (*_OPTIONS, ("grpc.max_receive_message_length", max_message_bytes))
    server = grpc.aio.server(options=options, maximum_concurrent_rpcs=max_calls)
    max_running = math.inf if max_calls is None else max_calls // 2
    server.add_generic_rpc_handlers((_Service(receive, headers_for, max_running),))
    host, port = parse_address(endpoint)
    target = f"{f'[{host}]' if ':' in host else host or '[::]'}:{port}"
    try:
        bound = (
            server.add_secure_port(target, _credentials(tls))
            if tls
            else server.add_insecure_port(target)
        )
    except RuntimeError:
        holder = port_holder(port)
        raise Unavailable(
            f"port {port} is already in use{f' by {holder}' if holder else ''}; "
            "stop it or choose another address"
        ) from None
    return GrpcListener(server, f"{target.rpartition(':')[0]}:{bound}")


def _credentials(tls: ServerTls) -> Any:
    """Return credentials that are read again when their files change; wrong files are ignored."""
    seen: list[tuple[float, ...]] = [_stamps(tls)]

    def fetch() -> Any:
        try:
            stamps = _stamps(tls)
            if stamps == seen[0]:
                return None
            server_context(tls)  # raises AuthError for a pair of which only one half is replaced
            configuration = _configuration(tls)
        except (AuthError, OSError) as error:
            log.error("reload_failed", extra={"why": str(error)})
            return None
        seen[0] = stamps
        return configuration

    return grpc.dynamic_ssl_server_credentials(
        _configuration(tls), fetch, require_client_authentication=tls.client_ca is not None
    )


def _configuration(tls: ServerTls) -> Any:
    pair = ((tls.key.read_bytes(), tls.cert.read_bytes()),)
    return grpc.ssl_server_certificate_configuration(
        pair, root_certificates=tls.client_ca.read_bytes() if tls.client_ca else None
    )


def _stamps(tls: ServerTls) -> tuple[float, ...]:
    files: list[Path] = [tls.cert, tls.key, *([tls.client_ca] if tls.client_ca else [])]
    return tuple(file.stat().st_mtime_ns for file in files)
