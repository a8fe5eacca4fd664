"""F157: on a real process that launches as fast as it can, probing settles inside its budget, visibly."""

from pathlib import Path

from ingero.agent.ebpf.governor import ProcessCost
from ingero.core.governor import Step


def until_told(stop: Path, code: str) -> str:
    """A loop for a job that adds what it called up in `n` and answers it once the file is there."""
    return f"n = 0\nwhile not os.path.exists({str(stop)!r}):\n{code}\nresult = n"


def test_flood_of_launches_is_thinned_out_until_it_fits(job, trace, tmp_path: Path) -> None:
    process, stop = job(), tmp_path / "stop"
    process.do("rt = load('libcudart.so.12')")
    tracing = trace(pids=(process.pid,), budget_share=0.01, layers=frozenset({"runtime"}))
    process.send(until_told(stop, "    burst.burst(address(rt.cudaLaunchKernel), 20000, 40000.0); n += 20000"))
    tracing.wait(lambda: any(step.after is Step.DUTY for step in tracing.tracer.steps()))
    decisions: list[ProcessCost] = []

    def has_settled() -> bool:
        """Three decisions in a row keep to it."""
        (cost,) = tracing.tracer.costs()
        if not decisions or decisions[-1] is not cost:
            decisions.append(cost)
        return len(decisions) >= 3 and all(
            one.watches["cudaLaunchKernel"].step is Step.DUTY and one.charged_share <= 0.011 for one in decisions[-3:]
        )

    tracing.wait(has_settled)
    assert decisions[-1].watches["cudaDeviceSynchronize"].step is Step.FULL
    notes = {one.name: one.detail for one in tracing.tracer.capabilities() if not one.on}
    assert "of the time: more would cost" in notes[f"process {process.pid}: cudaLaunchKernel"]
    stop.touch()
    made = int(process.answer())
    assert 0 < tracing.count(process.pid, "cudaLaunchKernel") < made
    assert decisions[-1].watches["cudaLaunchKernel"].duty < 0.5, "most of the time no probe is in place"
    assert next(step.function for step in tracing.tracer.steps()) == "cudaLaunchKernel"


def test_process_that_waits_for_the_gpu_is_traced_in_full(job, trace, tmp_path: Path) -> None:
    """Launches that cost more than the budget, with long waits in between: the cost disappears in the waiting."""
    process, stop = job(), tmp_path / "stop"
    process.do("rt = load('libcudart.so.12')")
    tracing = trace(pids=(process.pid,), budget_share=0.0005, layers=frozenset({"runtime"}))
    launch_and_wait = (
        "    burst.burst(address(rt.cudaLaunchKernel), 300, 0)\n    n += 300\n"
        "    [rt.cudaMemcpy(P(1), P(2), S(777), I(1)) for _ in range(4)]"
    )
    process.send(until_told(stop, launch_and_wait))
    tracing.wait(lambda: any(cost.cost_share > cost.budget_share for cost in tracing.tracer.costs()))
    (cost,) = tracing.tracer.costs()
    assert cost.waited_share > 0.3
    assert cost.watches["cudaLaunchKernel"].step is Step.FULL and tracing.tracer.steps() == []
    stop.touch()
    made = int(process.answer())
    tracing.poll()
    assert tracing.count(process.pid, "cudaLaunchKernel") == made


def test_without_a_budget_nothing_is_thinned_out(job, trace) -> None:
    process = job()
    process.do("rt = load('libcudart.so.12')")
    tracing = trace(pids=(process.pid,), budget_share=None, layers=frozenset({"runtime"}))
    process.do("burst.burst(address(rt.cudaLaunchKernel), 60000, 0)")
    tracing.poll()
    assert tracing.tracer.costs() == [] and tracing.count(process.pid, "cudaLaunchKernel") == 60000
