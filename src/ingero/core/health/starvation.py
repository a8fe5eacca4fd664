"""CPU starvation: processes that launch fewer kernels while others take their CPU."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

ALPHA: Final = 0.2  # weight of the newest launch rate in the baseline
MIN_SAMPLES: Final = 3
MIN_DROP: Final = 0.30  # of the baseline launch rate
MIN_SWITCHES_PER_S: Final = 5.0
FORGET_AFTER: Final = 30  # checks in a row without work
MAX_PROCESSES: Final = 1024


@dataclass(frozen=True, slots=True)
class Activity:
    """Launches and context switches of one process since the last check."""

    launches: int
    switches: int


@dataclass(frozen=True, slots=True)
class Straggle:
    """A starved process; `sustained` from the second check on."""

    pid: int
    drop_percent: float
    switches: int
    sustained: bool


@dataclass(frozen=True, slots=True)
class _Process:
    samples: int = 0
    baseline: float = 0.0  # launches per second
    triggered: bool = False
    idle_checks: int = 0


@dataclass(frozen=True, slots=True)
class StraggleWatch:
    """The state after a check at `checked_s`."""

    checked_s: float | None = None
    processes: Mapping[int, _Process] | None = None


def check_straggle(
    watch: StraggleWatch, activity: Mapping[int, Activity], now_s: float
) -> tuple[StraggleWatch, list[Straggle]]:
    """Check all processes and return the new state and those that are starved.

    The first check only takes a starting point, as does one after the clock was set back: a rate
    needs elapsed time.
    """
    processes = dict(watch.processes or {})
    elapsed_s = 0.0 if watch.checked_s is None else now_s - watch.checked_s
    found: list[Straggle] = []
    for pid in sorted({*processes, *(pid for pid, each in activity.items() if each.launches > 0)}):
        process, seen = processes.get(pid, _Process()), activity.get(pid, Activity(0, 0))
        if elapsed_s <= 0:
            processes[pid] = _Process()
            continue
        process, straggle = _check(process, seen, elapsed_s, pid)
        if straggle is not None:
            found.append(straggle)
        processes[pid] = process
        if process.idle_checks >= FORGET_AFTER:
            del processes[pid]
    while len(processes) > MAX_PROCESSES:
        del processes[max(processes, key=lambda pid: processes[pid].idle_checks)]
    return StraggleWatch(now_s, processes), found


def _check(
    process: _Process, seen: Activity, elapsed_s: float, pid: int
) -> tuple[_Process, Straggle | None]:
    rate, is_disturbed = seen.launches / elapsed_s, seen.switches / elapsed_s >= MIN_SWITCHES_PER_S
    if seen.launches == 0 and not is_disturbed:
        # A process without work is not slow.
        return replace(process, triggered=False, idle_checks=process.idle_checks + 1), None
    if not is_disturbed:
        process = replace(process, triggered=False)
    is_young = process.samples < MIN_SAMPLES
    if is_young:
        process = _fold(process, rate)
    is_slow = process.samples >= MIN_SAMPLES and rate < process.baseline * (1 - MIN_DROP)
    if is_disturbed and (process.triggered or is_slow):
        drop = max(1 - rate / process.baseline, 0.0) * 100
        straggle = Straggle(pid, drop, seen.switches, process.triggered)
        return replace(process, triggered=True, idle_checks=0), straggle
    return replace(process if is_young else _fold(process, rate), idle_checks=0), None


def _fold(process: _Process, rate: float) -> _Process:
    """Add a sample to the baseline; the first sample becomes the baseline."""
    baseline = rate if process.samples == 0 else ALPHA * rate + (1 - ALPHA) * process.baseline
    return replace(process, samples=process.samples + 1, baseline=baseline)
