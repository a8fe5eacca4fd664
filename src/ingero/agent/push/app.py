"""`ingero fleet-push`: builds the agent of one node from its settings and runs it."""

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path

from ingero.agent.causes.gpu_signals import GpuSignals
from ingero.agent.causes.watch import CauseWatch
from ingero.agent.engines.steps import ProbedSteps
from ingero.agent.engines.watch import EngineWatch
from ingero.agent.host import identity as who
from ingero.agent.host.gpu import Gpus
from ingero.agent.host.sockets import own_socket
from ingero.agent.push.cause_metrics import cause_families, chain_families
from ingero.agent.push.chains import ChainReports
from ingero.agent.push.collective_feed import CollectiveFeed, RingFeed, TableFeed
from ingero.agent.push.collectives import LiveCollectives
from ingero.agent.push.connect import Connections
from ingero.agent.push.engines import EngineFeed, engine_families, watch_engines
from ingero.agent.push.loop import SHUTDOWN_TIMEOUT_S, LoopSettings, PushLoop
from ingero.agent.push.rank_processes import AskedClient, watched
from ingero.agent.push.rank_report import RankPlace
from ingero.agent.push.signals import ReplaySource, SignalSource, StubSource, TraceSource
from ingero.agent.push.spans import EpisodeSpans
from ingero.agent.push.step_feed import StepFeed
from ingero.agent.sight.own import OwnSight, Sight
from ingero.config.ingero import CollectivesFrom, IngeroConfig, trace_database
from ingero.contract.exposition import Family
from ingero.contract.names import DEFAULT_CLUSTER
from ingero.contract.push.encode import StragglerEvent
from ingero.contract.straggler import SOCKET_NAME
from ingero.contract.types import Identity, NodeState
from ingero.core.health.lifecycle import Lifecycle
from ingero.core.health.modes import ModePolicy
from ingero.core.health.monitor import MonitorPolicy, NodeMonitor
from ingero.errors import ConfigError, IngeroError, Unavailable
from ingero.stopping import stop_on_signals
from ingero.storage.baseline_file import LoadOutcome, load_baseline
from ingero.storage.caller import state_folder
from ingero.storage.trace.aggregates import TraceReader
from ingero.transport.listen import bind
from ingero.transport.otlp.client import HttpPush, PushClient
from ingero.transport.otlp.client_grpc import GrpcPush
from ingero.transport.tls import is_loopback
from ingero.transport.uds import LineServer

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """Options that exist only on the command line."""

    stub: bool = False
    replay: Path | None = None
    metrics_listen: str | None = None
    ready_listen: str | None = None
    max_ticks: int | None = None
    persist: bool = True
    # a simulated node provides its own signals, collectives and GPU
    source: SignalSource | None = None
    feeds: Sequence[CollectiveFeed] = ()
    gpu_model: str | None = None
    # reads the settings again on SIGHUP; None where SIGHUP means that the terminal was closed
    reread: Callable[[], IngeroConfig] | None = None
    sight: Sight = field(default_factory=OwnSight)  # who looks at processes of others


def default_baseline() -> Path:
    """Return where the baseline is kept."""
    return state_folder() / "health-baseline.json"


class Agent:
    """The agent of one node. Building it checks every setting and opens nothing."""

    def __init__(self, config: IngeroConfig, options: AgentOptions) -> None:
        fleet = config.fleet
        if not fleet.endpoint:
            raise ConfigError(
                "no Fleet to push to; give --fleet-endpoint HOST:PORT, "
                "or set fleet.endpoint in ingero.yaml"
            )
        if not fleet.cluster_id:
            log.warning(
                "cluster_defaulted",
                extra={
                    "cluster": DEFAULT_CLUSTER,
                    "next": "name it with --fleet-cluster-id or fleet.cluster_id of ingero.yaml",
                },
            )
        self.config = config
        self.options = options
        self._has_own_signals = not (options.stub or options.replay or options.source)
        self.identity = Identity(
            node=fleet.node_id or config.agent.node or who.default_node(),
            cluster=fleet.cluster_id or DEFAULT_CLUSTER,
            job=fleet.job_id,
            role=fleet.role,
            rank=fleet.node_rank if fleet.world_size else None,
            world_size=fleet.world_size or None,
            provider=fleet.provider or who.provider(),
            labels=tuple(sorted(config.agent.labels.items())),
        )
        self._connections = Connections(config, fleet.endpoint, self.identity)
        self.client = self._connections.fleet()
        self.poll = self._connections.poll()
        self.monitor = NodeMonitor(
            self.identity,
            _monitor_policy(config),
            workload=fleet.workload_type,
            cgroup_hash=who.cgroup_hash(),
        )
        self._spans = self._connections.spans()
        self.socket: LineServer | None = None
        self.loop: PushLoop | None = None
        self.collectives: LiveCollectives | None = None
        self.causes: CauseWatch | None = None
        self.chains: ChainReports | None = None
        self.engines: EngineWatch | None = None
        self.metrics_address: str | None = None

    async def run(self, stop: asyncio.Event | None = None) -> None:
        """Run until stopped by `stop`, SIGTERM or SIGINT, or until a replayed file ends."""
        stop = stop or _stop_on_signals(self.reload if self.options.reread else None)
        loop = self._make_loop(self._restore())
        async with contextlib.AsyncExitStack() as opened:
            if self.socket is not None:
                self.socket.snapshot = loop.reporter.snapshot
                await self.socket.start()
                opened.push_async_callback(self.socket.close)
            if self.options.metrics_listen:
                opened.push_async_callback(
                    await self._serve_metrics(loop, self.options.metrics_listen)
                )
            if self._spans is not None:
                opened.push_async_callback(self._spans.close)
            self._measure_collectives(loop, opened, stop)
            self._report_chains(opened, stop)
            await self._watch_engines(loop, opened, stop)
            self._log_start()
            await loop.run(stop)

    def _measure_collectives(
        self, loop: PushLoop, opened: contextlib.AsyncExitStack, stop: asyncio.Event
    ) -> None:
        """Push own time and collectives of the ranks on this node until `stop`.

        They have their own connection to Fleet.
        """
        feeds: list[CollectiveFeed] = [
            EngineFeed(each, self._engine_job) for each in self._collective_feeds()
        ]
        if not feeds:
            return
        loop.lost = lambda: sum(feed.lost for feed in feeds)
        client: PushClient = self._another_client(opened)
        gpus, sight = GpuSignals(), self.options.sight
        if self.config.signals.causes:
            look = self.options.sight.look
            self.causes = CauseWatch(client, self.identity, gpus, look=look)
            feeds = watched(feeds, self.causes, self.identity.job)
            client = AskedClient(client, self.causes)
            opened.push_async_callback(_end, asyncio.create_task(self.causes.run(stop)))
        self.collectives = LiveCollectives(
            feeds,
            client,
            self.identity,
            loop.reporter.receive,
            lambda: self.options.gpu_model or _gpu_model(),
            lambda pid, local_rank: RankPlace(gpus.uuid(pid, local_rank), sight.name_pod(pid)),
        )
        opened.push_async_callback(_end, asyncio.create_task(self.collectives.run(stop)))

    def _another_client(self, opened: contextlib.AsyncExitStack) -> HttpPush | GrpcPush:
        client = self._connections.measurements()
        opened.push_async_callback(client.close)
        return client

    def _report_chains(self, opened: contextlib.AsyncExitStack, stop: asyncio.Event) -> None:
        """Send the causal chains that the recorder on this node finds, until `stop`."""
        if not self._has_own_signals or not self.config.signals.causes:
            return
        database = trace_database(config=self.config)
        self.chains = ChainReports(database, self._another_client(opened), self.identity)
        opened.push_async_callback(_end, asyncio.create_task(self.chains.run(stop)))

    def _engine_job(self, pid: int) -> str | None:
        return None if self.engines is None else self.engines.job_of(pid)

    async def _watch_engines(
        self, loop: PushLoop, opened: contextlib.AsyncExitStack, stop: asyncio.Event
    ) -> None:
        """Watch inference engines, unless the signals of this node are not its own."""
        signals = self.config.signals
        if signals.engines and self._has_own_signals:
            client: PushClient = self._another_client(opened)
            reader = TraceReader(trace_database(config=self.config))
            opened.callback(reader.close)
            self.engines = EngineWatch(
                client,
                self.identity,
                loop.reporter.receive,
                _gpu_model,
                signals.engine_stall_s,
                probed=ProbedSteps(reader, time.time_ns()),
                sight=self.options.sight,
            )
            await watch_engines(self.engines, self.options.ready_listen, opened, stop)

    def _collective_feeds(self) -> Sequence[CollectiveFeed]:
        """Choose where collectives are read.

        Rings are read directly. The trace database adds what only probes recorded, or everything
        where it is configured, and the steps that jobs name.
        """
        chosen = self.config.signals.collectives
        if chosen is CollectivesFrom.OFF or not self._has_own_signals:
            return self.options.feeds
        path = trace_database(config=self.config)
        table = StepFeed(TableFeed(path, with_plugin=chosen is CollectivesFrom.DB), path)
        if chosen is CollectivesFrom.DB:
            return [table]
        rings = RingFeed(self.identity.node)
        return [rings] if chosen is CollectivesFrom.RINGS else [rings, table]

    async def _serve_metrics(self, loop: PushLoop, address: str) -> Callable[[], Awaitable[None]]:
        """Serve the metrics; return how to stop.

        The web server takes a quarter of the start-up time, and most nodes do not need it.
        """
        from ingero.agent.push.metrics_page import metrics_app  # noqa: PLC0415 - slow to import
        from ingero.transport.http import HttpListener  # noqa: PLC0415 - slow to import

        listener = HttpListener(
            metrics_app(loop, self.socket, lambda: self.collectives, self.other_families),
            bind(address),
        )
        await listener.start()
        self.metrics_address = listener.address
        if not is_loopback(address):
            log.warning(
                "metrics_open",
                extra={"listen": address, "reason": "anyone who can connect can read them"},
            )
        return listener.stop

    def other_families(self) -> list[Family]:
        """Return the metrics of causes, chains and engines."""
        return [
            *cause_families(self.causes),
            *chain_families(self.chains),
            *engine_families(self.engines),
        ]

    def _make_loop(self, persist_path: Path | None) -> PushLoop:
        remediate, fleet = self.config.remediate, self.config.fleet
        if remediate.enabled:
            self.socket = LineServer(remediate.socket or own_socket(SOCKET_NAME), gid=remediate.gid)
        self.loop = PushLoop(
            self.monitor,
            self._source(),
            self.client,
            LoopSettings(
                push_interval_s=fleet.push_interval_s,
                poll_interval_s=fleet.poll_interval_s,
                persist_path=persist_path,
                max_ticks=self.options.max_ticks,
                version=version("ingero"),
            ),
            chance=self._connections.chance,
            poll=self.poll,
            socket=self.socket,
            on_event=self._export_span() if self._spans else None,
        )
        return self.loop

    def reload(self) -> None:
        """Apply changed limits of scores and classification; baselines and episodes are kept."""
        assert self.options.reread is not None
        try:
            policy = _monitor_policy(self.options.reread())
        except IngeroError as error:
            log.error("limits_kept", extra={"problem": str(error)})
            return
        before = self.monitor.policy
        self.monitor.policy = replace(policy, modes=before.modes)  # intervals need a restart
        log.info("limits_read", extra={"changed": self.monitor.policy != before})

    def _log_start(self) -> None:
        log.info(
            "agent_started",
            extra={
                "node": self.identity.node,
                "cluster": self.identity.cluster,
                "fleet": self.config.fleet.endpoint,
                "push_interval_s": self.config.fleet.push_interval_s,
                "socket": str(self.socket.path) if self.socket else None,
                "metrics": self.metrics_address,
            },
        )

    def _restore(self) -> Path | None:
        """Load the saved baseline, so that a restart needs no warm-up."""
        if not self.options.persist:
            return None
        persistence = self.config.health.persistence
        path = persistence.path or default_baseline()
        loaded = load_baseline(
            path, self.config.health.baseline, time.time_ns(), persistence.stale_age_s
        )
        if loaded.baseline is not None:
            self.monitor.baseline = loaded.baseline
            self.monitor.lifecycle = Lifecycle(state=NodeState.ACTIVE)
        if loaded.outcome is not LoadOutcome.MISSING:
            log.info(
                "baseline_found",
                extra={"outcome": loaded.outcome.value, "path": str(path), "detail": loaded.detail},
            )
        return path

    def _source(self) -> SignalSource:
        if self.options.source is not None:
            return self.options.source
        if self.options.stub:
            return StubSource()
        if self.options.replay is not None:
            return ReplaySource(self.options.replay)
        return TraceSource(
            trace_database(config=self.config),
            window_s=self.config.signals.window_s,
            num_gpus=self.config.signals.num_gpus,
            gpus=Gpus(),
            cgroup_of=who.cgroup_hash,
            now_ns=time.time_ns(),
        )

    def _export_span(self) -> Callable[[StragglerEvent], Awaitable[None]]:
        spans = EpisodeSpans(
            self.identity,
            self.config.fleet.workload_type,
            self.monitor.cgroup_hash,
            version("ingero"),
        )

        async def export(event: StragglerEvent) -> None:
            model = "" if event.is_straggler else await asyncio.to_thread(_gpu_model)
            request = spans.add(event, model or "")
            if request is not None and self._spans is not None:
                await self._spans.push_spans(request)

        return export


async def _end(task: asyncio.Task[None]) -> None:
    """Wait for a task that was told to stop, but not for a Fleet that is slow to answer."""
    await asyncio.wait({task}, timeout=SHUTDOWN_TIMEOUT_S)
    task.cancel()
    await asyncio.wait({task})


def _gpu_model() -> str | None:
    try:
        return Gpus().info().model
    except Unavailable:
        return None


def _monitor_policy(config: IngeroConfig) -> MonitorPolicy:
    health = config.health
    return MonitorPolicy(
        score=health.score_policy(),
        baseline=health.baseline,
        lifecycle=health.state,
        modes=ModePolicy(
            push_interval_s=config.fleet.push_interval_s,
            cached_max_age_s=config.fleet.cached_max_age_s,
        ),
        classifier=health.classifier,
        fallback_mode=config.fleet.detection_mode,
        unreachable_after=config.fleet.failure_threshold,
    )


def _stop_on_signals(reload: Callable[[], None] | None) -> asyncio.Event:
    stop = stop_on_signals()
    # without `reload`, the agent shuts down properly when its terminal is closed
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload or stop.set)
    return stop
