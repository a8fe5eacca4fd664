"""Prometheus view of a recording: what was seen, what was kept, how large the file is."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator

from prometheus_client import CONTENT_TYPE_LATEST as CONTENT_TYPE
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ingero.agent.ebpf.metrics import Traced, TraceMetrics
from ingero.agent.recording.app import TraceApp
from ingero.storage.trace_db import RecordingState, sibling_files
from ingero.transport.http import HttpListener
from ingero.transport.listen import bind


class RecordingMetrics(Collector):
    """Registered once per recording; every scrape reads its counters anew."""

    def __init__(self, app: TraceApp) -> None:
        self._app = app

    def collect(self) -> Iterator[Metric]:
        totals, writer = self._app.recorder.totals, self._app.writer
        events = CounterMetricFamily("ingero_trace_records_total", "Records taken from the probes", labels=["kind"])
        events.add_metric(["event"], totals.events)
        events.add_metric(["collective"], totals.collectives)
        yield events
        yield CounterMetricFamily("ingero_trace_unusual_total", "Calls far above their median", value=totals.anomalies)
        chains = GaugeMetricFamily("ingero_trace_chains", "Causal chains found now", labels=["severity"])
        found = [str(chain.severity) for chain in self._app.recorder.chains]
        for severity in ("HIGH", "MEDIUM", "LOW"):
            chains.add_metric([severity], found.count(severity))
        yield chains
        skipped = self._app.stacks.skipped_names
        yield CounterMetricFamily("ingero_trace_python_names_skipped_total", "Python frames left out", value=skipped)
        if writer is None or self._app.options.db is None:
            return
        rows = CounterMetricFamily("ingero_trace_rows_total", "Rows by what became of them", labels=["outcome"])
        counters = writer.counters
        for outcome in ("written", "dropped", "failed"):
            rows.add_metric([outcome], getattr(counters, outcome))
        rows.add_metric(["not_kept"], totals.events - totals.stored)
        yield rows
        yield CounterMetricFamily("ingero_trace_db_pruned_rows_total", "Oldest rows removed", value=counters.pruned)
        yield CounterMetricFamily("ingero_trace_db_rollovers_total", "Files moved aside", value=counters.rollovers)
        failures = counters.rollover_failures
        yield CounterMetricFamily("ingero_trace_db_rollover_failures_total", "Files not moved aside", value=failures)
        yield GaugeMetricFamily("ingero_trace_db_bytes", "Size on disk, log included", value=self._size_bytes())
        is_recording = float(writer.state is RecordingState.RECORDING)
        yield GaugeMetricFamily("ingero_trace_recording", "1 while rows reach the disk", value=is_recording)

    def _size_bytes(self) -> int:
        size = 0
        for file in sibling_files(self._app.options.db) if self._app.options.db else ():
            with contextlib.suppress(OSError):
                size += file.stat().st_size
        return size


def serve_metrics(endpoint: str, app: TraceApp, tracer: Traced) -> str:
    """Serve both views on HOST:PORT for as long as the process lives; says where, as the kernel may choose the port."""
    registry = CollectorRegistry()
    registry.register(TraceMetrics(tracer))
    registry.register(RecordingMetrics(app))

    async def page(_: Request) -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE)

    listener = HttpListener(Starlette(routes=[Route("/metrics", page)]), bind(endpoint))
    threading.Thread(target=asyncio.run, args=(_serve(listener),), daemon=True).start()
    return f"http://{listener.address}/metrics"


async def _serve(listener: HttpListener) -> None:
    await listener.start()
    await asyncio.Event().wait()
