"""The governor: measures what probing costs each process and keeps it within its budget.

The decisions are made in core.
"""

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
from ingero.agent.processes.discover import Library
from ingero.core.recording.governor import GovernorPolicy, Load, ProbeLevel, Watch, decide
from ingero.core.recording.histogram import FLOORS_NS

log = logging.getLogger(__name__)

TICK_S: Final = 1.0
FIRST_TICK_S: Final = 0.5
_DUTY_PERIOD_S: Final = 2.0
_LEAST_WINDOW_S: Final = 0.03
_RETRY_OFF_S: Final = 30.0
# a longer CUDA call is waiting for the GPU; a shorter one is working
_WAIT_FLOOR_NS: Final = 32_768
_WAIT_WEIGHTS: Final = np.where(FLOORS_NS >= _WAIT_FLOOR_NS, FLOORS_NS, 0).astype(np.float64)
_KEPT_CHANGES: Final = 1000

SetMode = Callable[[int, int, ProbeMode], None]


@dataclass(frozen=True, slots=True)
class StepChange:
    """One step of the governor, as shown to users."""

    at_s: float
    pid: int
    function: str
    before: ProbeLevel
    after: ProbeLevel
    duty: float


@dataclass(frozen=True, slots=True)
class ProcessCost:
    """What probing costs one process now, as shares of a core, and how its functions are probed."""

    pid: int
    cost_share: float
    charged_share: float  # cost not hidden by waiting for the GPU; this is held below the budget
    waited_share: float
    budget_share: float
    watches: Mapping[str, Watch]


@dataclass(slots=True)
class _Watched:
    """One function: how it is probed, and what is needed to estimate its call rate."""

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
    process: ProcessProbes
    functions: dict[int, _Watched] = field(default_factory=dict)
    # functions in DUTY or OFF, whose probes are attached part of the time
    part_time: set[int] = field(default_factory=set)
    waited_before: dict[Library, float] = field(default_factory=dict)
    last_s: float = 0.0
    next_s: float = 0.0
    calm: int = 0
    cost: ProcessCost | None = None


class Governor:
    """Owner of all probe modes. `tick` is called on every poll and acts when something is due."""

    def __init__(self, policy: GovernorPolicy, costs: ProbeCost, set_mode: SetMode) -> None:
        self.policy = policy
        self.costs = costs
        self._set_mode = set_mode
        self._governed: dict[int, _Governed] = {}
        self.changes: deque[StepChange] = deque(maxlen=_KEPT_CHANGES)
        self.steps_taken = 0

    def tick(
        self, processes: Mapping[int, ProcessProbes], rows: NDArray[np.void], now_s: float
    ) -> None:
        """Attach and detach duty-cycled probes, and decide anew once a second."""
        for pid in self._governed.keys() - processes.keys():
            del self._governed[pid]
        for pid, process in processes.items():
            governed = self._governed.get(pid)
            # a new program under the same pid
            if governed is None or governed.process is not process:
                governed = _Governed(process, last_s=now_s, next_s=now_s + FIRST_TICK_S)
                self._governed[pid] = governed
            self._run_duty_cycles(governed, now_s)
            if now_s >= governed.next_s:
                self._decide(governed, rows, now_s)
                governed.next_s = now_s + TICK_S

    def report(self) -> list[ProcessCost]:
        """Return the latest cost of every process."""
        governed = list(self._governed.values())  # copied at once: a scrape runs in its own thread
        return [one.cost for one in governed if one.cost is not None]

    def _run_duty_cycles(self, governed: _Governed, now_s: float) -> None:
        pid = governed.process.pid
        governed.part_time -= governed.process.retired  # another layer counts these calls now
        for number in sorted(governed.part_time):
            watched = governed.functions[number]
            if now_s < watched.next_phase_s:
                continue
            if watched.watch.level is ProbeLevel.OFF:  # try again: the job may have changed
                self._take_step(
                    governed, number, Watch(ProbeLevel.DUTY, self.policy.least_duty), now_s
                )
            watched.settle(now_s)
            watched.attached = not watched.attached
            on_s = max(watched.watch.duty * _DUTY_PERIOD_S, _LEAST_WINDOW_S)
            off_s = on_s / watched.watch.duty - on_s
            watched.next_phase_s = now_s + (on_s if watched.attached else off_s)
            self._set_mode(pid, number, ProbeMode.FULL if watched.attached else ProbeMode.DETACHED)

    def _decide(self, governed: _Governed, rows: NDArray[np.void], now_s: float) -> None:
        process = governed.process
        loads = {
            number: self._load(governed, number, rows, now_s) for number in _governable(process)
        }
        waited = self._waited_share(governed, rows, max(now_s - governed.last_s, 1e-3))
        decision = decide(list(loads.values()), waited, governed.calm, self.policy)
        governed.calm, governed.last_s = decision.calm, now_s
        for number, load in loads.items():
            self._apply(governed, number, decision.watches[load.name], now_s)
        governed.cost = ProcessCost(
            process.pid,
            decision.cost_share,
            decision.charged_share,
            waited,
            self.policy.budget_share,
            decision.watches,
        )

    def _load(self, governed: _Governed, number: int, rows: NDArray[np.void], now_s: float) -> Load:
        process = governed.process
        calls = int(rows[process.slots[number]]["calls"])
        watched = governed.functions.get(number)
        if watched is None:  # first time: its library was loaded after the last decision
            watched = governed.functions[number] = _Watched(since_s=governed.last_s)
        watched.settle(now_s)
        if watched.on_s >= _LEAST_WINDOW_S / 2:
            watched.calls_per_s = (calls - watched.calls_before) / watched.on_s
            watched.on_s, watched.calls_before = 0.0, calls
        full_ns, entry_ns = self.costs.of(process.first_bytes[number])
        function = FUNCTIONS[number]
        keep = function.kind in (Kind.COLLECTIVE, Kind.P2P)
        return Load(function.name, watched.calls_per_s, full_ns, entry_ns, watched.watch, keep)

    def _waited_share(self, governed: _Governed, rows: NDArray[np.void], span_s: float) -> float:
        """Return the share of time spent in CUDA calls that are long enough to be waits.

        The larger of the two layers counts, because one calls the other.
        """
        shares = [0.0]
        for library in (Library.CUDART, Library.CUDA):
            slots = [
                slot
                for number, slot in governed.process.slots.items()
                if FUNCTIONS[number].library is library
            ]
            total = float((rows["buckets"][slots] @ _WAIT_WEIGHTS).sum()) if slots else 0.0
            shares.append((total - governed.waited_before.get(library, 0.0)) / (span_s * 1e9))
            governed.waited_before[library] = total
        return min(max(shares), 1.0)

    def _apply(self, governed: _Governed, number: int, watch: Watch, now_s: float) -> None:
        watched, pid = governed.functions[number], governed.process.pid
        before = watched.watch
        if watch == before:
            return
        self._take_step(governed, number, watch, now_s)
        watched.settle(now_s)
        if watch.level is ProbeLevel.DUTY:
            # start detached: the budget is already exceeded
            if before.level is not ProbeLevel.DUTY:
                watched.attached, watched.next_phase_s = (
                    False,
                    now_s + _DUTY_PERIOD_S * (1 - watch.duty),
                )
                self._set_mode(pid, number, ProbeMode.DETACHED)
            return
        watched.attached = watch.level is not ProbeLevel.OFF
        watched.next_phase_s = now_s + _RETRY_OFF_S
        modes = {
            ProbeLevel.FULL: ProbeMode.FULL,
            ProbeLevel.ENTRY: ProbeMode.ENTRY,
            ProbeLevel.OFF: ProbeMode.DETACHED,
        }
        self._set_mode(pid, number, modes[watch.level])

    def _take_step(self, governed: _Governed, number: int, watch: Watch, now_s: float) -> None:
        watched, pid = governed.functions[number], governed.process.pid
        before, watched.watch = watched.watch, watch
        if watch.level is before.level:
            return
        (governed.part_time.add if watch.level >= ProbeLevel.DUTY else governed.part_time.discard)(
            number
        )
        self.steps_taken += 1
        change = StepChange(
            now_s, pid, FUNCTIONS[number].name, before.level, watch.level, watch.duty
        )
        self.changes.append(change)
        fields = {
            "pid": pid,
            "function": change.function,
            "before": before.level.name,
            "after": watch.level.name,
        }
        log.info("probe_step", extra=fields)


def _governable(process: ProcessProbes) -> Iterable[int]:
    return [
        number
        for number in process.slots
        if FUNCTIONS[number].rate is not Rate.LIFE and number not in process.retired
    ]


def describe_watch(watch: Watch, budget_share: float) -> str:
    """Describe how a function is probed, and why not in full."""
    how = {
        ProbeLevel.FULL: "every call counted and timed",
        ProbeLevel.ENTRY: "counted, not timed",
        ProbeLevel.DUTY: f"probed {watch.duty:.0%} of the time",
        ProbeLevel.OFF: "not probed",
    }[watch.level]
    return f"{how}: more would cost the process over {budget_share:.1%} of a core"
