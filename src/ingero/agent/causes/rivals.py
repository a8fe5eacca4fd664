"""Who takes the CPU that a rank waits for: by the scheduler's probes, else by CPU time."""

import os
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import numpy as np

from ingero.agent.causes.cgroups import cgroup_paths
from ingero.agent.causes.threads import comm_of, driving_threads, read
from ingero.agent.processes.discover import process_ids
from ingero.contract.events import Source
from ingero.errors import IngeroError

PROBED_S: Final = 2.0
POLL_S: Final = 0.05
MIN_SHARE: Final = 0.5  # of the waits, or of one CPU: below it nobody is named
MIN_SHARE_OF_OTHERS: Final = 0.3  # of the waits behind another process, beside threads of its own
_SWITCH: Final = 1
_LEAST_WAIT_NS: Final = 200_000
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


def find_rival(pid: int, stop: threading.Event, seconds: float = PROBED_S) -> str:
    """Return who runs while a process waits for a CPU, in words; empty where it is not clear."""
    waits = _probe(pid, stop, seconds)
    if waits is None:
        return _busiest(pid, stop, seconds)
    return _describe(pid, rival) if (rival := choose_rival(pid, waits)) is not None else ""


def choose_rival(pid: int, waits: Mapping[int, int]) -> int | None:
    """Return the process behind which another waits most; None where no one stands out.

    Threads of the waiting process itself are named only where no other process is to blame.
    """
    total = sum(waits.values())
    others = [(waited, rival) for rival, waited in waits.items() if rival != pid]
    if others and max(others)[0] >= MIN_SHARE_OF_OTHERS * total:
        return max(others)[1]
    return pid if total and waits.get(pid, 0) >= MIN_SHARE * total else None


def _probe(pid: int, stop: threading.Event, seconds: float) -> Counter[int] | None:
    """Return nanoseconds waited by the process that ran instead; None without probes."""
    from ingero.agent.ebpf.policy import TracePolicy  # noqa: PLC0415 - slow to import, and only this needs it
    from ingero.agent.ebpf.tracer import Tracer  # noqa: PLC0415 - slow to import, and only this needs it

    drivers = driving_threads(pid)
    tracer = Tracer(
        TracePolicy(
            pids=(pid,),
            follow_children=False,
            layers=frozenset({"scheduler"}),
            slow_runqueue_ns=_LEAST_WAIT_NS,
            budget_share=None,
        )
    )
    try:
        tracer.start()
    except (IngeroError, OSError):
        return None
    found: Counter[int] = Counter()
    try:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s and not stop.wait(POLL_S):
            records = tracer.poll().records
            records = records[(records["source"] == Source.HOST) & (records["op"] == _SWITCH)]
            records = records[np.isin(records["tid"], drivers)]
            for tid, waited in zip(records["arg1"].tolist(), records["arg0"].tolist(), strict=True):
                if tid:
                    found[_process_of(int(tid))] += int(waited)
    except (IngeroError, OSError):
        return None
    finally:
        tracer.close()
    return found


def _busiest(pid: int, stop: threading.Event, seconds: float) -> str:
    """Return the process that used most of the CPU that the rank may use, without probes."""
    allowed = {cpu for tid in driving_threads(pid) for cpu in _affinity(tid)}
    before = _cpu_ticks(pid)
    stop.wait(seconds)
    used = Counter(
        {
            other: ticks - before[other][0]
            for other, (ticks, cpu) in _cpu_ticks(pid).items()
            if other in before and cpu in allowed
        }
    )
    for rival, ticks in used.most_common(1):
        if ticks >= MIN_SHARE * seconds * _TICKS_PER_S * min(len(allowed), 1):
            return _describe(pid, rival)
    return ""


def _cpu_ticks(pid: int) -> dict[int, tuple[int, int]]:
    """Return used clock ticks and last CPU of every other process."""
    found = {}
    for other in process_ids():
        fields = read(f"/proc/{other}/stat").rpartition(b")")[2].split()
        if other != pid and len(fields) > 36:
            found[other] = (int(fields[11]) + int(fields[12]), int(fields[36]))
    return found


def _affinity(tid: int) -> set[int]:
    with suppress(OSError):
        return os.sched_getaffinity(tid)
    return set()


def _process_of(tid: int) -> int:
    _, found, rest = read(f"/proc/{tid}/status").partition(b"Tgid:")
    return int(rest.split()[0]) if found else tid


def _describe(pid: int, rival: int) -> str:
    if rival == pid:
        return "its own threads"
    name = comm_of(rival)
    if not name:
        return ""
    groups = cgroup_paths(pid)
    is_same = set(groups.values()) != {"/"} and cgroup_paths(rival) == groups
    return f"`{name}` (process {rival}{', in the same cgroup' if is_same else ''})"
