"""OTLP backends of forwarding exporters, over HTTP and gRPC; they get joined protobuf bytes."""

import gzip
import ssl
import time
from collections.abc import Callable
from typing import Any, Final

import aiohttp
import grpc

from ingero.config.fleet_exporters import ClientTlsConfig, ForwardExporterConfig
from ingero.contract.api_paths import OTLP_LOGS, OTLP_METRICS, OTLP_TRACES
from ingero.contract.names import PROTOBUF_TYPE
from ingero.contract.otlp.body import Encoding, decode_response
from ingero.contract.otlp.values import Kind, LogsRequest, MetricsRequest, TracesRequest
from ingero.errors import ConfigError, MalformedPush
from ingero.fleet.forward import Busy, Refused
from ingero.transport.bearer import authorization, read_token_file
from ingero.transport.bounded import read_reply_beginning
from ingero.transport.connect import plain_reason
from ingero.transport.otlp.client import parse_retry_after
from ingero.transport.otlp.client_grpc import retry_after
from ingero.transport.otlp.server_grpc import PATHS
from ingero.transport.tls import ClientTls, client_context

HTTP_PATHS: Final[dict[Kind, str]] = {
    MetricsRequest: OTLP_METRICS,
    TracesRequest: OTLP_TRACES,
    LogsRequest: OTLP_LOGS,
}
_RETRYABLE_HTTP: Final = frozenset({429, 502, 503, 504})
_RETRYABLE_GRPC: Final = frozenset(
    {
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    }
)
# Retried only where the backend names a delay, or where gRPC's own server refuses, which names none
_EXHAUSTED: Final = grpc.StatusCode.RESOURCE_EXHAUSTED
_CROWDED: Final = "Concurrent RPC limit exceeded"
MAX_REPLY_BYTES: Final = 64 << 10


class HttpBackend:
    """The receiver that an `otlphttp` exporter sends to."""

    _is_stale = False

    def __init__(self, config: ForwardExporterConfig) -> None:
        scheme = "http" if config.tls.insecure else "https"
        base = config.endpoint if "://" in config.endpoint else f"{scheme}://{config.endpoint}"
        if not base.startswith(("http://", "https://")):
            raise ConfigError(f"{config.endpoint!r} is neither http nor https")
        self._base = base.rstrip("/").removesuffix(OTLP_METRICS)
        self._config = config
        self._authorization = _authorization(config)
        self._session: aiohttp.ClientSession | None = None
        self._tls: ssl.SSLContext | None = None
        self.reload()

    def reload(self) -> None:
        """Read the certificates again; the next batch opens a new connection. Raises AuthError."""
        if self._base.startswith("https://"):
            self._tls = _client_tls(self._config.tls)
            self._is_stale = True

    async def send(self, kind: Kind, body: bytes) -> int:
        """Post one batch and return how many items were rejected; raise Busy or Refused."""
        headers = {"Content-Type": PROTOBUF_TYPE, **self._authorization()}
        if self._config.compression == "gzip":
            body, headers["Content-Encoding"] = gzip.compress(body, 1), "gzip"
        try:
            session = await self._open()
            async with session.post(
                self._base + HTTP_PATHS[kind], data=body, headers=headers, allow_redirects=False
            ) as response:
                answer = await read_reply_beginning(response, MAX_REPLY_BYTES)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Busy(f"{self._base}: {plain_reason(error)}") from None
        if response.status in _RETRYABLE_HTTP:
            asked_s = parse_retry_after(response.headers.get("Retry-After"), time.time())
            raise Busy(f"{self._base}: HTTP {response.status}", asked_s)
        if not 200 <= response.status < 300:
            raise Refused(f"{self._base}: HTTP {response.status}")
        return _rejected(kind, answer)

    async def _open(self) -> aiohttp.ClientSession:
        if self._is_stale:
            await self.close()
            self._is_stale = False
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=self._config.timeout)
            connector = aiohttp.TCPConnector(
                limit=4, ssl=self._tls if self._tls is not None else True
            )
            self._session = aiohttp.ClientSession(timeout=timeout, connector=connector)
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None


class GrpcBackend:
    """The receiver that an `otlp` exporter sends to."""

    _is_stale = False

    def __init__(self, config: ForwardExporterConfig) -> None:
        self._target = config.endpoint.split("://", 1)[-1].rstrip("/")
        self._is_plain = config.tls.insecure or config.endpoint.startswith("http://")
        self._config = config
        self._authorization = _authorization(config)
        self._channel: Any = None
        self._credentials: Any = None
        self.reload()

    def reload(self) -> None:
        """As `HttpBackend.reload`."""
        if not self._is_plain:
            self._credentials = _channel_credentials(self._config.tls)
            self._is_stale = True

    async def send(self, kind: Kind, body: bytes) -> int:
        """Export one batch and return how many items were rejected; raise Busy or Refused."""
        if self._is_stale:
            await self.close()
            self._is_stale = False
        if self._channel is None:
            self._channel = self._connect()
        metadata = tuple((name.lower(), value) for name, value in self._authorization().items())
        call = self._channel.unary_unary(PATHS[kind])
        try:
            answer = await call(body, timeout=self._config.timeout, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            why = f"{self._target}: {error.code().name} {error.details()}"
            asked_s = retry_after(dict(error.trailing_metadata() or ()))
            is_crowded = error.code() is _EXHAUSTED and (
                asked_s is not None or _CROWDED in (error.details() or "")
            )
            if error.code() in _RETRYABLE_GRPC or is_crowded:
                raise Busy(why, asked_s) from None
            raise Refused(why) from None
        return _rejected(kind, answer)

    def _connect(self) -> Any:
        compression = (
            grpc.Compression.Gzip
            if self._config.compression == "gzip"
            else grpc.Compression.NoCompression
        )
        options = (("grpc.max_receive_message_length", MAX_REPLY_BYTES), ("grpc.enable_retries", 0))
        if self._credentials is None:
            return grpc.aio.insecure_channel(self._target, options, compression)
        return grpc.aio.secure_channel(self._target, self._credentials, options, compression)

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()
            self._channel = None


def _client_tls(tls: ClientTlsConfig) -> ssl.SSLContext:
    return client_context(ClientTls(ca=tls.ca_file, cert=tls.cert_file, key=tls.key_file))


def _channel_credentials(tls: ClientTlsConfig) -> Any:
    _client_tls(tls)  # its error names the wrong file; gRPC reports only a failed handshake
    ca, key, cert = (
        path.read_bytes() if path else None for path in (tls.ca_file, tls.key_file, tls.cert_file)
    )
    return grpc.ssl_channel_credentials(ca, key, cert)


def _authorization(config: ForwardExporterConfig) -> Callable[[], dict[str, str]]:
    """Return a function that reads the token for every batch, so that it can be rotated."""
    path = config.token_file
    if path is None:
        return dict
    read_token_file(path)
    return lambda: authorization(read_token_file(path))


def _rejected(kind: Kind, answer: bytes) -> int:
    try:
        return decode_response(kind, answer, Encoding.PROTOBUF).rejected
    except MalformedPush:
        return 0  # the status says that it was accepted, whatever a proxy wrote into the body
