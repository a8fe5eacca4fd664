"""Who runs on the CPU of a rank while it waits for that CPU, from /proc alone.

Every few milliseconds the scheduler's counters of the rank's threads are read, and those of the
busiest threads beside them. What ran on the same CPU during a wait took it.
"""

import os
import threading
import time
from collections import Counter
from typing import Final, NamedTuple

from ingero.agent.causes.threads import driving_threads, read, thread_ids
from ingero.agent.processes.discover import process_ids

BUSY_S: Final = 0.5  # in which the busiest processes are found
WINDOW_S: Final = 0.02
MIN_BUSY: Final = 0.05  # of one CPU
MAX_PROCESSES: Final = 8
MAX_THREADS: Final = 32
NOBODY: Final = 0  # no process has this number
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_CPU_FIELD: Final = 36  # of /proc/PID/stat, counted after the closing parenthesis of the name


class _Turn(NamedTuple):
    """One thread at one moment: its CPU, and how long it ran and waited so far."""

    cpu: int
    run_ns: int
    wait_ns: int


def watch_neighbours(pid: int, stop: threading.Event, seconds: float) -> Counter[int]:
    """Return nanoseconds that threads of a process waited, by the process on their CPU.

    Waits behind which nobody was seen count for NOBODY.
    """
    drivers = driving_threads(pid)
    others = _busiest_threads(pid, drivers, stop)
    found: Counter[int] = Counter()
    before = _turns(pid, drivers, others)
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s and not stop.wait(WINDOW_S):
        after = _turns(pid, drivers, others)
        _add_waits(found, drivers, others, before, after)
        before = after
    return found


def _add_waits(
    found: Counter[int],
    drivers: list[int],
    others: dict[int, int],
    before: dict[int, _Turn],
    after: dict[int, _Turn],
) -> None:
    """Add the waits of one window; who changed the CPU meanwhile is left out."""
    stayed = {
        tid: turn for tid, turn in after.items() if tid in before and before[tid].cpu == turn.cpu
    }
    for tid in drivers:
        if tid not in stayed or (waited := stayed[tid].wait_ns - before[tid].wait_ns) <= 0:
            continue
        ran = {
            other: max(stayed[other].run_ns - before[other].run_ns, 0)
            for other in others
            if other != tid and other in stayed and stayed[other].cpu == stayed[tid].cpu
        }
        total = sum(ran.values())
        for other, run_ns in ran.items():  # the rank itself may run in the same window
            found[others[other]] += run_ns * min(waited, total) // max(total, 1)
        found[NOBODY] += max(waited - total, 0)


def _busiest_threads(pid: int, drivers: list[int], stop: threading.Event) -> dict[int, int]:
    """Return threads that may be in the way, with their processes."""
    before = _cpu_ticks()
    stop.wait(BUSY_S)
    used = Counter(
        {one: ticks - before[one] for one, ticks in _cpu_ticks().items() if one in before}
    )
    used.pop(pid, None)
    least = MIN_BUSY * BUSY_S * _TICKS_PER_S
    busy = [one for one, ticks in used.most_common(MAX_PROCESSES) if ticks >= least]
    found = {tid: one for one in busy for tid in thread_ids(one)[:MAX_THREADS]}
    own = [tid for tid in thread_ids(pid) if tid not in drivers or len(drivers) > 1]
    return found | dict.fromkeys(own[:MAX_THREADS], pid)


def _cpu_ticks() -> dict[int, int]:
    found = {}
    for pid in process_ids():
        fields = read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        if len(fields) > _CPU_FIELD:
            found[pid] = int(fields[11]) + int(fields[12])
    return found


def _turns(pid: int, drivers: list[int], others: dict[int, int]) -> dict[int, _Turn]:
    found = {}
    for tid, owner in {**others, **dict.fromkeys(drivers, pid)}.items():
        folder = f"/proc/{owner}/task/{tid}"
        times = read(f"{folder}/schedstat").split()
        fields = read(f"{folder}/stat").rpartition(b")")[2].split()
        if len(times) > 1 and len(fields) > _CPU_FIELD:
            found[tid] = _Turn(int(fields[_CPU_FIELD]), int(times[0]), int(times[1]))
    return found
