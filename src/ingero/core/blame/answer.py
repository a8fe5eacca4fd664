"""The answer to "who is slow": culprits, or a reason for naming none, and what a fix would save."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ingero.contract.verdict import CauseClass
from ingero.core.cost import SECONDS_PER_HOUR, loss_per_hour

LATER: Final = "later than"  # what `Culprit.detail` begins with where lateness was compared


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """One slow worker, and the share of the step that the job loses while it is slow.

    `loss_error` is the error of `loss`; with `at_most`, no calm steps were recorded and `loss` is
    an upper bound. `excess` and `error` are shares of the worker's own time, or of the step where
    `detail` begins with LATER; `excess_s` is per step. `steps` and `times` are the first and the
    last step in which it is slow, and Unix seconds.
    """

    worker: str
    rank: int | None
    node: str | None = None
    cause: CauseClass = CauseClass.UNKNOWN
    loss: float | None = None
    loss_error: float | None = None
    at_most: bool = False
    steps: tuple[int, int] | None = None
    times: tuple[float, float] | None = None
    link: str | None = None
    excess: float | None = None
    error: float | None = None
    excess_s: float | None = None
    confidence: float
    period: int | None = None
    collective: str | None = None
    detail: str = ""
    next_step: str = ""


@dataclass(frozen=True, slots=True)
class Fix:
    """What a fix would do: with `what` fixed, each step is shorter by `saved_s`."""

    what: str
    step_time_s: float
    saved_s: float


@dataclass(frozen=True, slots=True)
class Heat:
    """Own time as [worker, step], relative to the median of the role; NaN where unknown."""

    rows: tuple[str, ...]
    columns: tuple[int, ...]
    values: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the recorded data shows; `loss_s` is per step, averaged over the recording.

    `late` are workers that come late without any loss of the job; nobody has to act. Without
    culprits and with `cause` None, nobody is slow. `shares` are published measures by name: the
    part of the loss that is gone when the slowest workers (`m_w`) or the last stage (`m_s`) are
    fixed.
    """

    source: str
    culprits: tuple[Culprit, ...] = ()
    late: tuple[Culprit, ...] = ()
    cause: CauseClass | None = None
    not_sure: str | None = None
    evidence: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    step_time_s: float | None = None
    ideal_step_time_s: float | None = None
    loss_s: float | None = None
    gpus: int = 0
    steps: int = 0
    fixes: tuple[Fix, ...] = ()
    heat: Heat | None = None
    shares: Mapping[str, float] = field(default_factory=dict)

    @property
    def loss_gpu_hours(self) -> float | None:
        """GPU hours lost in the recorded steps; each GPU of the job waits and is counted once."""
        return (
            None if self.loss_s is None else self.gpus * self.loss_s * self.steps / SECONDS_PER_HOUR
        )

    def usd_per_hour(self, rate_usd: float | None) -> float | None:
        """Return the money lost per hour, at `rate_usd` per GPU hour on every GPU of the job."""
        if rate_usd is None or self.loss_s is None or not self.step_time_s:
            return None
        return loss_per_hour(self.loss_s / self.step_time_s, self.gpus * rate_usd)


NEXT_STEPS = {
    CauseClass.COMPUTE: "check clocks, throttle reasons and ECC of that GPU "
    "(`nvidia-smi -q -d PERFORMANCE,ECC`)",
    CauseClass.HOST: "look at that host: CPU contention, data loader, I/O, garbage collection "
    "(`ingero explain`)",
    CauseClass.NETWORK: "check the links and NIC counters of that rank, "
    "then run an all-reduce test over the pair again",
    CauseClass.HANG: "get a stack of that process (py-spy dump, cuda-gdb) before it is killed",
    CauseClass.STRUCTURAL: "move layers between stages; no node needs attention",
    CauseClass.DATA_IMBALANCE: "pack sequences so that every micro-batch holds equal work; "
    "no node needs attention",
}
