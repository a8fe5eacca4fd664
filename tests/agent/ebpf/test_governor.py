"""F157: probing of a process that launches as fast as it can settles within its budget."""

from pathlib import Path

import numpy as np

from ingero.agent.ebpf.attach import ProbeMode, ProcessProbes
from ingero.agent.ebpf.calibrate import ASSUMED
from ingero.agent.ebpf.functions import FUNCTIONS
from ingero.agent.ebpf.governor import Governor, ProcessCost
from ingero.agent.ebpf.layout import SLOT
from ingero.core.recording.governor import GovernorPolicy, ProbeLevel


def until_told(stop: Path, code: str) -> str:
    """A loop for a job that adds what it called up in `n` and answers it once the file is there."""
    return f"n = 0\nwhile not os.path.exists({str(stop)!r}):\n{code}\nresult = n"


def test_flood_of_launches_is_thinned_out_until_it_fits(job, trace, tmp_path: Path) -> None:
    process, stop = job(), tmp_path / "stop"
    process.do("rt = load('libcudart.so.12')")
    tracing = trace(pids=(process.pid,), budget_share=0.01, layers=frozenset({"runtime"}))
    process.send(
        until_told(
            stop, "    burst.burst(address(rt.cudaLaunchKernel), 20000, 40000.0); n += 20000"
        )
    )
    tracing.wait(lambda: any(step.after is ProbeLevel.DUTY for step in tracing.tracer.steps()))
    decisions: list[ProcessCost] = []

    def has_settled() -> bool:
        """Three decisions in a row keep to it."""
        (cost,) = tracing.tracer.costs()
        if not decisions or decisions[-1] is not cost:
            decisions.append(cost)
        return len(decisions) >= 3 and all(
            one.watches["cudaLaunchKernel"].level is ProbeLevel.DUTY and one.charged_share <= 0.011
            for one in decisions[-3:]
        )

    tracing.wait(has_settled)
    assert decisions[-1].watches["cudaDeviceSynchronize"].level is ProbeLevel.FULL
    notes = {one.name: one.detail for one in tracing.tracer.capabilities() if not one.on}
    assert "of the time: more would cost" in notes[f"process {process.pid}: cudaLaunchKernel"]
    stop.touch()
    made = int(process.answer())
    assert 0 < tracing.count(process.pid, "cudaLaunchKernel") < made
    assert decisions[-1].watches["cudaLaunchKernel"].duty < 0.5, (
        "most of the time no probe is in place"
    )
    assert next(step.function for step in tracing.tracer.steps()) == "cudaLaunchKernel"


def test_process_that_waits_for_the_gpu_is_traced_in_full(job, trace, tmp_path: Path) -> None:
    """Launches that cost more than the budget, with long waits: waiting hides the cost."""
    process, stop = job(), tmp_path / "stop"
    process.do("rt = load('libcudart.so.12')")
    tracing = trace(pids=(process.pid,), budget_share=0.0005, layers=frozenset({"runtime"}))
    launch_and_wait = (
        "    burst.burst(address(rt.cudaLaunchKernel), 300, 0)\n    n += 300\n"
        "    [rt.cudaMemcpy(P(1), P(2), S(777), I(1)) for _ in range(4)]"
    )
    process.send(until_told(stop, launch_and_wait))
    tracing.wait(
        lambda: any(cost.cost_share > cost.budget_share for cost in tracing.tracer.costs())
    )
    (cost,) = tracing.tracer.costs()
    assert cost.waited_share > 0.3
    assert (
        cost.watches["cudaLaunchKernel"].level is ProbeLevel.FULL and tracing.tracer.steps() == []
    )
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


LAUNCH, RUNTIME_LAUNCH = (
    next(number for number, one in enumerate(FUNCTIONS) if one.name == name)
    for name in ("cuLaunchKernel", "cudaLaunchKernel")
)
PID, SLOT_OF_LAUNCH = 42, 7
PUSH = b"\x55" * 16


class Governed:
    """A governor, a hand-driven clock and one process whose launches are counted by hand."""

    def __init__(self) -> None:
        self.rows = np.zeros(16, SLOT)
        self.modes: list[tuple[int, ProbeMode]] = []
        self.governor = Governor(
            GovernorPolicy(), ASSUMED, lambda _pid, number, mode: self.modes.append((number, mode))
        )
        self.process = ProcessProbes(PID, 1)
        self.now_s = 100.0

    def watch(self, number: int) -> None:
        self.process.slots[number], self.process.first_bytes[number] = SLOT_OF_LAUNCH, PUSH

    def run(self, seconds: float, calls_per_s: float) -> None:
        for _ in range(round(seconds * 20)):
            self.now_s += 0.05
            self.rows[SLOT_OF_LAUNCH]["calls"] += round(calls_per_s * 0.05)
            self.governor.tick({PID: self.process}, self.rows, self.now_s)

    def cost(self) -> ProcessCost:
        (cost,) = self.governor.report()
        return cost


def test_program_that_replaced_another_is_judged_by_its_own_calls() -> None:
    """After exec the pid is the same and every probe is new: old decisions are dropped."""
    job = Governed()
    job.watch(LAUNCH)
    job.run(3, 1_000_000)
    assert job.cost().watches["cuLaunchKernel"].level is not ProbeLevel.FULL
    job.process = ProcessProbes(PID, 1)
    job.watch(LAUNCH)
    job.rows[:] = 0
    job.run(3, 100)
    assert job.cost().watches["cuLaunchKernel"].level is ProbeLevel.FULL
    assert 0 < job.cost().cost_share < 0.001


def test_library_that_comes_late_is_rated_by_the_time_since_it_came() -> None:
    job = Governed()
    job.run(100, 0)
    job.watch(LAUNCH)
    job.run(1, 50_000)
    assert job.cost().watches["cuLaunchKernel"].level is ProbeLevel.DUTY, "not by the 100 s before"


def test_launches_that_another_layer_took_over_are_not_probed_again() -> None:
    job = Governed()
    job.watch(RUNTIME_LAUNCH)
    job.run(3, 50_000)
    assert job.modes[0] == (RUNTIME_LAUNCH, ProbeMode.DETACHED)
    job.process.retired.add(RUNTIME_LAUNCH)
    job.modes.clear()
    job.run(10, 50_000)
    assert job.modes == []


def test_retrying_a_function_that_was_off_is_a_step_like_any_other() -> None:
    job = Governed()
    job.watch(LAUNCH)
    job.run(32, 5_000_000)
    steps = [(step.before, step.after) for step in job.governor.changes]
    assert steps[:2] == [(ProbeLevel.FULL, ProbeLevel.OFF), (ProbeLevel.OFF, ProbeLevel.DUTY)]
    assert len(steps) == job.governor.steps_taken
