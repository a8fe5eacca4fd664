"""The Fleet service: builds its parts, runs until a signal and drains."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Generator
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from starlette.applications import Starlette

from ingero.config.fleet import FleetConfig
from ingero.config.providers import load_providers
from ingero.config.rates import RateTable, load_rates
from ingero.contract.episodes.episode import Episode
from ingero.contract.exposition import render
from ingero.contract.measurements.own_time_columns import OwnTimeColumns
from ingero.contract.names import DEFAULT_CLUSTER
from ingero.contract.otlp.body import Encoding
from ingero.contract.otlp.codec import encode_protobuf
from ingero.contract.otlp.values import LogsRequest, MetricsRequest
from ingero.contract.replicas.entries import LimitsSet
from ingero.contract.verdict_otlp import encode_verdict_logs
from ingero.core.health.threshold import ThresholdPolicy
from ingero.errors import IngeroError
from ingero.fleet.alerts.metrics import alert_families
from ingero.fleet.api import admin_app, health_app, metrics_app, receiver_app, threshold_app
from ingero.fleet.causes.metrics import cause_families
from ingero.fleet.engines.metrics import engine_families
from ingero.fleet.enrolment.build import build_enrolment
from ingero.fleet.enrolment.metrics import enrolment_families
from ingero.fleet.enrolment.routes import EnrolmentApi
from ingero.fleet.episodes.metrics import episode_families
from ingero.fleet.episodes.routes import episode_routes
from ingero.fleet.exporters import FleetExporters
from ingero.fleet.forward import Forwarder
from ingero.fleet.judgement import Judgement
from ingero.fleet.limits.api import limit_routes, limits_of
from ingero.fleet.listeners import FleetListeners, signed_in_users
from ingero.fleet.metrics import (
    certificate_families,
    cluster_families,
    own_series,
    recording_families,
    service_families,
)
from ingero.fleet.page.cluster_view import Moment
from ingero.fleet.page.hub import LiveHub
from ingero.fleet.page.metrics import live_families
from ingero.fleet.page.routes import live_routes
from ingero.fleet.pricing.gpus import GpuPrices
from ingero.fleet.processor import FleetProcessor, Taken
from ingero.fleet.receive import STOPPING, Receiver
from ingero.fleet.replicas.metrics import replica_families
from ingero.fleet.verdict_metrics import job_families, verdict_families
from ingero.stopping import end_tasks
from ingero.transport.access import Access
from ingero.transport.otlp.decoding import TICK_SLICE_S, finish, finish_in_slices
from ingero.transport.otlp.server_http import push_protocol

if TYPE_CHECKING:
    from ingero.fleet.replicas.replica import Replica
    from ingero.transport.cluster_log.port import ClusterLog

TICK_S = 1.0
PRICES_EVERY_S = 5.0
log = logging.getLogger(__name__)


class FleetService:
    """Everything that `ingero-fleet` runs; `addresses` holds the address of each listener.

    `reread` reads the configuration again when the service is reloaded.
    """

    reread: Callable[[], FleetConfig] | None = None

    def __init__(
        self,
        config: FleetConfig,
        *,
        tick_s: float = TICK_S,
        cluster_log: "ClusterLog | None" = None,
    ) -> None:
        self.config = config
        self._tick_s = tick_s
        settings = config.processors.ingero
        self.processor = FleetProcessor(
            settings.policy(),
            max_nodes=settings.max_expected_nodes,
            expected_nodes=settings.quorum.expected_nodes,
            max_clusters=settings.max_clusters,
        )
        self.exporters = FleetExporters(self.processor.policy.ttl_s)
        self._listeners = FleetListeners()
        self.addresses = self._listeners.addresses
        self._ready = False
        self._warned_defaulted = False
        self.failed_ticks = 0
        self._tasks: list[asyncio.Task[None]] = []
        # verdicts carry Unix time, computed so that it never steps back
        self.unix_offset_s = time.time() - time.monotonic()
        rates = load_rates(settings.verdict.rates_file)
        self._prices = GpuPrices(rates)
        self._prices_due_s = -math.inf
        self.judgement = Judgement(config, rates)
        self.verdicts, self.episodes = self.judgement.verdicts, self.judgement.episodes
        self.replica = self._join(cluster_log, rates)
        # What is received here; several replicas agree on `processor`.
        self.intake = self.processor if self.replica is None else self.replica.intake
        providers = load_providers(config.processors.providerlookup.file)
        self.receiver = Receiver(self.intake, providers=providers)
        self.live = LiveHub(self.processor, self.verdicts, self.episodes)
        self.enrolment = build_enrolment(config)
        if settings.verdict.enabled:
            self.intake.on_measurements = self._measured
            self.intake.on_own_times = self._own_times
            self.receiver.answers.verdict_texts = self.verdicts.texts
            self.receiver.answers.ask_texts = self.verdicts.causes.texts

    def _join(self, cluster_log: "ClusterLog | None", rates: RateTable) -> "Replica | None":
        """Return the replica that this process is, where it is one of several."""
        if cluster_log is None and self.config.cluster_log.url is None:
            return None
        # what only a Fleet of several replicas needs
        from ingero.fleet.replicas.build import build_replica, open_log  # noqa: PLC0415 - see above

        found = cluster_log or open_log(self.config.cluster_log)
        parts = (self.config, found, self.processor, self.judgement, rates)
        replica = build_replica(*parts, lambda now_s: finish(self._advance(now_s)))
        replica.send_record = self._send_record
        self.unix_offset_s = 0.0  # the log's time is Unix time
        return replica

    async def start(self) -> None:
        """Bind every listener and serve; raise IngeroError and leave nothing open."""
        try:
            self.judgement.load()
            self.receiver.refuses = "" if self.replica is None else self.replica.why_not
            self.receiver.sinks = self.exporters.build(self.config)
            if self.enrolment is not None:  # a certificate may have expired while Fleet was down
                self.enrolment.certificates.check(datetime.now(UTC))
            await self._open_listeners()
        except BaseException:
            await self._listeners.close()
            raise
        self.exporters.start()
        self._tasks = [
            asyncio.create_task(self._tick_forever()),
            asyncio.create_task(self._report_forever()),
        ]
        if self.enrolment is not None:
            renewing = self.enrolment.certificates.renew_forever(self._listeners.renew_certificates)
            self._tasks.append(asyncio.create_task(renewing))
        self.judgement.start()
        if self.replica is not None:
            self.replica.start()
        self._ready = True
        self._listeners.warn()
        log.info("fleet_started", extra=self.addresses)

    async def _open_listeners(self) -> None:
        """Open the OTLP listeners last, so that what is accepted can be read at once."""
        if (enrolment := self.enrolment) is not None:
            enrolment.refresh()
            self._listeners.issued = lambda: enrolment.keys
        asked = {listener.name: listener for listener in self.config.listeners()}
        serve, processor = self._listeners.serve_http, self.processor
        if "threshold" in asked:
            await serve(asked["threshold"], self._threshold_app)
            await serve(asked["admin"], lambda access: admin_app(processor, access, self.now))
        await serve(
            asked["health"],
            lambda access: health_app(
                self.receiver, lambda: self._ready, access, self._listeners.operations
            ),
        )
        await serve(
            asked["metrics"], lambda access: metrics_app(lambda _: self._render_own(), access)
        )
        for name, series in self.exporters.series.items():
            await serve(asked[name], partial(metrics_app, series.render_pieces))
        http = self.config.receivers.otlp.protocols.http
        if http is not None:
            fast_path = self.receiver.fast_path(http.max_body_bytes)
            protocol = push_protocol(self.receiver.answer, http.max_body_bytes, fast_path)
            self.receiver.limit_requests(http.max_requests_per_s)
            await serve(
                asked["http"],
                lambda access: receiver_app(self.receiver, access, http.max_body_bytes),
                protocol,
            )
        if "grpc" in asked:
            await self._listeners.serve_grpc(asked["grpc"], self.receiver)

    def _threshold_app(self, access: Access) -> Starlette:
        access.users = signed_in_users(self.config.extensions.ingero_threshold.proxy)
        page = live_routes(
            self.live,
            self.verdicts,
            lambda: [series.kept.bodies for series in self.exporters.series.values()],
            access,
            lambda: self._moment(self.now()),
        )
        limits = limit_routes(lambda: self.processor.policy, self._set_limits, access)
        routes = [*page, *episode_routes(self.episodes, self._episode, access), *limits]
        if self.enrolment is not None:
            routes += EnrolmentApi(self.enrolment, self._push_port, access).routes()
        return threshold_app(
            self.processor,
            access,
            self.verdicts,
            routes,
            clock=self.now,
            refuses=lambda: self.receiver.refuses if self.replica is not None else "",
            share=None if self.replica is None else self.replica.share,
        )

    def now(self) -> float:
        """Return the time by which nodes and verdicts are judged; replicas answer alike by it."""
        if self.replica is None:
            return time.monotonic()
        return self.replica.shared.ticked_s

    async def _set_limits(self, policy: ThresholdPolicy) -> None:
        if self.replica is None:
            self.processor.set_limits(policy)
        else:
            await self.replica.share(LimitsSet(limits_of(policy)))

    def _push_port(self) -> int | None:
        """Return where enrolled nodes push: over HTTP where it is served; None while starting."""
        if not self._ready:
            return None
        address = self.addresses.get("http") or self.addresses["grpc"]
        return int(address.rpartition(":")[2])

    def _episode(self, name: str) -> Episode | None:
        return self.judgement.look_up(name, self._moment(time.monotonic()).unix_s)

    def _moment(self, now_s: float) -> Moment:
        return Moment(now_s, now_s + self.unix_offset_s)

    async def _tick_forever(self) -> None:
        while True:
            await asyncio.sleep(self._tick_s)
            try:
                with self._listeners.operations.measured("tick"):
                    await finish_in_slices(self._tick(time.monotonic()), TICK_SLICE_S)
                if self.replica is not None and self.receiver.refuses != STOPPING:
                    self.receiver.refuses = self.replica.why_not
                await self.judgement.settle()
            except Exception:  # one failed tick must not stop all later ones
                self.failed_ticks += 1
                log.exception("tick_failed")
            if self.intake.counters.defaulted and not self._warned_defaulted:
                self._warned_defaulted = True
                log.warning(
                    "cluster_defaulted",
                    extra={"cluster": DEFAULT_CLUSTER, "next": "set ingero.cluster.id"},
                )

    def _measured(
        self, request: MetricsRequest, cluster: str, now_s: float, address: str | None
    ) -> None:
        if self.replica is not None:
            self.replica.outbox.add_push(cluster, encode_protobuf(request), now_s)
        else:
            self.judgement.take(request, cluster, now_s + self.unix_offset_s)

    def _own_times(self, columns: OwnTimeColumns, body: bytes, cluster: str, now_s: float) -> None:
        if self.replica is not None:
            self.replica.outbox.add_push(cluster, body, now_s)
        else:
            self.judgement.take_own_times(columns, body, cluster, now_s + self.unix_offset_s)

    def tick(self, now_s: float) -> None:
        """Recompute thresholds and verdicts; `now_s` is monotonic time.

        Replicas advance them when the log says so, and only take over the result here.
        """
        finish(self._tick(now_s))

    def _tick(self, now_s: float) -> Generator[None, None, None]:
        """Do what `tick` does, with pauses in which pushes are answered."""
        self.receiver.second_passed()
        if self.enrolment is not None:
            self.enrolment.refresh()
        if self.replica is None:
            yield from self._advance(now_s)
        else:
            self.replica.freeze(now_s)
            self.intake.tick(now_s)

    def _advance(self, now_s: float) -> Generator[None, None, None]:
        """Recompute everything; `now_s` is the log's time where there is one."""
        yield from self.processor.tick_in_steps(now_s)
        if now_s >= self._prices_due_s:
            self._prices_due_s = now_s + PRICES_EVERY_S
            yield from self._prices.update(self.processor)
        changed = self.judgement.tick(now_s + self.unix_offset_s)
        sinks = self.receiver.sinks.get(LogsRequest, ())
        if changed and sinks:
            body = encode_protobuf(encode_verdict_logs(changed, time.time_ns()))
            if self.replica is not None:
                self.replica.shared.owe(body)
            for sink in sinks if self.replica is None else ():
                sink.offer(LogsRequest, body, Encoding.PROTOBUF, Taken("", ""))
        self.live.tick(self._moment(now_s))
        if self.replica is not None:
            self.intake.tick(time.monotonic())

    def _send_record(self, body: bytes, done: Callable[[], None]) -> bool:
        """Send verdict records for all replicas; False where this one has nowhere to send them."""
        sinks = self.receiver.sinks.get(LogsRequest, ())
        followed = [sink for sink in sinks if isinstance(sink, Forwarder)]
        for sink in sinks:
            if sink in followed[:1]:
                followed[0].offer_followed(LogsRequest, body, done)
            else:
                sink.offer(LogsRequest, body, Encoding.PROTOBUF, Taken("", ""))
        if sinks and not followed:
            done()
        return bool(sinks)

    async def _report_forever(self) -> None:
        """Export Fleet's own series to where received metrics are forwarded."""
        while True:
            await asyncio.sleep(self.processor.policy.push_interval_s)
            try:
                is_mine = self.replica is None or self.replica.may_send(self.now())
                if self.exporters.forwarders and self.processor.clusters and is_mine:
                    gpus = self._prices.families(self.processor)
                    self.exporters.report(own_series(self.processor, time.time_ns(), gpus))
            except Exception:  # one that fails must not stop all later ones
                log.exception("report_failed")

    async def _render_own(self) -> bytes:
        return render(
            cluster_families(self.processor)
            + verdict_families(self.verdicts, self.processor.provider_of)
            + self._prices.families(self.processor)
            + job_families(self.verdicts)
            + certificate_families(self._listeners)
            + cause_families(self.verdicts)
            + engine_families(self.verdicts.engines)
            + recording_families(self.judgement.inputs)
            + live_families(self.live)
            + episode_families(self.episodes, self.judgement.episode_files)
            + alert_families(self.judgement.alerts)
            + enrolment_families(self.enrolment)
            + replica_families(self.intake, self.replica, time.monotonic())
            + service_families(
                self.receiver,
                self._listeners,
                self.failed_ticks,
                self.exporters.families(),
            )
        )

    def reload(self) -> None:
        """Read tokens and certificates again; a wrong file is logged and its old content kept."""
        for reloaded in (*self._listeners.secrets, *self.exporters.backends):
            try:
                reloaded.reload()
            except IngeroError as error:
                log.error("reload_failed", extra={"why": str(error)})
        self.live.close()  # clients connect again, and their tokens are checked again
        if self.reread is not None:
            try:
                self._relimit(self.reread().processors.ingero.policy())
            except IngeroError as error:
                log.error("reload_failed", extra={"why": str(error)})
        log.info("reloaded")

    def _relimit(self, policy: ThresholdPolicy) -> None:
        """Use the limits of a file that was read again, in all replicas."""
        if self.replica is None:
            self.processor.set_limits(policy)
        else:
            self.replica.outbox.add(LimitsSet(limits_of(policy)))

    async def stop(self) -> None:
        """Refuse new requests, finish running and queued ones; close the health page last."""
        self.receiver.refuses = STOPPING
        self._ready = False
        await end_tasks(self._tasks)
        self.live.close()
        await self._listeners.drain()
        if self.replica is not None:
            await self.replica.stop()
        await self.exporters.stop()
        await self._listeners.close()
        await self.judgement.stop()
        log.info("fleet_stopped")
