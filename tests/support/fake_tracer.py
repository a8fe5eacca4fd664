"""A tracer with fixed figures, for tests of its metrics."""

from ingero.agent.ebpf.attach import ProcessProbes, _ProbeGroup
from ingero.agent.ebpf.governor import ProcessCost
from ingero.agent.ebpf.loaded import Capability
from ingero.agent.ebpf.loader.links import Probe
from ingero.core.recording.governor import ProbeLevel, Watch


class FakeTracer:
    """One process with two probed functions, one of them in a duty cycle."""

    def losses(self) -> dict[str, int]:
        return {"calls": 3, "nccl": 0, "nesting": 2}

    def costs(self) -> list[ProcessCost]:
        return [
            ProcessCost(
                42, 0.02, 0.005, 0.03, 0.01, {"cuLaunchKernel": Watch(ProbeLevel.DUTY, 0.1)}
            )
        ]

    def capabilities(self) -> list[Capability]:
        return [Capability("tcp", False, "no tracepoint"), Capability("nccl", True, "uprobes")]

    def step_count(self) -> int:
        return 7

    def processes(self) -> dict[int, ProcessProbes]:
        process = ProcessProbes(42, 1)
        process._groups.append(
            _ProbeGroup("lib", [(1, Probe(0, 0)), (2, Probe(8, 0))], detached={2})
        )
        return {42: process}
