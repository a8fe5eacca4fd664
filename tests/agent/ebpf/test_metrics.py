"""F157: loss, cost and every step of the governor are visible to a scrape."""

from ingero.agent.ebpf.attach import ProcessProbes, _Place
from ingero.agent.ebpf.governor import ProcessCost
from ingero.agent.ebpf.loaded import Capability
from ingero.agent.ebpf.loader.links import Probe
from ingero.agent.ebpf.metrics import tracer_families
from ingero.contract.exposition import render
from ingero.core.recording.governor import Step, Watch


class Traced:
    def losses(self) -> dict[str, int]:
        return {"calls": 3, "nccl": 0, "nesting": 2}

    def costs(self) -> list[ProcessCost]:
        return [ProcessCost(42, 0.02, 0.005, 0.03, 0.01, {"cuLaunchKernel": Watch(Step.DUTY, 0.1)})]

    def capabilities(self) -> list[Capability]:
        return [Capability("tcp", False, "no tracepoint"), Capability("nccl", True, "uprobes")]

    def step_count(self) -> int:
        return 7

    def processes(self) -> dict[int, ProcessProbes]:
        process = ProcessProbes(42, 1)
        process._places.append(_Place("lib", [(1, Probe(0, 0)), (2, Probe(8, 0))], detached={2}))
        return {42: process}


def test_scrape_shows_losses_costs_and_steps() -> None:
    lines = set(render(tracer_families(Traced())).decode().splitlines())
    assert {
        'ingero_ringbuf_overflows_total{ring="calls"} 3',
        'ingero_trace_missed_total{reason="nesting"} 2',
        'ingero_trace_probe_cost_share{pid="42"} 0.02',
        'ingero_trace_probe_charged_share{pid="42"} 0.005',
        'ingero_trace_waited_share{pid="42"} 0.03',
        'ingero_trace_probe_step{function="cuLaunchKernel",pid="42"} 2',
        "ingero_trace_governor_steps_total 7",
        'ingero_trace_probed_functions{pid="42"} 1',
        'ingero_trace_layer_on{layer="tcp"} 0',
        'ingero_trace_layer_on{layer="nccl"} 1',
    } <= lines
