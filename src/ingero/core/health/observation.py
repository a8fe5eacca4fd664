"""One observation of a node: the values of its signals and the GPUs it has."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ingero.contract.push.encode import CgroupTotals, MemoryReport
from ingero.contract.straggler import Straggle
from ingero.core.health.score import NO_SIGNALS, Signals
from ingero.core.health.throttle import ThrottleReason


@dataclass(frozen=True, slots=True)
class GpuInfo:
    """The GPUs of a node."""

    model: str
    count: int

    @property
    def label(self) -> str:
        """Return `8 x NVIDIA H100`, or the model alone for a single GPU."""
        return self.model if self.count == 1 else f"{self.count} x {self.model}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The signals of a node at one moment.

    `launches` is None when the read failed; `problem` says why.
    """

    at_s: float
    launches: int | None
    signals: Signals = NO_SIGNALS
    problem: str = ""
    gpu: GpuInfo | None = None
    throttle: Mapping[str, frozenset[ThrottleReason]] = field(default_factory=dict)  # by GPU
    totals: tuple[CgroupTotals, ...] = ()
    totals_since_ns: int = 0
    memory: MemoryReport | None = None
    evicted_cgroups: int = 0  # so far: cgroups whose totals were dropped to bound memory
    straggles: tuple[Straggle, ...] = ()  # processes that other processes kept off the CPU
