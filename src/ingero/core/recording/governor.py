"""The probe governor's decision: how closely each function may be watched so that probing stays inside its budget.

A probe costs the traced process time on the CPU. Time a process would have spent waiting for the GPU anyway absorbs
that cost: a job bound by the GPU is traced in full, a job bound by launches is not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

NS_PER_S: Final = 1_000_000_000
_NEXT_TO_NOTHING: Final = 0.05  # of the allowance


class Step(IntEnum):
    """How closely a function is watched, from all to nothing."""

    FULL = 0  # entry and return of every call
    ENTRY = 1  # every call counted, none timed
    DUTY = 2  # entry and return, during a share of the time
    OFF = 3


@dataclass(frozen=True, slots=True)
class Watch:
    """A step, and for DUTY the share of the time that probes are in place."""

    step: Step = Step.FULL
    duty: float = 1.0


@dataclass(frozen=True, slots=True)
class Load:
    """One function of one process: how often it is called, what a probed call costs, how it is watched now.

    `keep` marks the calls that name a late rank; they are thinned out last.
    """

    name: str
    calls_per_s: float
    full_ns: float
    entry_ns: float
    watch: Watch = Watch()
    keep: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GovernorPolicy:
    """`budget_share` of one core per process; `absorbed` of the waiting time is taken as free."""

    budget_share: float = 0.01
    absorbed: float = 0.5
    relax_share: float = 0.7  # step back up only into this part of the budget …
    calm_ticks: int = 5  # … and only after this many calm decisions in a row
    least_duty: float = 0.005


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now. `charged_share` is the cost beyond what waiting absorbs; it is compared with the budget."""

    watches: Mapping[str, Watch]
    cost_share: float
    charged_share: float
    calm: int


def probe_cost(load: Load, watch: Watch) -> float:
    """Share of one core that probing this function costs the process."""
    ns = {
        Step.FULL: load.full_ns,
        Step.ENTRY: load.entry_ns,
        Step.DUTY: load.full_ns * watch.duty,
        Step.OFF: 0.0,
    }
    return load.calls_per_s * ns[watch.step] / NS_PER_S


def plan_watches(loads: Sequence[Load], allowance: float, least_duty: float) -> dict[str, Watch]:
    """The closest watch that costs no more than `allowance`: the dearest functions give way first, step by step.

    Functions that cost next to nothing are touched only when nothing else is left.
    """
    watches = {load.name: Watch() for load in loads}
    dearest = sorted(loads, key=lambda load: -probe_cost(load, Watch()))
    for keep, floor in ((False, _NEXT_TO_NOTHING * allowance), (False, 0.0), (True, 0.0)):
        yielding = [
            load for load in dearest if load.keep is keep and probe_cost(load, Watch()) > floor
        ]
        for step in (Step.ENTRY, Step.DUTY):
            for load in yielding:
                total = sum(probe_cost(one, watches[one.name]) for one in loads)
                if total <= allowance:
                    return watches
                if step is Step.DUTY:
                    rest = total - probe_cost(load, watches[load.name])
                    duty = min((allowance - rest) / probe_cost(load, Watch()), 1.0)
                    watches[load.name] = (
                        Watch(Step.DUTY, duty) if duty >= least_duty else Watch(Step.OFF)
                    )
                elif watches[load.name].step is Step.FULL:
                    watches[load.name] = Watch(Step.ENTRY)
    return watches


def decide(
    loads: Sequence[Load], waited_share: float, calm: int, policy: GovernorPolicy
) -> Decision:
    """Tighten at once when over budget; loosen only after a calm while, so that steps do not flap."""
    absorbed = policy.absorbed * max(waited_share, 0.0)
    current = {load.name: load.watch for load in loads}
    cost = sum(probe_cost(load, load.watch) for load in loads)
    if cost > policy.budget_share + absorbed:
        tighter = plan_watches(loads, policy.budget_share + absorbed, policy.least_duty)
        return _decision(loads, tighter, absorbed, calm=0)
    relaxed = plan_watches(
        loads, policy.budget_share * policy.relax_share + absorbed, policy.least_duty
    )
    if not any(_looser(relaxed[name], watch) for name, watch in current.items()):
        return _decision(loads, current, absorbed, calm=0)
    if calm + 1 < policy.calm_ticks:
        return _decision(loads, current, absorbed, calm=calm + 1)
    return _decision(loads, relaxed, absorbed, calm=0)


def _looser(new: Watch, old: Watch) -> bool:
    return new.step < old.step or (
        new.step is Step.DUTY and old.step is Step.DUTY and new.duty > 2 * old.duty
    )


def _decision(
    loads: Sequence[Load], watches: Mapping[str, Watch], absorbed: float, *, calm: int
) -> Decision:
    cost = sum(probe_cost(load, watches[load.name]) for load in loads)
    return Decision(watches, cost, max(cost - absorbed, 0.0), calm)
