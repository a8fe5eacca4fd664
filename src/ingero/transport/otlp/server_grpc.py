"""OTLP over gRPC: the three Export services on raw bytes, with reloading of certificates."""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import grpc

from ingero.contract.names import CLUSTER_HEADER, LOGS_METHOD, METRICS_METHOD, WAIT_HEADER
from ingero.contract.otlp.body import Encoding, encode_response
from ingero.contract.otlp.rpc_status import (
    RETRY_METADATA,
    STATUS_METADATA,
    encode_retry_info,
    encode_status,
)
from ingero.contract.otlp.values import Kind, LogsRequest, MetricsRequest, TracesRequest
from ingero.errors import AuthError, MalformedPush, TooLarge, Unavailable
from ingero.transport.admission import Admission
from ingero.transport.bearer import AUTHORIZATION
from ingero.transport.connections import GRPC_SHARE, share_of_files
from ingero.transport.listen import parse_address, plain_peer, port_holder
from ingero.transport.otlp.calls import CallsUnderWay, MessageReader, Peer
from ingero.transport.otlp.server_http import (
    GRPC_CODES,
    INTERNAL,
    MISTAKE,
    Inbound,
    OtlpService,
    Reply,
    explained,
)
from ingero.transport.rate_limit import address_group
from ingero.transport.tls import ServerTls, server_context

SERVICES: Final[dict[str, Kind]] = {
    METRICS_METHOD: MetricsRequest,
    "/opentelemetry.proto.collector.trace.v1.TraceService/Export": TracesRequest,
    LOGS_METHOD: LogsRequest,
}
PATHS: Final = {kind: path for path, kind in SERVICES.items()}
_BY_NUMBER: Final = {code.value[0]: code for code in grpc.StatusCode}
_OPTIONS: Final = (
    # a second server on the port is an error; otherwise the two would share the traffic silently
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    ("grpc.max_concurrent_streams", 1024),  # calls at once on one connection
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 300_000),  # agents push at least once a minute
    # a peer that stops inside a frame cannot answer a ping
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
)
MAX_MESSAGE_BYTES: Final = 8 * 1024 * 1024
_TOO_MANY: Final = "too many calls at once"
log = logging.getLogger(__name__)


class _Service(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc ships no types
    """Answers calls as streams of one message, because gRPC reads that of a unary call first.

    Replies have trailers only: they go out with the message, and headers would cost a step more.
    """

    def __init__(self, service: OtlpService, admission: Admission, max_running: float) -> None:
        self._service = service
        self._admission = admission
        self._max_running = max_running
        self._running = 0
        self._calls = CallsUnderWay()
        self._messages = MessageReader()
        self._handlers = {
            path: grpc.stream_unary_rpc_method_handler(self._export(kind))
            for path, kind in SERVICES.items()
        }

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        return self._handlers.get(details.method)

    def _export(self, kind: Kind) -> Callable[[Any, Any], Any]:
        async def export(_: Any, context: Any) -> bytes:
            try:
                reply = await self._answer(kind, context)
            except grpc.aio.BaseError:  # the call is over
                raise
            except Exception:
                log.exception("call_failed")
                reply = MISTAKE
            if reply.status != HTTPStatus.OK:
                await self._refuse(context, reply)
            self._service.count(reply.status)
            context.set_trailing_metadata(reply.headers)
            return encode_response(kind, Encoding.PROTOBUF, reply.partial)

        return export

    async def _refuse(self, context: Any, reply: Reply) -> None:
        """End a call; count the refusal unless the sender had left, which looks malformed."""
        code = _BY_NUMBER[GRPC_CODES.get(reply.status, INTERNAL)]
        context.set_trailing_metadata(_metadata(reply, code))
        try:
            await context.abort(code, reply.message)
        except grpc.aio.AbortError:
            self._service.count(reply.status)
            raise

    async def _answer(self, kind: Kind, context: Any) -> Reply:
        """Admit the sender by its metadata, then read its message, then pass it on."""
        metadata = dict(context.invocation_metadata() or ())
        cluster, wait = metadata.get(CLUSTER_HEADER), WAIT_HEADER in metadata
        address, peer = _origin(context.peer())
        if not self._calls.enter(peer, context):
            return Reply(429, message=_TOO_MANY, retry_after_s=1)
        sender = self._service.admit(metadata.get(AUTHORIZATION), address)
        if isinstance(sender, Reply):
            return explained(self._service, sender, cluster, None)
        try:
            body = await self._messages.read(context, peer)
            inbound = Inbound(kind, body, Encoding.PROTOBUF, cluster, sender, address, wait)
            reply = await self._pass_on(inbound, peer.address)
        except MalformedPush as error:
            reply = Reply(400, message=str(error))
        except TooLarge as error:
            reply = Reply(413, message=str(error))
        except TimeoutError:
            reply = Reply(408, message="the message did not arrive in time")
        return explained(self._service, reply, cluster, sender)

    async def _pass_on(self, inbound: Inbound, address: str) -> Reply:
        size = len(inbound.body)
        if self._running >= self._max_running or not self._admission.has_room(address, size):
            return Reply(429, message=_TOO_MANY, retry_after_s=1)
        reply = self._service.receive(inbound)
        if isinstance(reply, Reply):
            return reply
        self._running += 1
        self._admission.hold(address, size)
        try:
            return await reply
        finally:
            self._running -= 1
            self._admission.hold(address, -size)


@lru_cache(maxsize=4096)  # of a connection, each of whose calls asks again
def _origin(connection: str) -> tuple[str | None, Peer]:
    address = peer_address(connection)
    return address, Peer(address_group(address), connection)


def peer_address(peer: str) -> str | None:
    """Return the address in gRPC's name of a peer, as in `ipv4:10.0.0.1:5000`.

    The brackets of `ipv6:[::1]:5000` may be escaped.
    """
    family, _, rest = unquote(peer).partition(":")
    return plain_peer(rest.rpartition(":")[0].strip("[]")) if family in ("ipv4", "ipv6") else None


def _metadata(reply: Reply, code: grpc.StatusCode) -> tuple[tuple[str, str | bytes], ...]:
    """Return the trailers of a refusal."""
    if reply.retry_after_s is None:
        return reply.headers
    status = encode_status(Encoding.PROTOBUF, code.value[0], reply.message, reply.retry_after_s)
    return (
        *reply.headers,
        ("retry-after", str(reply.retry_after_s)),
        (STATUS_METADATA, status),
        (RETRY_METADATA, encode_retry_info(reply.retry_after_s)),
    )


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
    service: OtlpService,
    *,
    admission: Admission | None = None,
    max_message_bytes: int = MAX_MESSAGE_BYTES,
    max_running: float = math.inf,
) -> GrpcListener:
    """Return a bound server that is not yet started; call it inside the running event loop.

    Calls beyond `max_running` that have their message, and those beyond the limit of `admission`,
    are refused with a delay.
    """
    options = (
        *_OPTIONS,
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_allowed_incoming_connections", share_of_files(GRPC_SHARE)),
    )
    server = grpc.aio.server(options=options)
    handler = _Service(service, admission or Admission(), max_running)
    server.add_generic_rpc_handlers((handler,))
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
