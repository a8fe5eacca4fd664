"""Prometheus view of a running tracer: losses, cost of probing, how each function is watched."""

from collections.abc import Iterator
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ingero.agent.ebpf.attach import ProcessProbes
from ingero.agent.ebpf.governor import ProcessCost
from ingero.agent.ebpf.loading import Capability

_RINGS = frozenset({"calls", "nccl", "host", "critical"})


class Traced(Protocol):
    """The part of `Tracer` that is read here."""

    def losses(self) -> dict[str, int]: ...
    def costs(self) -> list[ProcessCost]: ...
    def capabilities(self) -> list[Capability]: ...
    def step_count(self) -> int: ...
    def processes(self) -> dict[int, ProcessProbes]: ...


class TraceMetrics(Collector):
    """Registered once per tracer; every scrape reads the tracer anew."""

    def __init__(self, tracer: Traced) -> None:
        self._tracer = tracer

    def collect(self) -> Iterator[Metric]:
        overflows = CounterMetricFamily("ingero_ringbuf_overflows_total", "Records lost in the kernel", labels=["ring"])
        missed = CounterMetricFamily("ingero_trace_missed_total", "Calls not measured", labels=["reason"])
        for name, count in self._tracer.losses().items():
            (overflows if name in _RINGS else missed).add_metric([name], count)
        yield overflows
        yield missed
        labels = ["pid"]
        cost = GaugeMetricFamily("ingero_trace_probe_cost_share", "Share of a core that probing costs", labels=labels)
        charged = GaugeMetricFamily(
            "ingero_trace_probe_charged_share", "Cost that waiting does not absorb", labels=labels
        )
        step = GaugeMetricFamily(
            "ingero_trace_probe_step", "0 full, 1 entry only, 2 duty cycle, 3 off", labels=["pid", "function"]
        )
        for process in self._tracer.costs():
            pid = str(process.pid)
            cost.add_metric([pid], process.cost_share)
            charged.add_metric([pid], process.charged_share)
            for function, watch in process.watches.items():
                step.add_metric([pid, function], int(watch.step))
        yield cost
        yield charged
        yield step
        probes = GaugeMetricFamily("ingero_trace_probed_functions", "Functions with a probe in place", labels=labels)
        for number, own in self._tracer.processes().items():
            probes.add_metric([str(number)], sum(own.watched().values()))
        yield probes
        yield CounterMetricFamily("ingero_trace_governor_steps_total", "Steps taken", value=self._tracer.step_count())
        layers = GaugeMetricFamily("ingero_trace_layer_on", "1 if a layer is traced", labels=["layer"])
        for layer in self._tracer.capabilities():
            if not layer.name.startswith("process "):
                layers.add_metric([layer.name], int(layer.on))
        yield layers
