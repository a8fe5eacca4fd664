"""The exporters of Fleet's pipelines: Prometheus series, forwarding, debug output."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ingero.config.fleet import FleetConfig
from ingero.config.fleet_exporters import (
    DebugExporterConfig,
    ExporterConfig,
    ForwardExporterConfig,
    PrometheusExporterConfig,
    exporter_kind,
)
from ingero.contract.exposition import Family
from ingero.contract.otlp.body import Encoding
from ingero.contract.otlp.codec import encode_protobuf
from ingero.contract.otlp.values import Kind, LogsRequest, MetricsRequest, TracesRequest
from ingero.fleet.forward import DebugSink, Forwarder, ForwardPolicy, forward_families
from ingero.fleet.processor import Taken
from ingero.fleet.receive import Sink
from ingero.fleet.series import ReceivedSeries, series_families

if TYPE_CHECKING:
    from ingero.fleet.backends import GrpcBackend, HttpBackend


class FleetExporters:
    """Builds the exporters of a configuration, and starts and stops those that forward."""

    def __init__(self, series_ttl_s: float) -> None:
        self.series: dict[str, ReceivedSeries] = {}
        self.forwarders: list[Forwarder] = []
        self.backends: list[HttpBackend | GrpcBackend] = []
        self._reported: list[Forwarder] = []
        self._series_ttl_s = series_ttl_s

    def build(self, config: FleetConfig) -> dict[Kind, Sequence[Sink]]:
        """Return the exporters of each pipeline; raise IngeroError where one cannot be built."""
        sinks = {name: self._sink(name, exporter) for name, exporter in config.exporters.items()}
        pipelines = config.service.pipelines
        listed = [sinks[name] for name in pipelines.metrics.exporters]
        self._reported = [sink for sink in listed if isinstance(sink, Forwarder)]
        return {
            MetricsRequest: tuple(sinks[name] for name in pipelines.metrics.exporters),
            TracesRequest: tuple(sinks[name] for name in pipelines.traces.exporters),
            LogsRequest: tuple(sinks[name] for name in pipelines.logs.exporters),
        }

    def _sink(self, name: str, config: ExporterConfig) -> Sink:
        if isinstance(config, PrometheusExporterConfig):
            self.series[name] = ReceivedSeries(name, self._series_ttl_s, config.max_series)
            return self.series[name]
        if isinstance(config, DebugExporterConfig):
            return DebugSink(config.verbosity)
        backend = build_backend(name, config)
        forwarder = Forwarder(name, backend.send, _policy(config))
        self.forwarders.append(forwarder)
        self.backends.append(backend)
        return forwarder

    def report(self, own: MetricsRequest) -> None:
        """Send Fleet's own series to the exporters that forward received metrics."""
        body = encode_protobuf(own)
        for forwarder in self._reported:
            forwarder.offer(MetricsRequest, body, Encoding.PROTOBUF, Taken("", ""))

    def start(self) -> None:
        """Begin to send what is queued."""
        for forwarder in self.forwarders:
            forwarder.start()

    async def stop(self) -> None:
        """Send what is queued, then close the connections."""
        await asyncio.gather(*(forwarder.stop() for forwarder in self.forwarders))
        await asyncio.gather(*(backend.close() for backend in self.backends))

    def families(self) -> list[Family]:
        """Return the metrics of every exporter."""
        return forward_families(self.forwarders) + series_families(self.series.values())


def build_backend(name: str, config: ForwardExporterConfig) -> "HttpBackend | GrpcBackend":
    """Return the backend of an `otlp` or `otlphttp` exporter; raise IngeroError for wrong files."""
    # 20 MB of clients, which only a Fleet that forwards needs
    from ingero.fleet.backends import GrpcBackend, HttpBackend  # noqa: PLC0415 - see above

    return GrpcBackend(config) if exporter_kind(name) == "otlp" else HttpBackend(config)


def _policy(config: ForwardExporterConfig) -> ForwardPolicy:
    retry = config.retry_on_failure
    return ForwardPolicy(
        queue_size=config.sending_queue.queue_size,
        queue_bytes=config.sending_queue.max_bytes,
        initial_s=retry.initial_interval,
        max_s=retry.max_interval,
        max_elapsed_s=retry.max_elapsed_time,
    )
