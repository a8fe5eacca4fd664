"""Prometheus metrics of a running tracer: losses, cost of probing, mode of each function."""

from typing import Final, Protocol

from ingero.agent.ebpf.attach import ProcessProbes
from ingero.agent.ebpf.governor import ProcessCost
from ingero.agent.ebpf.loaded import Capability
from ingero.contract.exposition import Family, Labels, by_label, gauge, total

_RINGS: Final = frozenset({"calls", "nccl", "host", "critical"})

# (metric, help, field of ProcessCost)
COST_SHARES: Final = (
    ("ingero_trace_probe_cost_share", "Share of a core that probing costs", "cost_share"),
    (
        "ingero_trace_probe_charged_share",
        "Probing cost not hidden by waiting for the GPU, as a share of a core",
        "charged_share",
    ),
    (
        "ingero_trace_waited_share",
        "Share of its time a process waits for its GPU",
        "waited_share",
    ),
)


class TracerView(Protocol):
    """The part of `Tracer` that the metrics read."""

    def losses(self) -> dict[str, int]: ...
    def costs(self) -> list[ProcessCost]: ...
    def capabilities(self) -> list[Capability]: ...
    def step_count(self) -> int: ...
    def processes(self) -> dict[int, ProcessProbes]: ...


def tracer_families(tracer: TracerView) -> list[Family]:
    """Return the metrics of a tracer, computed for each scrape."""
    losses = tracer.losses()
    lost = {name: count for name, count in losses.items() if name in _RINGS}
    missed = {name: count for name, count in losses.items() if name not in _RINGS}
    probed = [(_pid(pid), sum(own.watched().values())) for pid, own in tracer.processes().items()]
    layers = [layer for layer in tracer.capabilities() if not layer.name.startswith("process ")]
    return [
        by_label("ingero_ringbuf_overflows_total", "Records lost in the kernel", "ring", lost),
        by_label("ingero_trace_missed_total", "Calls not measured", "reason", missed),
        *_cost_families(tracer.costs()),
        gauge("ingero_trace_probed_functions", "Functions with a probe in place", probed),
        total("ingero_trace_governor_steps_total", "Steps of the governor", tracer.step_count()),
        gauge(
            "ingero_trace_layer_on",
            "1 if a layer is traced",
            [((("layer", layer.name),), int(layer.on)) for layer in layers],
        ),
    ]


def _cost_families(costs: list[ProcessCost]) -> list[Family]:
    steps = [
        ((("function", function), *_pid(each.pid)), int(watch.level))
        for each in costs
        for function, watch in each.watches.items()
    ]
    return [
        *(
            gauge(name, help, [(_pid(each.pid), getattr(each, field)) for each in costs])
            for name, help, field in COST_SHARES
        ),
        gauge("ingero_trace_probe_step", "0 full, 1 entry only, 2 duty cycle, 3 off", steps),
    ]


def _pid(pid: int) -> Labels:
    return (("pid", str(pid)),)
