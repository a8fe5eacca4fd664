"""The exporters of a Fleet configuration: Prometheus, forwarding over OTLP, and debugging."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ingero.config.fleet_listeners import ListenerConfig
from ingero.core.setting import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusExporterConfig(ListenerConfig):
    """The listener at which a Prometheus server scrapes what was received."""

    endpoint: str = setting(
        "127.0.0.1:9090",
        flag="--prometheus",
        metavar="[HOST:]PORT",
        help="Address at which a Prometheus server scrapes the received metrics.",
    )
    max_series: int = setting(
        200_000,
        range=(1, 10_000_000),
        help="Series in one scrape; more are dropped and counted.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTlsConfig:
    """The certificates of a forwarding exporter, and the authority that it trusts."""

    insecure: bool = setting(False, help="Send in plain text, without TLS.")
    ca_file: Path | None = setting(
        None,
        computed="authorities of the system",
        help="Certificate authority that signed the backend's certificate.",
    )
    cert_file: Path | None = setting(None, help="Certificate of this Fleet, for mutual TLS.")
    key_file: Path | None = setting(
        None, help="Key of Fleet's certificate, readable by its owner only."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SendingQueueConfig:
    """How much may wait for a backend that is slow or down."""

    queue_size: int = setting(
        10_000,
        range=(1, 1_000_000),
        help="Requests that may wait; beyond it the oldest is dropped and counted.",
    )
    max_bytes: int = setting(
        32 << 20,
        size=True,
        range=(1 << 16, 4 << 30),
        help="Size of the waiting requests; beyond it the oldest is dropped and counted.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryConfig:
    """How a request that failed is tried again."""

    initial_interval: float = setting(
        1.0,
        duration=True,
        range=(0.01, 60.0),
        help="Pause before the first retry; each further pause is longer by half, with jitter.",
    )
    max_interval: float = setting(
        30.0, duration=True, range=(0.01, 300.0), help="Longest pause between two tries."
    )
    max_elapsed_time: float = setting(
        300.0,
        duration=True,
        range=(0.0, 86400.0),
        help="Time after which a request that keeps failing is dropped.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardExporterConfig:
    """A backend that everything received is sent to, over gRPC (`otlp`) or HTTP (`otlphttp`)."""

    endpoint: str = setting(help="Address of the backend that everything received is sent to.")
    tls: ClientTlsConfig = setting(ClientTlsConfig())
    token_file: Path | None = setting(None, help="File with the bearer token for the backend.")
    compression: str = setting(
        "gzip", choices=("gzip", "none"), help="Compression of the requests."
    )
    timeout: float = setting(
        10.0, duration=True, range=(0.1, 300.0), help="Timeout of a single request."
    )
    sending_queue: SendingQueueConfig = setting(SendingQueueConfig())
    retry_on_failure: RetryConfig = setting(RetryConfig())


@dataclass(frozen=True, slots=True, kw_only=True)
class DebugExporterConfig:
    """A log line for each request that arrived, without its content."""

    verbosity: str = setting(
        "basic",
        choices=("basic", "normal", "detailed"),
        help="Detail of the log line that each request gets; normal and detailed add counts.",
    )


ExporterConfig = PrometheusExporterConfig | ForwardExporterConfig | DebugExporterConfig
EXPORTERS: Final = {
    "prometheus": PrometheusExporterConfig,
    "otlp": ForwardExporterConfig,
    "otlphttp": ForwardExporterConfig,
    "debug": DebugExporterConfig,
}

# exporters of an OpenTelemetry Collector that people look for here
ELSEWHERE: Final = {
    kind: f"Fleet does not export to {what} itself: name an `otlp` exporter with the endpoint of "
    f"an OpenTelemetry Collector, and `{kind}` there (docs/how-to/collector.md)"
    for kind, what in {
        "prometheusremotewrite": "a remote-write endpoint",
        "file": "files",
        "kafka": "Kafka",
    }.items()
}


def exporter_kind(name: str) -> str:
    """Return the type of an exporter: `otlp` for `otlp/backup`."""
    return name.partition("/")[0]
