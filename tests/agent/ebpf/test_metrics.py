"""F157: loss, cost and every step of the governor are visible to a scrape."""

from tests.support.fake_tracer import FakeTracer

from ingero.agent.ebpf.metrics import tracer_families
from ingero.contract.exposition import render


def test_scrape_shows_losses_costs_and_steps() -> None:
    lines = set(render(tracer_families(FakeTracer())).decode().splitlines())
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
