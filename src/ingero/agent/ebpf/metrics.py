"""Prometheus view of a running tracer: losses, cost of probing, how each function is watched."""

from typing import Protocol

from ingero.agent.ebpf.attach import ProcessProbes
from ingero.agent.ebpf.governor import ProcessCost
from ingero.agent.ebpf.loaded import Capability
from ingero.contract.exposition import Family, Labels, counter, gauge

_RINGS = frozenset({"calls", "nccl", "host", "critical"})


class Traced(Protocol):
    """The part of `Tracer` that is read here."""

    def losses(self) -> dict[str, int]: ...
    def costs(self) -> list[ProcessCost]: ...
    def capabilities(self) -> list[Capability]: ...
    def step_count(self) -> int: ...
    def processes(self) -> dict[int, ProcessProbes]: ...


def tracer_families(tracer: Traced) -> list[Family]:
    """Read anew for every scrape."""
    losses = tracer.losses()
    layers = [layer for layer in tracer.capabilities() if not layer.name.startswith("process ")]
    return [
        counter(
            "ingero_ringbuf_overflows_total",
            "Records lost in the kernel",
            [((("ring", name),), count) for name, count in losses.items() if name in _RINGS],
        ),
        counter(
            "ingero_trace_missed_total",
            "Calls not measured",
            [((("reason", name),), count) for name, count in losses.items() if name not in _RINGS],
        ),
        *_cost_families(tracer.costs()),
        gauge(
            "ingero_trace_probed_functions",
            "Functions with a probe in place",
            [(_pid(pid), sum(own.watched().values())) for pid, own in tracer.processes().items()],
        ),
        counter("ingero_trace_governor_steps_total", "Steps taken", [((), tracer.step_count())]),
        gauge(
            "ingero_trace_layer_on",
            "1 if a layer is traced",
            [((("layer", layer.name),), int(layer.on)) for layer in layers],
        ),
    ]


def _cost_families(costs: list[ProcessCost]) -> list[Family]:
    return [
        gauge(
            "ingero_trace_probe_cost_share",
            "Share of a core that probing costs",
            [(_pid(each.pid), each.cost_share) for each in costs],
        ),
        gauge(
            "ingero_trace_probe_charged_share",
            "Cost that waiting does not absorb",
            [(_pid(each.pid), each.charged_share) for each in costs],
        ),
        gauge(
            "ingero_trace_waited_share",
            "Share of its time a process waits for its GPU",
            [(_pid(each.pid), each.waited_share) for each in costs],
        ),
        gauge(
            "ingero_trace_probe_step",
            "0 full, 1 entry only, 2 duty cycle, 3 off",
            [
                ((("function", function), *_pid(each.pid)), int(watch.step))
                for each in costs
                for function, watch in each.watches.items()
            ],
        ),
    ]


def _pid(pid: int) -> Labels:
    return (("pid", str(pid)),)
