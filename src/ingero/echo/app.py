"""The Echo service: builds everything in reading order, runs until a signal, drains."""

import asyncio
import contextlib
import logging
import signal
import ssl
import sys
import time
from collections.abc import Callable
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from ingero.children.memory import settle_memory
from ingero.config.echo import EchoConfig, certificate_beside
from ingero.config.rates import load_rates
from ingero.contract.api_paths import HEALTHZ, OTLP_LOGS, OTLP_METRICS, OTLP_TRACES, PROMETHEUS
from ingero.contract.exposition import CONTENT_TYPE, render
from ingero.contract.otlp.values import Kind, LogsRequest, MetricsRequest, TracesRequest
from ingero.echo.access import echo_keys
from ingero.echo.api import METRICS_NEED_ALL_CLUSTERS, QuestionApi
from ingero.echo.audit import AuditTrail
from ingero.echo.control import Control
from ingero.echo.engine import Engine, EngineSettings
from ingero.echo.ingest import MAX_REQUEST_BYTES
from ingero.echo.metrics import ingest_families, question_families, store_families
from ingero.echo.receive import Receiver
from ingero.echo.store.api import StoreStats
from ingero.echo.store.memory import keep_memory_of_answers
from ingero.errors import IngeroError, StoreError
from ingero.stopping import stop_on_signals
from ingero.transport.access import Access, Denied
from ingero.transport.admission import Admission
from ingero.transport.bearer import AUTHORIZATION, Key, TokenScope
from ingero.transport.browsers import BrowserGuard
from ingero.transport.certificates import kept_certificate
from ingero.transport.file_limit import raise_file_limit
from ingero.transport.http import (
    Endpoint,
    HttpListener,
    denied_response,
    error_response,
    json_response,
)
from ingero.transport.listen import bind, parse_address
from ingero.transport.local.machine_names import local_names
from ingero.transport.otlp.server_grpc import GrpcListener, grpc_listener
from ingero.transport.otlp.server_http import otlp_endpoint
from ingero.transport.tls import ServerTls, is_loopback, renew_context, server_context

STATS_TIMEOUT_S = 2.0
MAX_GRPC_CALLS = 128
PLAINTEXT_METRICS = (
    "this listener has no TLS for a token; /metrics of mcp_addr has the same metrics"
)
# otherwise the journal thread could wait 5 ms for the event loop to release the GIL
SWITCH_INTERVAL_S = 0.0005
log = logging.getLogger(__name__)


class EchoService:
    """Everything that `ingero-echo serve` runs.

    `addresses` holds the bound address of each listener.
    """

    def __init__(self, config: EchoConfig) -> None:
        self.config = config
        self.addresses: dict[str, str] = {}
        self._listeners: list[HttpListener] = []
        self._grpc: GrpcListener | None = None
        self._context: ssl.SSLContext | None = None  # of both HTTPS listeners
        self._limit_bytes = 0
        self.engine: Engine
        self.receiver: Receiver
        self.control: Control
        self.admission: Admission
        self.access: Access
        self.audit: AuditTrail
        self.questions: QuestionApi

    async def start(self) -> None:
        """Open the store, then listen. On an IngeroError nothing is left open."""
        config = self.config
        try:
            config.database.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot create {config.database.parent}: {error.strerror}") from None
        self._limit_bytes = config.database_limit_bytes()
        rates = load_rates(config.gpu_rates_file)
        self.access = Access(self._keys(), config.rotation_grace)
        self.engine = Engine(
            EngineSettings(
                database=config.database,
                address_space_bytes=config.store_memory,
                threads=config.threads(),
                retention_s=config.retention,
                rollup_retention_s=config.rollup_retention,
                max_database_bytes=self._limit_bytes,
                max_backlog_bytes=config.max_backlog_size,
                max_quarantine_bytes=config.max_quarantine_size,
                lake=config.store,
                lake_secrets=config.store_secrets_file,
            )
        )
        await self.engine.start()
        self.receiver = Receiver(self.engine, self.access)
        self.audit = AuditTrail(self.engine.store)
        self.audit.start()
        self.questions = QuestionApi(
            engine=self.engine,
            access=self.access,
            audit=self.audit,
            rates=rates,
            render_metrics=self.render_metrics,
            bearer_rate=(config.bearer_rate, config.bearer_burst),
            trusts_proxy=config.trust_proxy_headers,
        )
        self.control = Control(self.engine, config.database)
        try:
            await self.control.start()
            await self._open_listeners()
        except BaseException:
            await self.stop()
            raise
        log.info("echo_started", extra=self.addresses)

    async def _open_listeners(self) -> None:
        """Open the OTLP listeners last, so that every accepted request can be observed."""
        tls = self._tls()
        context = self._context = server_context(tls) if tls else None
        health = [Route(HEALTHZ, self._health), Route(PROMETHEUS, self._metrics)]
        self.admission = Admission()
        guarded = BrowserGuard(
            Starlette(routes=health), is_local=is_loopback(self.config.health_addr)
        )
        await self._serve("health", self.config.health_addr, guarded, None)
        await self.questions.start()
        await self._serve("mcp", self.config.mcp_addr, self.questions.app(), context)
        await self._serve("http", self.config.otlp_http_addr, self._otlp_app(), context)
        self._grpc = grpc_listener(
            self.config.otlp_addr,
            tls,
            self.receiver.service("grpc"),
            admission=self.admission,
            max_message_bytes=MAX_REQUEST_BYTES,
            max_running=MAX_GRPC_CALLS,
        )
        await self._grpc.start()
        self.addresses["grpc"] = self._grpc.address

    def _tls(self) -> ServerTls | None:
        config = self.config
        if config.tls_cert is not None and config.tls_key is not None:
            return ServerTls(cert=config.tls_cert, key=config.tls_key, client_ca=config.client_ca)
        if config.create_certificate:
            bound = [
                parse_address(address)[0]
                for address in (config.otlp_addr, config.otlp_http_addr, config.mcp_addr)
            ]
            names = [*local_names(None, bound), *config.certificate_names]
            kept = kept_certificate(certificate_beside(config.database).parent, names)
            log.info("certificate", extra={"path": str(kept.cert)})
            if kept.replaced is not None:
                next_step = "give the new file to clients that trust a copy of it"
                log.warning("certificate_replaced", extra={"was": kept.replaced, "next": next_step})
            return ServerTls(cert=kept.cert, key=kept.key, client_ca=config.client_ca)
        log.warning(
            "plaintext", extra={"reason": "insecure_no_tls: tokens and data are sent unencrypted"}
        )
        return None

    def _otlp_app(self) -> Starlette:
        def endpoint(kind: Kind) -> Endpoint:
            return otlp_endpoint(kind, self.receiver.service("http"), MAX_REQUEST_BYTES)

        return Starlette(
            routes=[
                Route(OTLP_METRICS, endpoint(MetricsRequest), methods=["POST"]),
                Route(OTLP_TRACES, endpoint(TracesRequest), methods=["POST"]),
                Route(OTLP_LOGS, endpoint(LogsRequest), methods=["POST"]),
            ]
        )

    async def _serve(
        self, name: str, endpoint: str, app: ASGIApp, context: ssl.SSLContext | None
    ) -> None:
        listener = HttpListener(app, bind(endpoint), context, admission=self.admission)
        self._listeners.append(listener)
        await listener.start()
        self.addresses[name] = listener.address

    async def _health(self, _: Request) -> Response:
        problem = self.engine.problem
        body = {"status": "trouble" if problem else "ok", "reason": problem}
        return json_response(body, 503 if problem else 200)

    async def _metrics(self, request: Request) -> Response:
        if self._context is not None and not is_loopback(self.config.health_addr):
            return error_response(PLAINTEXT_METRICS, HTTPStatus.FORBIDDEN)
        address = request.client.host if request.client else None
        key = self.access.check(request.headers.get(AUTHORIZATION), address, TokenScope.READ)
        if isinstance(key, Denied):
            return denied_response(key)
        if key.clusters is not None:
            return error_response(METRICS_NEED_ALL_CLUSTERS, HTTPStatus.FORBIDDEN)
        return Response(await self.render_metrics(), media_type=CONTENT_TYPE)

    async def render_metrics(self) -> bytes:
        """Return Echo's own metrics in the text format."""
        stats: StoreStats | None = None
        with contextlib.suppress(IngeroError, TimeoutError):
            async with asyncio.timeout(STATS_TIMEOUT_S):
                stats = await self.engine.store.stats()
        families = ingest_families(self.engine, self.receiver, self.admission)
        families += question_families(self.questions.replies, self.questions.turns, self.audit)
        return render(families + store_families(self.engine, stats, self._limit_bytes))

    def _keys(self) -> list[Key]:
        return echo_keys(
            self.config.auth_token_file, self.config.bearer_acl_file, self.config.database
        )

    def reload(self) -> None:
        """Read tokens and certificates again; after an error the old ones stay in use."""
        for renew in (self._renew_tokens, self._renew_certificates):
            try:
                renew()
            except (IngeroError, OSError) as error:
                log.error("reload_failed", extra={"why": str(error)})
        log.info("reloaded")

    def _renew_tokens(self) -> None:
        self.access.replace(self._keys(), time.monotonic())

    def _renew_certificates(self) -> None:
        """Reload the HTTPS certificate, and renew our own when it is due.

        gRPC watches its files itself.
        """
        if self._context is not None and (tls := self._tls()) is not None:
            renew_context(self._context, tls)

    async def stop(self) -> None:
        """Refuse new requests, finish and load those under way, then close.

        The health page goes last.
        """
        self.engine.ingest.draining = True
        if self._grpc is not None:
            await self._grpc.stop()
        for listener in reversed(self._listeners):
            await listener.stop()
            listener.listener.close()
        await self.questions.stop()
        await self.control.stop()
        await self.audit.stop()
        await self.engine.stop()
        log.info("echo_stopped")


async def serve(config: EchoConfig, on_started: Callable[[EchoService], None]) -> None:
    """Run until SIGTERM or SIGINT; SIGHUP reloads."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    raise_file_limit()
    keep_memory_of_answers()
    service = EchoService(config)
    stopping = stop_on_signals()
    await service.start()
    settle_memory()
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, service.reload)
    on_started(service)
    await stopping.wait()
    await service.stop()
