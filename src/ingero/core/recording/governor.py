"""The probe governor: how closely each function is probed, so that probing stays in its budget.

A probe costs the traced process CPU time. That cost is free where the process would have waited
for the GPU anyway: a job bound by the GPU is traced in full, a job bound by launches is not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

NS_PER_S: Final = 1_000_000_000
_NEGLIGIBLE: Final = 0.05  # of the allowance


class ProbeLevel(IntEnum):
    """How closely a function is probed, from every call to none."""

    FULL = 0  # entry and return of every call
    ENTRY = 1  # every call counted, none timed
    DUTY = 2  # entry and return, for a share of the time
    OFF = 3


@dataclass(frozen=True, slots=True)
class Watch:
    """A probe level, and for DUTY the share of time during which probes are attached."""

    level: ProbeLevel = ProbeLevel.FULL
    duty: float = 1.0


@dataclass(frozen=True, slots=True)
class Load:
    """One function of one process: its call rate, the cost of a probed call, and its present watch.

    `keep` marks functions needed to find a late rank; their probes are reduced last.
    """

    name: str
    calls_per_s: float
    full_ns: float
    entry_ns: float
    watch: Watch = Watch()
    keep: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GovernorPolicy:
    """The budget: `budget_share` of one core per process, plus `absorbed` of its waiting time."""

    budget_share: float = 0.01
    absorbed: float = 0.5
    relax_share: float = 0.7  # loosen only up to this part of the budget …
    calm_ticks: int = 5  # … and only after this many decisions in a row within it
    least_duty: float = 0.005


@dataclass(frozen=True, slots=True)
class Decision:
    """The watch of each function, and the cost.

    `charged_share` is the cost beyond what waiting absorbs; it is compared with the budget.
    """

    watches: Mapping[str, Watch]
    cost_share: float
    charged_share: float
    calm: int


def probe_cost(load: Load, watch: Watch) -> float:
    """Return the share of one core that probing this function costs the process."""
    ns = {
        ProbeLevel.FULL: load.full_ns,
        ProbeLevel.ENTRY: load.entry_ns,
        ProbeLevel.DUTY: load.full_ns * watch.duty,
        ProbeLevel.OFF: 0.0,
    }
    return load.calls_per_s * ns[watch.level] / NS_PER_S


def plan_watches(loads: Sequence[Load], allowance: float, least_duty: float) -> dict[str, Watch]:
    """Return the closest watches that cost no more than `allowance`.

    The most expensive functions are reduced first, level by level. Functions of negligible cost are
    reduced only when nothing else is left.
    """
    watches = {load.name: Watch() for load in loads}
    costliest = sorted(loads, key=lambda load: -probe_cost(load, Watch()))
    for keep, floor in ((False, _NEGLIGIBLE * allowance), (False, 0.0), (True, 0.0)):
        reducible = [
            load for load in costliest if load.keep is keep and probe_cost(load, Watch()) > floor
        ]
        for level in (ProbeLevel.ENTRY, ProbeLevel.DUTY):
            for load in reducible:
                total = sum(probe_cost(one, watches[one.name]) for one in loads)
                if total <= allowance:
                    return watches
                if level is ProbeLevel.DUTY:
                    rest = total - probe_cost(load, watches[load.name])
                    duty = min((allowance - rest) / probe_cost(load, Watch()), 1.0)
                    watches[load.name] = (
                        Watch(ProbeLevel.DUTY, duty)
                        if duty >= least_duty
                        else Watch(ProbeLevel.OFF)
                    )
                elif watches[load.name].level is ProbeLevel.FULL:
                    watches[load.name] = Watch(ProbeLevel.ENTRY)
    return watches


def decide(
    loads: Sequence[Load], waited_share: float, calm: int, policy: GovernorPolicy
) -> Decision:
    """Tighten at once when over budget; loosen only after several decisions, to avoid flapping."""
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
    return new.level < old.level or (
        new.level is ProbeLevel.DUTY and old.level is ProbeLevel.DUTY and new.duty > 2 * old.duty
    )


def _decision(
    loads: Sequence[Load], watches: Mapping[str, Watch], absorbed: float, *, calm: int
) -> Decision:
    cost = sum(probe_cost(load, watches[load.name]) for load in loads)
    return Decision(watches, cost, max(cost - absorbed, 0.0), calm)
