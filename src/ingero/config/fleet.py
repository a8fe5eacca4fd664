"""Settings of `ingero-fleet`, shaped like a Collector's file: receivers, processors, extensions, exporters, service.

Without a file everything binds to loopback. A component that a section names exists; one that it leaves out does not,
except that a missing section means its defaults.
"""

from dataclasses import dataclass
from pathlib import Path

from ingero.config.fleet_exporters import (
    EXPORTERS,
    ExporterConfig,
    PrometheusExporterConfig,
    exporter_kind,
)
from ingero.config.fleet_listeners import ACCESS_HELP, ListenerConfig, ListenerTlsConfig
from ingero.config.values import check_address
from ingero.core.health.threshold import ThresholdPolicy
from ingero.core.setting import same_setting, setting
from ingero.errors import ConfigError
from ingero.transport.listen import EVERYWHERE, parse_address
from ingero.transport.tls import is_loopback


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcReceiverConfig(ListenerConfig):
    """OTLP over gRPC."""

    endpoint: str = setting(
        "127.0.0.1:4317",
        flag="--grpc",
        metavar="[HOST:]PORT",
        help="Address for OTLP over gRPC; `off` as the flag's value, or a file without this "
        "section, disables it.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpReceiverConfig(ListenerConfig):
    """OTLP over HTTP."""

    endpoint: str = setting(
        "127.0.0.1:4318",
        flag="--http",
        metavar="[HOST:]PORT",
        help="Address for OTLP over HTTP; `off` as the flag's value, or a file without this "
        "section, disables it.",
    )
    max_body_bytes: int = setting(
        4 << 20,
        size=True,
        range=(1024, 64 << 20),
        help="Largest body of a request; larger ones get status 413. Decompressed, the limit is "
        "32 MiB.",
    )
    max_requests_per_s: int = setting(
        0,
        range=(0, None),
        help="Requests per second beyond which clients get status 429 with Retry-After; 0 means "
        "no limit.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolsConfig:
    grpc: GrpcReceiverConfig | None = None
    http: HttpReceiverConfig | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OtlpReceiverConfig:
    protocols: ProtocolsConfig = setting(
        ProtocolsConfig(grpc=GrpcReceiverConfig(), http=HttpReceiverConfig())
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiversConfig:
    otlp: OtlpReceiverConfig = setting(OtlpReceiverConfig())


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdConfig:
    """How far below its peers a node must be; see the worked numbers in docs/configuration.md."""

    k: float = same_setting(ThresholdPolicy, "k")
    ema_alpha: float = same_setting(ThresholdPolicy, "ema_alpha")
    min: float = same_setting(ThresholdPolicy, "min")
    max: float = same_setting(ThresholdPolicy, "max")
    min_gap: float = same_setting(ThresholdPolicy, "min_gap")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumConfig:
    statistical_min: int = same_setting(ThresholdPolicy, "statistical_min")
    coverage_fraction: float = same_setting(ThresholdPolicy, "coverage_fraction")
    expected_nodes: int = setting(
        0,
        range=(0, None),
        help="Nodes that the cluster should have; 0 counts those that pushed lately.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictConfig:
    """Verdicts by own time; the files price them."""

    enabled: bool = setting(
        True,
        help="Compute verdicts from own times and collectives; they are part of replies, logs "
        "and metrics.",
    )
    rates_file: Path | None = setting(
        None,
        help="File with your prices per GPU hour, added to the shipped ones; `ingero rates check` "
        "validates it.",
    )
    providers_file: Path | None = setting(
        None,
        help="File that names the provider of each node: `addresses` (network: provider) and "
        "`labels` (`key=value`: provider).",
    )
    record_inputs: Path | None = setting(
        None,
        flag="--record-inputs",
        metavar="FOLDER",
        help="Folder to record the inputs of verdicts in, for `ingero replay`.",
    )
    record_max_bytes: int = setting(
        256 << 20,
        size=True,
        range=(1 << 20, None),
        help="Size limit of that folder; the oldest of its eight files is deleted first.",
    )
    silences_file: Path | None = setting(
        None,
        flag="--silences",
        help="File that keeps silences over a restart; without it they end with the process.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class IngeroProcessorConfig:
    """The threshold of each cluster, and when a node counts."""

    threshold: ThresholdConfig = setting(ThresholdConfig())
    quorum: QuorumConfig = setting(QuorumConfig())
    verdict: VerdictConfig = setting(VerdictConfig())
    push_interval: float = same_setting(ThresholdPolicy, "push_interval_s")
    ttl_multiplier: int = same_setting(ThresholdPolicy, "ttl_multiplier")
    max_expected_nodes: int = setting(
        10_000,
        range=(1, 1_000_000),
        help="Nodes that one cluster may have; more are refused and counted.",
    )
    max_clusters: int = setting(
        1024,
        range=(1, 100_000),
        help="Clusters that this Fleet may have; more are refused and counted.",
    )

    def __post_init__(self) -> None:
        try:
            self.policy()
        except (
            ConfigError
        ) as error:  # two settings contradict each other; it names the field, not the section
            field = str(error).partition(":")[0]
            section = next(
                (name for name in ("threshold", "quorum") if hasattr(getattr(self, name), field)),
                None,
            )
            raise ConfigError(f"{section}.{error}" if section else str(error)) from None

    def policy(self) -> ThresholdPolicy:
        """As core takes it."""
        return ThresholdPolicy(
            k=self.threshold.k,
            ema_alpha=self.threshold.ema_alpha,
            min=self.threshold.min,
            max=self.threshold.max,
            min_gap=self.threshold.min_gap,
            statistical_min=self.quorum.statistical_min,
            coverage_fraction=self.quorum.coverage_fraction,
            push_interval_s=self.push_interval,
            ttl_multiplier=self.ttl_multiplier,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorsConfig:
    ingero: IngeroProcessorConfig = setting(IngeroProcessorConfig())


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdExtensionConfig:
    """The threshold by GET for agents, and the state of everything for people on this machine."""

    agent_endpoint: str = setting(
        "127.0.0.1:8080",
        flag="--agent",
        metavar="[HOST:]PORT",
        help="Address at which agents can poll their threshold with GET.",
    )
    admin_endpoint: str = setting(
        "127.0.0.1:8081",
        flag="--admin",
        metavar="[HOST:]PORT",
        help="Address that shows the state of every node; loopback only.",
    )
    tls: ListenerTlsConfig | None = None
    token_file: Path | None = setting(None, help=ACCESS_HELP)

    def __post_init__(self) -> None:
        check_address("agent_endpoint", self.agent_endpoint)
        check_address("admin_endpoint", self.admin_endpoint)
        if not is_loopback(self.admin_endpoint):
            raise ConfigError(
                f"admin_endpoint: {self.admin_endpoint} is not a loopback address; "
                "it shows every node, so it binds to 127.0.0.1 or ::1 only"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ZpagesConfig(ListenerConfig):
    """Health, readiness and a plain status page."""

    endpoint: str = setting(
        "127.0.0.1:55679",
        flag="--health",
        metavar="[HOST:]PORT",
        help="Address of health, readiness and a status page; always served.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtensionsConfig:
    ingero_threshold: ThresholdExtensionConfig = setting(ThresholdExtensionConfig())
    zpages: ZpagesConfig = setting(ZpagesConfig())


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineConfig:
    receivers: tuple[str, ...] = setting(
        ("otlp",), choices=("otlp",), help="Receivers that feed this pipeline."
    )
    processors: tuple[str, ...] = setting(
        (), choices=("ingero",), help="Processors of this pipeline; metrics need `ingero`."
    )
    exporters: tuple[str, ...] = setting(
        (), help="Exporters, by the names they have in the section `exporters`."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinesConfig:
    metrics: PipelineConfig = setting(
        PipelineConfig(processors=("ingero",), exporters=("prometheus",))
    )
    traces: PipelineConfig = setting(PipelineConfig())
    logs: PipelineConfig = setting(PipelineConfig())

    def __post_init__(self) -> None:
        if "ingero" not in self.metrics.processors:
            raise ConfigError(
                "metrics.processors: must name ingero; without it there is no threshold to serve"
            )
        for name in ("traces", "logs"):
            for exporter in getattr(self, name).exporters:
                if exporter_kind(exporter) == "prometheus":
                    raise ConfigError(f"{name}.exporters: {exporter} takes metrics only")


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryMetricsConfig:
    address: str = setting(
        "127.0.0.1:8888",
        flag="--metrics",
        metavar="[HOST:]PORT",
        help="Address of Fleet's own metrics.",
    )
    tls: ListenerTlsConfig | None = None
    token_file: Path | None = setting(None, help=ACCESS_HELP)

    def __post_init__(self) -> None:
        check_address("address", self.address)


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryConfig:
    metrics: TelemetryMetricsConfig = setting(TelemetryMetricsConfig())


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    extensions: tuple[str, ...] = setting(
        ("ingero_threshold",),
        choices=("ingero_threshold", "zpages"),
        help="Extensions to start: `ingero_threshold` serves threshold and diagnostics.",
    )
    pipelines: PipelinesConfig = setting(PipelinesConfig())
    telemetry: TelemetryConfig = setting(TelemetryConfig())


@dataclass(frozen=True, slots=True)
class Listener:
    """One address Fleet opens, and the key in the file that says so."""

    name: str
    key: str
    endpoint: str
    tls: ListenerTlsConfig | None
    token_file: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetConfig:
    """The whole file."""

    receivers: ReceiversConfig = setting(ReceiversConfig())
    processors: ProcessorsConfig = setting(ProcessorsConfig())
    extensions: ExtensionsConfig = setting(ExtensionsConfig())
    exporters: dict[str, ExporterConfig] = setting(
        {"prometheus": PrometheusExporterConfig()}, components=EXPORTERS
    )
    service: ServiceConfig = setting(ServiceConfig())

    def __post_init__(self) -> None:
        for signal in ("metrics", "traces", "logs"):
            for exporter in getattr(self.service.pipelines, signal).exporters:
                if exporter not in self.exporters:
                    defined = ", ".join(sorted(self.exporters)) or "none"
                    key = f"service.pipelines.{signal}.exporters"
                    problem = f"{exporter} is not defined; the section exporters has: {defined}"
                    raise ConfigError(f"{key}: {problem}; list those that {signal} go to")
        self._check_ports()

    def _check_ports(self) -> None:
        """Two listeners on one port would be found out by the second only, after the first took it."""
        taken: dict[int, tuple[str, str]] = {}
        for listener in self.listeners():
            host, port = parse_address(listener.endpoint)
            other, other_host = taken.setdefault(port, (listener.key, host))
            if (
                port
                and other != listener.key
                and (host == other_host or {host, other_host} & EVERYWHERE)
            ):
                raise ConfigError(
                    f"{listener.key}: port {port} is taken by {other}; choose another"
                )

    def listeners(self) -> list[Listener]:
        """Every address this configuration opens."""
        protocols, extensions, found = self.receivers.otlp.protocols, self.extensions, []
        for name in ("grpc", "http"):
            receiver: ListenerConfig | None = getattr(protocols, name)
            if receiver is not None:
                key = f"receivers.otlp.protocols.{name}.endpoint"
                found.append(
                    Listener(name, key, receiver.endpoint, receiver.tls, receiver.token_file)
                )
        own = extensions.ingero_threshold
        if "ingero_threshold" in self.service.extensions:
            section = "extensions.ingero_threshold"
            agents = Listener(
                "threshold",
                f"{section}.agent_endpoint",
                own.agent_endpoint,
                own.tls,
                own.token_file,
            )
            admin = Listener(
                "admin", f"{section}.admin_endpoint", own.admin_endpoint, own.tls, own.token_file
            )
            found += [agents, admin]
        pages, metrics = extensions.zpages, self.service.telemetry.metrics
        found += [
            Listener(
                "health", "extensions.zpages.endpoint", pages.endpoint, pages.tls, pages.token_file
            ),
            Listener(
                "metrics",
                "service.telemetry.metrics.address",
                metrics.address,
                metrics.tls,
                metrics.token_file,
            ),
        ]
        for name, exporter in self.exporters.items():
            if isinstance(exporter, PrometheusExporterConfig):
                key = f"exporters.{name}.endpoint"
                found.append(
                    Listener(name, key, exporter.endpoint, exporter.tls, exporter.token_file)
                )
        return found
