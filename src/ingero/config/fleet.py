"""Settings of `ingero-fleet`, shaped like a Collector's file: receivers, processors, extensions, exporters, service.

Without a file everything binds to loopback. A component that a section names exists; one that it leaves out does not,
except that a missing section means its defaults.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ingero.config.loader import check_address, setting
from ingero.core.health.threshold import ThresholdPolicy
from ingero.errors import ConfigError
from ingero.transport.listen import EVERYWHERE, parse_address
from ingero.transport.tls import ServerTls, is_loopback


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerTlsConfig:
    """Certificate of a listener; `client_ca_file` asks every client for one, too."""

    cert_file: Path
    key_file: Path
    client_ca_file: Path | None = None

    def files(self) -> ServerTls:
        """As the transport takes it."""
        return ServerTls(cert=self.cert_file, key=self.key_file, client_ca=self.client_ca_file)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ListenerConfig:
    endpoint: str
    tls: ListenerTlsConfig | None = None
    token_file: Path | None = None

    def __post_init__(self) -> None:
        check_address("endpoint", self.endpoint)


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcReceiverConfig(_ListenerConfig):
    """OTLP over gRPC."""

    endpoint: str = "127.0.0.1:4317"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpReceiverConfig(_ListenerConfig):
    """OTLP over HTTP."""

    endpoint: str = "127.0.0.1:4318"
    max_body_bytes: int = setting(4 << 20, size=True, range=(1024, 64 << 20))
    max_requests_per_s: int = setting(0, range=(0, None))


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

    k: float = setting(2.0, range=(1.0, 4.0))
    ema_alpha: float = setting(0.2, range=(0.000001, 1.0))
    min: float = setting(0.10, range=(0.10, 0.98))
    max: float = setting(0.90, range=(0.11, 0.99))
    min_gap: float = setting(0.02, range=(0.0, 0.49))


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumConfig:
    statistical_min: int = setting(5, range=(1, None))
    coverage_fraction: float = setting(0.80, range=(0.0, 1.0))
    expected_nodes: int = setting(0, range=(0, None))


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictConfig:
    """Verdicts by own time; the files price them."""

    enabled: bool = True
    rates_file: Path | None = None
    providers_file: Path | None = None
    record_inputs: Path | None = None
    record_max_bytes: int = setting(256 << 20, size=True, range=(1 << 20, None))
    silences_file: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IngeroProcessorConfig:
    """The threshold of each cluster, and when a node counts."""

    threshold: ThresholdConfig = setting(ThresholdConfig())
    quorum: QuorumConfig = setting(QuorumConfig())
    verdict: VerdictConfig = setting(VerdictConfig())
    push_interval: float = setting(10.0, duration=True, range=(1.0, 3600.0))
    ttl_multiplier: int = setting(5, range=(2, 1000))
    max_expected_nodes: int = setting(10_000, range=(1, 1_000_000))
    max_clusters: int = setting(1024, range=(1, 100_000))

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

    agent_endpoint: str = "127.0.0.1:8080"
    admin_endpoint: str = "127.0.0.1:8081"
    tls: ListenerTlsConfig | None = None
    token_file: Path | None = None

    def __post_init__(self) -> None:
        check_address("agent_endpoint", self.agent_endpoint)
        check_address("admin_endpoint", self.admin_endpoint)
        if not is_loopback(self.admin_endpoint):
            raise ConfigError(
                f"admin_endpoint: {self.admin_endpoint} is not a loopback address; "
                "it shows every node, so it binds to 127.0.0.1 or ::1 only"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ZpagesConfig(_ListenerConfig):
    """Health, readiness and a plain status page."""

    endpoint: str = "127.0.0.1:55679"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtensionsConfig:
    ingero_threshold: ThresholdExtensionConfig = setting(ThresholdExtensionConfig())
    zpages: ZpagesConfig = setting(ZpagesConfig())


@dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusExporterConfig(_ListenerConfig):
    """What was received, for a Prometheus server to scrape."""

    endpoint: str = "127.0.0.1:9090"
    max_series: int = setting(200_000, range=(1, 10_000_000))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTlsConfig:
    """How a forwarding exporter proves itself and whom it trusts; `insecure` sends in plain text."""

    insecure: bool = False
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SendingQueueConfig:
    queue_size: int = setting(10_000, range=(1, 1_000_000))
    max_bytes: int = setting(32 << 20, size=True, range=(1 << 16, 4 << 30))


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryConfig:
    initial_interval: float = setting(1.0, duration=True, range=(0.01, 60.0))
    max_interval: float = setting(30.0, duration=True, range=(0.01, 300.0))
    max_elapsed_time: float = setting(300.0, duration=True, range=(0.0, 86400.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardExporterConfig:
    """Where everything received is sent on, over gRPC (`otlp`) or HTTP (`otlphttp`)."""

    endpoint: str
    tls: ClientTlsConfig = setting(ClientTlsConfig())
    token_file: Path | None = None
    compression: str = setting("gzip", choices=("gzip", "none"))
    timeout: float = setting(10.0, duration=True, range=(0.1, 300.0))
    sending_queue: SendingQueueConfig = setting(SendingQueueConfig())
    retry_on_failure: RetryConfig = setting(RetryConfig())


@dataclass(frozen=True, slots=True, kw_only=True)
class DebugExporterConfig:
    """One log line per batch: what arrived, never its content."""

    verbosity: str = setting("basic", choices=("basic", "normal", "detailed"))


ExporterConfig = PrometheusExporterConfig | ForwardExporterConfig | DebugExporterConfig
EXPORTERS: Final = {
    "prometheus": PrometheusExporterConfig,
    "otlp": ForwardExporterConfig,
    "otlphttp": ForwardExporterConfig,
    "debug": DebugExporterConfig,
}


def exporter_kind(name: str) -> str:
    """`otlp/backup` is an `otlp`."""
    return name.partition("/")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineConfig:
    receivers: tuple[str, ...] = setting(("otlp",), choices=("otlp",))
    processors: tuple[str, ...] = setting((), choices=("ingero",))
    exporters: tuple[str, ...] = ()


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
    address: str = "127.0.0.1:8888"
    tls: ListenerTlsConfig | None = None
    token_file: Path | None = None

    def __post_init__(self) -> None:
        check_address("address", self.address)


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryConfig:
    metrics: TelemetryMetricsConfig = setting(TelemetryMetricsConfig())


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    extensions: tuple[str, ...] = setting(
        ("ingero_threshold",), choices=("ingero_threshold", "zpages")
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
            receiver: _ListenerConfig | None = getattr(protocols, name)
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
