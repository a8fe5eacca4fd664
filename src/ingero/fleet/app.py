"""The Fleet service: builds everything in reading order, runs until a signal, drains."""

import asyncio
import contextlib
import gc
import logging
import signal
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

from ingero.config.fleet import FleetConfig, Listener
from ingero.config.fleet_exporters import (
    DebugExporterConfig,
    ExporterConfig,
    ForwardExporterConfig,
    PrometheusExporterConfig,
    exporter_kind,
)
from ingero.config.fleet_listeners import ListenerTlsConfig
from ingero.config.providers import load_providers
from ingero.config.rates import encode_rates, load_rates
from ingero.contract.exposition import Family, render
from ingero.contract.names import DEFAULT_CLUSTER
from ingero.contract.otlp.body import Encoding
from ingero.contract.otlp.codec import encode_protobuf
from ingero.contract.otlp.values import Kind, LogsRequest, MetricsRequest, TracesRequest
from ingero.contract.verdict_otlp import verdict_logs
from ingero.errors import ConfigError, IngeroError
from ingero.fleet.api import admin_app, health_app, metrics_app, receiver_app, threshold_app
from ingero.fleet.backends import GrpcBackend, HttpBackend
from ingero.fleet.forward import DebugSink, Forwarder, ForwardPolicy, forward_families
from ingero.fleet.metrics import cluster_families, own_series, recording_families, service_families
from ingero.fleet.processor import FleetProcessor, Taken
from ingero.fleet.providers import with_provider
from ingero.fleet.receive import Receiver, Sink
from ingero.fleet.replay import encode_one
from ingero.fleet.series import ReceivedSeries, series_families
from ingero.fleet.silences import Silences
from ingero.fleet.verdict_metrics import verdict_families
from ingero.fleet.verdicts import VerdictService
from ingero.storage.input_log import PUSH, TICK, VERDICT, InputLog
from ingero.transport.bearer import ListenerToken, read_token_file
from ingero.transport.http import HttpListener, TimedProtocol
from ingero.transport.listen import bind
from ingero.transport.otlp.server_grpc import GrpcListener, grpc_listener
from ingero.transport.otlp.server_http import push_protocol
from ingero.transport.tls import is_loopback, renew_context, server_context

TICK_S = 1.0
log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Secured:
    """What SIGHUP reads again for one listener."""

    token: ListenerToken
    token_file: Path | None
    context: ssl.SSLContext | None
    tls: ListenerTlsConfig | None

    @classmethod
    def read(cls, listener: Listener) -> Self:
        """Raises AuthError naming the file that is wrong."""
        token = read_token_file(listener.token_file) if listener.token_file else None
        context = server_context(listener.tls.files()) if listener.tls else None
        return cls(ListenerToken(token), listener.token_file, context, listener.tls)

    def reload(self) -> None:
        if self.token_file is not None:
            self.token.replace(read_token_file(self.token_file))
        if self.context is not None and self.tls is not None:
            renew_context(self.context, self.tls.files())


class FleetService:
    """Everything `ingero-fleet` runs. `addresses` holds where each listener ended up."""

    def __init__(self, config: FleetConfig, *, processor: FleetProcessor | None = None) -> None:
        self.config = config
        settings = config.processors.ingero
        self.processor = processor or FleetProcessor(
            settings.policy(),
            max_nodes=settings.max_expected_nodes,
            expected_nodes=settings.quorum.expected_nodes,
            max_clusters=settings.max_clusters,
        )
        self.addresses: dict[str, str] = {}
        self._secured: list[_Secured] = []
        self._listeners: list[HttpListener] = []
        self._grpc: GrpcListener | None = None
        self._series: dict[str, ReceivedSeries] = {}
        self._forwarders: list[Forwarder] = []
        self._backends: list[HttpBackend | GrpcBackend] = []
        self._plaintext: list[str] = []
        self._ready = False
        self._warned_defaulted = False
        self.failed_ticks = 0
        self._tasks: list[asyncio.Task[None]] = []
        self.receiver = Receiver(self.processor)
        self._unix_offset_s = (
            time.time() - time.monotonic()
        )  # verdicts carry Unix time that never steps back
        rates, verdict = load_rates(settings.verdict.rates_file), settings.verdict
        self._providers = load_providers(verdict.providers_file)
        self.verdicts = VerdictService(
            rates,
            max_clusters=settings.max_clusters,
            silences=Silences(verdict.silences_file),
        )
        self._inputs: InputLog | None = None
        if verdict.record_inputs is not None:
            self._inputs = InputLog(
                verdict.record_inputs, encode_rates(rates), verdict.record_max_bytes
            )
        if verdict.enabled:
            self.processor.on_measurements = self._measured
            self.receiver.verdict_texts = self.verdicts.texts

    async def start(self) -> None:
        """Bind every listener, then serve; raises IngeroError and leaves nothing behind."""
        try:
            self._build_exporters()
            await self._open_listeners()
        except BaseException:
            await self._close_listeners()
            raise
        for forwarder in self._forwarders:
            forwarder.start()
        self._tasks = [
            asyncio.create_task(self._tick_forever()),
            asyncio.create_task(self._report_forever()),
        ]
        self._ready = True
        if self._plaintext:
            log.warning("plaintext_listeners", extra={"listeners": ", ".join(self._plaintext)})
        log.info("fleet_started", extra=self.addresses)

    def _build_exporters(self) -> None:
        pipelines = self.config.service.pipelines
        sinks = {
            name: self._exporter(name, exporter) for name, exporter in self.config.exporters.items()
        }
        chosen: tuple[tuple[Kind, tuple[str, ...]], ...] = (
            (MetricsRequest, pipelines.metrics.exporters),
            (TracesRequest, pipelines.traces.exporters),
            (LogsRequest, pipelines.logs.exporters),
        )
        self.receiver.sinks = {kind: tuple(sinks[name] for name in names) for kind, names in chosen}

    def _exporter(self, name: str, config: ExporterConfig) -> Sink:
        if isinstance(config, PrometheusExporterConfig):
            self._series[name] = ReceivedSeries(
                name, self.processor.policy.ttl_s, config.max_series
            )
            return self._series[name]
        if isinstance(config, DebugExporterConfig):
            return DebugSink(config.verbosity)
        return self._forward(name, config, _backend(name, config))

    def _forward(
        self, name: str, config: ForwardExporterConfig, backend: HttpBackend | GrpcBackend
    ) -> Forwarder:
        retry = config.retry_on_failure
        policy = ForwardPolicy(
            queue_size=config.sending_queue.queue_size,
            queue_bytes=config.sending_queue.max_bytes,
            initial_s=retry.initial_interval,
            max_s=retry.max_interval,
            max_elapsed_s=retry.max_elapsed_time,
        )
        forwarder = Forwarder(name, backend.send, policy)
        self._forwarders.append(forwarder)
        self._backends.append(backend)
        return forwarder

    async def _open_listeners(self) -> None:
        """OTLP last: once a push is taken, everything about it can be seen."""
        asked = {listener.name: listener for listener in self.config.listeners()}
        if "threshold" in asked:
            await self._serve(
                asked["threshold"],
                lambda token: threshold_app(self.processor, token, self.verdicts),
            )
            await self._serve(asked["admin"], lambda token: admin_app(self.processor, token))
        await self._serve(
            asked["health"], lambda token: health_app(self.receiver, lambda: self._ready, token)
        )
        await self._serve(asked["metrics"], lambda token: metrics_app(self._render_own, token))
        for name, series in self._series.items():
            await self._serve(asked[name], partial(metrics_app, series.render))
        http = self.config.receivers.otlp.protocols.http
        if http is not None:
            fast_path = self.receiver.fast_path(http.max_body_bytes)
            protocol = push_protocol(self.receiver.answer, http.max_body_bytes, fast_path)
            self.receiver.max_requests_per_s = http.max_requests_per_s
            app = receiver_app(self.receiver, http.max_body_bytes)
            self.receiver.http_token = await self._serve(asked["http"], lambda _: app, protocol)
        if "grpc" in asked:
            await self._serve_grpc(asked["grpc"])

    async def _serve(
        self,
        listener: Listener,
        app: Callable[[ListenerToken], Any],
        protocol: type[TimedProtocol] = TimedProtocol,
    ) -> ListenerToken:
        secured = self._secure(listener)
        serving = HttpListener(
            app(secured.token), bind(listener.endpoint), secured.context, protocol
        )
        self._listeners.append(serving)
        await serving.start()
        self.addresses[listener.name] = serving.address
        return secured.token

    async def _serve_grpc(self, listener: Listener) -> None:
        self.receiver.grpc_token = self._secure(listener).token
        tls = listener.tls.files() if listener.tls else None
        self._grpc = grpc_listener(
            listener.endpoint, tls, self.receiver.receive_grpc, self.receiver.grpc_headers
        )
        await self._grpc.start()
        self.addresses["grpc"] = self._grpc.address

    def _secure(self, listener: Listener) -> _Secured:
        if listener.tls is None and not is_loopback(listener.endpoint):
            self._plaintext.append(f"{listener.name} {listener.endpoint}")
        secured = _Secured.read(listener)
        self._secured.append(secured)
        return secured

    async def _tick_forever(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            try:
                self._tick(time.monotonic())
            except Exception:  # one bad second must not end all later ones
                self.failed_ticks += 1
                log.exception("tick_failed")
            if self.processor.counters.defaulted and not self._warned_defaulted:
                self._warned_defaulted = True
                log.warning(
                    "cluster_defaulted",
                    extra={"cluster": DEFAULT_CLUSTER, "next": "set ingero.cluster.id"},
                )

    def _measured(
        self, request: MetricsRequest, cluster: str, now_s: float, address: str | None
    ) -> None:
        request = with_provider(
            request, self._providers, address
        )  # recorded, too: a replay gives the same prices
        self._record(PUSH, now_s + self._unix_offset_s, cluster, lambda: encode_protobuf(request))
        self.verdicts.take(request, cluster, now_s + self._unix_offset_s)

    def _record(
        self, kind: str, at_s: float, cluster: str = "", body: Callable[[], bytes] = bytes
    ) -> None:
        if self._inputs is None:
            return
        try:
            self._inputs.write(kind, at_s, cluster, body())
        except OSError as error:
            self._inputs = None
            log.error("recording_stopped", extra={"why": str(error)})

    def _tick(self, now_s: float) -> None:
        self.receiver.second_passed()
        self.processor.tick(now_s)
        self._judge(now_s + self._unix_offset_s)

    def _judge(self, now_s: float) -> None:
        """One tick of the verdict engines; what changed is logged and goes where received logs go."""
        self._record(TICK, now_s)
        changed = self.verdicts.tick(now_s)
        for cluster, verdict in changed:
            self._record(VERDICT, now_s, cluster, lambda verdict=verdict: encode_one(verdict))  # type: ignore[misc]  # a default argument binds the loop's value
        if not changed:
            return
        changed = [
            (cluster, self.verdicts.silences.mark(cluster, verdict, now_s))
            for cluster, verdict in changed
        ]
        for cluster, verdict in changed:
            log.info(
                "verdict",
                extra={"cluster": cluster, "node": verdict.node, "state": str(verdict.state)},
            )
        body = encode_protobuf(verdict_logs(changed, time.time_ns()))
        for sink in self.receiver.sinks.get(LogsRequest, ()):
            sink.offer(LogsRequest, body, Encoding.PROTOBUF, Taken("", ""))

    async def _report_forever(self) -> None:
        """Fleet's own series go where received metrics go."""
        while True:
            await asyncio.sleep(self.processor.policy.push_interval_s)
            if self._forwarders and self.processor.clusters:
                body = encode_protobuf(own_series(self.processor, time.time_ns()))
                for sink in self.receiver.sinks.get(MetricsRequest, ()):
                    if isinstance(sink, Forwarder):
                        sink.offer(MetricsRequest, body, Encoding.PROTOBUF, Taken("", ""))

    async def _render_own(self) -> bytes:
        exporters: list[Family] = forward_families(self._forwarders) + series_families(
            self._series.values()
        )
        return render(
            cluster_families(self.processor)
            + verdict_families(self.verdicts)
            + recording_families(self._inputs)
            + service_families(self.receiver, len(self._plaintext), self.failed_ticks, exporters)
        )

    def reload(self) -> None:
        """Read tokens and certificates again; what is wrong keeps its old value and is logged."""
        for secured in (*self._secured, *self._backends):
            try:
                secured.reload()
            except IngeroError as error:
                log.error("reload_failed", extra={"why": str(error)})
        log.info("reloaded")

    async def stop(self) -> None:
        """Say so, answer what is under way, send on what is queued, close; the health page goes last."""
        self.receiver.draining = True
        self._ready = False
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if self._grpc is not None:
            await self._grpc.stop()
        health = self.addresses.get("health")
        await asyncio.gather(
            *(listener.stop() for listener in self._listeners if listener.address != health)
        )
        await asyncio.gather(*(forwarder.stop() for forwarder in self._forwarders))
        await asyncio.gather(*(backend.close() for backend in self._backends))
        await self._close_listeners()
        if self._inputs is not None:
            self._inputs.close()
        log.info("fleet_stopped")

    async def _close_listeners(self) -> None:
        for listener in self._listeners:
            await listener.stop()
            listener.listener.close()


def _backend(name: str, config: ForwardExporterConfig) -> HttpBackend | GrpcBackend:
    return GrpcBackend(config) if exporter_kind(name) == "otlp" else HttpBackend(config)


def check_files(config: FleetConfig) -> None:
    """Read every file that a start would read; raises IngeroError naming the key that leads to a wrong one."""
    verdict = config.processors.ingero.verdict
    needed: list[tuple[str, Callable[[], object]]] = [
        ("processors.ingero.verdict.rates_file", lambda: load_rates(verdict.rates_file)),
        (
            "processors.ingero.verdict.providers_file",
            lambda: load_providers(verdict.providers_file),
        ),
        *((listener.key, partial(_Secured.read, listener)) for listener in config.listeners()),
        *(
            (f"exporters.{name}", partial(_backend, name, exporter))
            for name, exporter in config.exporters.items()
            if isinstance(exporter, ForwardExporterConfig)
        ),
    ]
    for key, read in needed:
        try:
            read()
        except IngeroError as error:
            raise ConfigError(f"{key}: {error}") from None


async def serve(config: FleetConfig, on_started: Callable[[FleetService], None]) -> None:
    """Run until SIGTERM or SIGINT; SIGHUP reloads."""
    service = FleetService(config)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    loop.add_signal_handler(signal.SIGHUP, service.reload)
    await service.start()
    gc.freeze()  # what start-up made stays; the collector need not look at it again
    gc.set_threshold(20_000, 20, 50)
    on_started(service)
    await stopping.wait()
    await service.stop()
