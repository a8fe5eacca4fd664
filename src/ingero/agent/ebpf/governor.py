"""The governor: measures what probing costs each process and keeps it inside its budget. Decisions are core's."""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ingero.agent.ebpf.attach import ProbeMode, ProcessProbes
from ingero.agent.ebpf.calibrate import ProbeCost
from ingero.agent.ebpf.functions import FUNCTIONS, Kind, Rate
from ingero.agent.ebpf.layout import BUCKETS, bucket_floor_ns
from ingero.agent.processes.discover import Library
from ingero.core.governor import GovernorPolicy, Load, Step, Watch, decide, probe_cost, with_watch

log = logging.getLogger(__name__)

TICK_S: Final = 1.0
FIRST_TICK_S: Final = 0.5
_DUTY_PERIOD_S: Final = 2.0
_LEAST_WINDOW_S: Final = 0.03
_RETRY_OFF_S: Final = 30.0
_WAIT_FLOOR_NS: Final = 32_768  # a CUDA call that takes longer waits for the GPU; shorter ones work
_WAIT_WEIGHTS: Final = np.array(
    [bucket_floor_ns(bucket) if bucket_floor_ns(bucket) >= _WAIT_FLOOR_NS else 0 for bucket in range(BUCKETS)],
    np.float64,
)
_KEPT_CHANGES: Final = 1000

SetMode = Callable[[int, int, ProbeMode], None]


@dataclass(frozen=True, slots=True)
class StepChange:
    """One step of the governor, for people to see."""

    at_s: float
    pid: int
    function: str
    before: Step
    after: Step
    duty: float


@dataclass(frozen=True, slots=True)
class ProcessCost:
    """What probing costs one process now, as shares of a core, and how its functions are watched."""

    pid: int
    cost_share: float
    charged_share: float  # beyond what waiting for the GPU absorbs; this is held below the budget
    waited_share: float
    budget_share: float
    watches: Mapping[str, Watch]


@dataclass(slots=True)
class _Watched:
    """One function: its present watch and what it takes to know its call rate while probes come and go."""

    watch: Watch = field(default_factory=Watch)
    attached: bool = True
    since_s: float = 0.0
    on_s: float = 0.0
    calls_before: int = 0
    calls_per_s: float = 0.0
    next_phase_s: float = 0.0

    def settle(self, now_s: float) -> None:
        if self.attached:
            self.on_s += now_s - self.since_s
        self.since_s = now_s


@dataclass(slots=True)
class _Governed:
    functions: dict[int, _Watched] = field(default_factory=dict)
    waited_before: dict[Library, float] = field(default_factory=dict)
    started_s: float = 0.0
    last_s: float = 0.0
    next_s: float = 0.0
    calm: int = 0
    cost: ProcessCost | None = None


class Governor:
    """Owner of all watches. `tick` on every poll; it acts when something is due."""

    def __init__(self, policy: GovernorPolicy, costs: ProbeCost, set_mode: SetMode) -> None:
        self.policy = policy
        self.costs = costs
        self._set_mode = set_mode
        self._governed: dict[int, _Governed] = {}
        self.changes: deque[StepChange] = deque(maxlen=_KEPT_CHANGES)
        self.steps_taken = 0

    def tick(self, processes: Mapping[int, ProcessProbes], rows: NDArray[np.void], now_s: float) -> None:
        """Open and close duty windows, and once a second decide anew."""
        for pid in self._governed.keys() - processes.keys():
            del self._governed[pid]
        for pid, process in processes.items():
            governed = self._governed.get(pid)
            if governed is None:
                governed = _Governed(started_s=now_s, last_s=now_s, next_s=now_s + FIRST_TICK_S)
                self._governed[pid] = governed
            self._turn_phases(pid, governed, now_s)
            if now_s >= governed.next_s:
                self._decide(process, governed, rows, now_s)
                governed.next_s = now_s + TICK_S

    def report(self) -> list[ProcessCost]:
        """The latest figures of every process."""
        return [governed.cost for governed in self._governed.values() if governed.cost is not None]

    def _turn_phases(self, pid: int, governed: _Governed, now_s: float) -> None:
        for number, watched in governed.functions.items():
            if watched.watch.step is Step.FULL or watched.watch.step is Step.ENTRY or now_s < watched.next_phase_s:
                continue
            if watched.watch.step is Step.OFF:
                watched.watch = Watch(Step.DUTY, self.policy.least_duty)  # look again: the job may have changed
            watched.settle(now_s)
            watched.attached = not watched.attached
            on_s = max(watched.watch.duty * _DUTY_PERIOD_S, _LEAST_WINDOW_S)
            off_s = on_s / watched.watch.duty - on_s
            watched.next_phase_s = now_s + (on_s if watched.attached else off_s)
            self._set_mode(pid, number, ProbeMode.FULL if watched.attached else ProbeMode.DETACHED)

    def _decide(self, process: ProcessProbes, governed: _Governed, rows: NDArray[np.void], now_s: float) -> None:
        span_s = max(now_s - governed.last_s, 1e-3)
        governed.last_s = now_s
        loads = {number: self._load(process, governed, number, rows, now_s) for number in _governable(process)}
        waited = self._waited_share(process, governed, rows, span_s)
        decision = decide(list(loads.values()), waited, governed.calm, self.policy)
        governed.calm = decision.calm
        for number, load in loads.items():
            self._apply(process.pid, number, governed.functions[number], decision.watches[load.name], now_s)
        watches = {load.name: governed.functions[number].watch for number, load in loads.items()}
        cost = sum(probe_cost(with_watch(load, watches[load.name]), watches[load.name]) for load in loads.values())
        absorbed = self.policy.absorbed * waited
        governed.cost = ProcessCost(
            process.pid, cost, max(cost - absorbed, 0.0), waited, self.policy.budget_share, watches
        )

    def _load(
        self, process: ProcessProbes, governed: _Governed, number: int, rows: NDArray[np.void], now_s: float
    ) -> Load:
        calls = int(rows[process.slots[number]]["calls"])
        watched = governed.functions.get(number)
        if watched is None:  # first sight: what was counted before is not ours to rate
            began = min(governed.started_s, now_s)
            watched = governed.functions[number] = _Watched(since_s=began, calls_before=0 if began < now_s else calls)
        watched.settle(now_s)
        if watched.on_s >= _LEAST_WINDOW_S / 2:
            watched.calls_per_s = (calls - watched.calls_before) / watched.on_s
            watched.on_s, watched.calls_before = 0.0, calls
        full_ns, entry_ns = self.costs.of(process.first_bytes[number])
        function = FUNCTIONS[number]
        keep = function.kind in (Kind.COLLECTIVE, Kind.P2P)
        return Load(function.name, watched.calls_per_s, full_ns, entry_ns, watched.watch, keep)

    def _waited_share(
        self, process: ProcessProbes, governed: _Governed, rows: NDArray[np.void], span_s: float
    ) -> float:
        """Share of the time in CUDA calls long enough to be waiting; one layer only, as one calls the other."""
        shares = [0.0]
        for library in (Library.CUDART, Library.CUDA):
            slots = [slot for number, slot in process.slots.items() if FUNCTIONS[number].library is library]
            total = float((rows["buckets"][slots] @ _WAIT_WEIGHTS).sum()) if slots else 0.0
            shares.append((total - governed.waited_before.get(library, 0.0)) / (span_s * 1e9))
            governed.waited_before[library] = total
        return min(max(shares), 1.0)

    def _apply(self, pid: int, number: int, watched: _Watched, watch: Watch, now_s: float) -> None:
        before = watched.watch
        if watch == before:
            return
        watched.watch = watch
        if watch.step is not before.step:
            self.steps_taken += 1
            change = StepChange(now_s, pid, FUNCTIONS[number].name, before.step, watch.step, watch.duty)
            self.changes.append(change)
            fields = {"pid": pid, "function": change.function, "before": before.step.name, "after": watch.step.name}
            log.info("probe_step", extra=fields)
        watched.settle(now_s)
        if watch.step is Step.DUTY:
            if before.step is not Step.DUTY:  # start with the pause: the budget is already overdrawn
                watched.attached, watched.next_phase_s = False, now_s + _DUTY_PERIOD_S * (1 - watch.duty)
                self._set_mode(pid, number, ProbeMode.DETACHED)
            return
        watched.attached = watch.step is not Step.OFF
        watched.next_phase_s = now_s + _RETRY_OFF_S
        modes = {Step.FULL: ProbeMode.FULL, Step.ENTRY: ProbeMode.ENTRY, Step.OFF: ProbeMode.DETACHED}
        self._set_mode(pid, number, modes[watch.step])


def _governable(process: ProcessProbes) -> Iterable[int]:
    return [
        number for number in process.slots if FUNCTIONS[number].rate is not Rate.LIFE and number not in process.retired
    ]


def describe_watch(watch: Watch, budget_share: float) -> str:
    """A sentence for people: how a function is watched and why not in full."""
    how = {
        Step.FULL: "every call counted and timed",
        Step.ENTRY: "counted, not timed",
        Step.DUTY: f"watched {watch.duty:.0%} of the time",
        Step.OFF: "not watched",
    }[watch.step]
    return f"{how}: more would cost the process over {budget_share:.1%} of a core"
