"""The settings of `ingero-fleet`, in the shape of an OpenTelemetry Collector's file.

The sections are receivers, processors, extensions, exporters, service, alerts and cluster_log.
Without a file everything listens on loopback. A component that a section names exists, and one that
it leaves out does not; a section that is missing altogether has its defaults.
"""

from dataclasses import dataclass
from pathlib import Path

from ingero.config.fleet_alerts import AlertsConfig
from ingero.config.fleet_enrolment import EnrolmentExtensionConfig
from ingero.config.fleet_exporters import (
    ELSEWHERE,
    EXPORTERS,
    ExporterConfig,
    PrometheusExporterConfig,
    exporter_kind,
)
from ingero.config.fleet_listeners import (
    ACCESS_HELP,
    ListenerConfig,
    ListenerTlsConfig,
    ProxyConfig,
)
from ingero.config.fleet_processor import IngeroProcessorConfig
from ingero.config.replicas.cluster_log import ClusterLogConfig
from ingero.config.values import check_address
from ingero.core.setting import setting
from ingero.errors import ConfigError
from ingero.transport.listen import EVERYWHERE, parse_address
from ingero.transport.tls import is_loopback


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcReceiverConfig(ListenerConfig):
    """The receiver for OTLP over gRPC."""

    endpoint: str = setting(
        "127.0.0.1:4317",
        flag="--grpc",
        metavar="[HOST:]PORT",
        help="Address for OTLP over gRPC; `off` as the flag's value, or a file without this "
        "section, disables it.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpReceiverConfig(ListenerConfig):
    """The receiver for OTLP over HTTP."""

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
    """The protocols of the OTLP receiver; one that is None is switched off."""

    grpc: GrpcReceiverConfig | None = None
    http: HttpReceiverConfig | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OtlpReceiverConfig:
    """The OTLP receiver."""

    protocols: ProtocolsConfig = setting(
        ProtocolsConfig(grpc=GrpcReceiverConfig(), http=HttpReceiverConfig())
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiversConfig:
    """The section `receivers`."""

    otlp: OtlpReceiverConfig = setting(OtlpReceiverConfig())


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchProcessorConfig:
    """The processor `batch`, accepted by its name: exporters forward whole pushes.

    It has no settings: a size or timeout would have no effect.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderLookupConfig:
    """The processor `providerlookup`: it writes the provider of its node into each metric."""

    file: Path | None = setting(
        None,
        help="File that names the provider of each node: `addresses` (network: provider) and "
        "`labels` (`key=value`: provider). A rule wins over what an agent says.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorsConfig:
    """The section `processors`."""

    ingero: IngeroProcessorConfig = setting(IngeroProcessorConfig())
    providerlookup: ProviderLookupConfig = setting(ProviderLookupConfig())
    batch: BatchProcessorConfig = setting(BatchProcessorConfig())


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdExtensionConfig:
    """Two listeners: thresholds for agents, and the state of every node for this machine only."""

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
    proxy: ProxyConfig | None = None

    def __post_init__(self) -> None:
        if self.proxy is not None and self.token_file is None:
            raise ConfigError("proxy: without a token_file everybody is admitted anyway")
        check_address("agent_endpoint", self.agent_endpoint)
        check_address("admin_endpoint", self.admin_endpoint)
        if not is_loopback(self.admin_endpoint):
            raise ConfigError(
                f"admin_endpoint: {self.admin_endpoint} is not a loopback address; "
                "it shows every node, so it must be 127.0.0.1 or ::1"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ZpagesConfig(ListenerConfig):
    """The listener of health, readiness and a status page."""

    endpoint: str = setting(
        "127.0.0.1:55679",
        flag="--health",
        metavar="[HOST:]PORT",
        help="Address of health, readiness and a status page; always served.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtensionsConfig:
    """The section `extensions`."""

    ingero_threshold: ThresholdExtensionConfig = setting(ThresholdExtensionConfig())
    ingero_enrolment: EnrolmentExtensionConfig = setting(EnrolmentExtensionConfig())
    zpages: ZpagesConfig = setting(ZpagesConfig())


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineConfig:
    """The path of one kind of data from receivers to exporters."""

    receivers: tuple[str, ...] = setting(
        ("otlp",), choices=("otlp",), help="Receivers that feed this pipeline."
    )
    processors: tuple[str, ...] = setting(
        (),
        choices=("ingero", "providerlookup", "batch"),
        help="Processors of this pipeline; metrics need `ingero`. `batch` is accepted and changes "
        "nothing, because pushes are forwarded whole.",
    )
    exporters: tuple[str, ...] = setting(
        (), help="Exporters, by the names they have in the section `exporters`."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinesConfig:
    """The pipelines of metrics, traces and logs."""

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
    """The listener of Fleet's own metrics."""

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
    """What Fleet reports about itself."""

    metrics: TelemetryMetricsConfig = setting(TelemetryMetricsConfig())


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    """The section `service`: what is started, and how data flows through it."""

    extensions: tuple[str, ...] = setting(
        ("ingero_threshold",),
        choices=("ingero_threshold", "zpages"),
        help="Extensions to start: `ingero_threshold` serves threshold and diagnostics.",
    )
    pipelines: PipelinesConfig = setting(PipelinesConfig())
    telemetry: TelemetryConfig = setting(TelemetryConfig())


@dataclass(frozen=True, slots=True)
class Listener:
    """One address that Fleet listens on, and the key in the file that sets it."""

    name: str
    key: str
    endpoint: str
    tls: ListenerTlsConfig | None
    token_file: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetConfig:
    """The whole configuration file."""

    receivers: ReceiversConfig = setting(ReceiversConfig())
    processors: ProcessorsConfig = setting(ProcessorsConfig())
    extensions: ExtensionsConfig = setting(ExtensionsConfig())
    exporters: dict[str, ExporterConfig] = setting(
        {"prometheus": PrometheusExporterConfig()}, components=EXPORTERS, elsewhere=ELSEWHERE
    )
    service: ServiceConfig = setting(ServiceConfig())
    alerts: AlertsConfig = setting(AlertsConfig())
    cluster_log: ClusterLogConfig = setting(ClusterLogConfig())

    def __post_init__(self) -> None:
        for signal in ("metrics", "traces", "logs"):
            for exporter in getattr(self.service.pipelines, signal).exporters:
                if exporter not in self.exporters:
                    defined = ", ".join(sorted(self.exporters)) or "none"
                    key = f"service.pipelines.{signal}.exporters"
                    problem = f"{exporter} is not defined; the section exporters has: {defined}"
                    raise ConfigError(f"{key}: {problem}; list those that {signal} go to")
        self._check_provider_lookup()
        self._check_ports()
        self._check_enrolment()
        self._check_cluster_log()

    def _check_cluster_log(self) -> None:
        """Refuse files for state that all replicas share through the log."""
        verdict = self.processors.ingero.verdict
        for key in ("state_dir", "silences_file"):
            if self.cluster_log.url is not None and getattr(verdict, key) is not None:
                raise ConfigError(
                    f"processors.ingero.verdict.{key}: has no effect; with a cluster_log the "
                    "replicas keep this state together"
                )

    def _check_enrolment(self) -> None:
        """Refuse to send secrets of nodes over listeners without TLS."""
        if self.extensions.ingero_enrolment.dir is None:
            return
        key = "extensions.ingero_enrolment.dir"
        for listener in self.listeners():
            if listener.name not in ("threshold", "http", "grpc") or is_loopback(listener.endpoint):
                continue
            if listener.tls is None:
                raise ConfigError(
                    f"{key}: nodes that join send tokens to {listener.key}, which has no tls; "
                    "`ingero fleet init` makes certificates"
                )
            if listener.token_file is None:
                raise ConfigError(
                    f"{key}: {listener.key} has no token_file, so everybody may push without "
                    "joining"
                )

    def _check_provider_lookup(self) -> None:
        """Refuse rules that no pipeline applies, and a pipeline that has no rules to apply."""
        is_named = "providerlookup" in self.service.pipelines.metrics.processors
        has_rules = self.processors.providerlookup.file is not None
        if has_rules and not is_named:
            raise ConfigError(
                "processors.providerlookup.file: has no effect; name providerlookup in "
                "service.pipelines.metrics.processors"
            )
        if is_named and not has_rules:
            raise ConfigError(
                "service.pipelines.metrics.processors: providerlookup needs rules; name their "
                "file in processors.providerlookup.file"
            )

    def _check_ports(self) -> None:
        """Refuse two listeners on one port before either of them has opened it."""
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
        """Return every address that this configuration listens on."""
        receivers, exporters = self.receivers.otlp.protocols, self.exporters.items()
        is_served = "ingero_threshold" in self.service.extensions
        own = self.extensions.ingero_threshold if is_served else None
        found = [
            ("grpc", "receivers.otlp.protocols.grpc.endpoint", receivers.grpc),
            ("http", "receivers.otlp.protocols.http.endpoint", receivers.http),
            ("threshold", "extensions.ingero_threshold.agent_endpoint", own),
            ("admin", "extensions.ingero_threshold.admin_endpoint", own),
            ("health", "extensions.zpages.endpoint", self.extensions.zpages),
            ("metrics", "service.telemetry.metrics.address", self.service.telemetry.metrics),
            *(
                (name, f"exporters.{name}.endpoint", exporter)
                for name, exporter in exporters
                if isinstance(exporter, PrometheusExporterConfig)
            ),
        ]
        return [
            Listener(name, key, getattr(block, key.rpartition(".")[2]), block.tls, block.token_file)
            for name, key, block in found
            if block is not None
        ]
