"""Who takes the CPU that a rank waits for: by the scheduler's probes, and by time on its CPU."""

import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import Final

import numpy as np

from ingero.agent.causes.cgroups import cgroup_paths
from ingero.agent.causes.neighbours import NOBODY, watch_neighbours
from ingero.agent.causes.threads import comm_of, driving_threads, read
from ingero.contract.events import Source
from ingero.errors import IngeroError

PROBED_S: Final = 2.0
POLL_S: Final = 0.05
MIN_SHARE: Final = 0.5  # of the waits: below it nobody is named
MIN_SHARE_OF_OTHERS: Final = 0.3  # of the waits behind another process, beside threads of its own
_SWITCH: Final = 1
_LEAST_WAIT_NS: Final = 200_000


def find_rival(pid: int, stop: threading.Event) -> str:
    """Return who runs while a process waits for a CPU, in words; empty where it is not clear.

    The probes tell who ran last before a thread came back. Where threads of the rank take turns
    with another process, that is often one of its own, so the time on its CPU decides then.
    """
    waits = _probe(pid, stop)
    rival = None if waits is None else choose_rival(pid, waits)
    if rival in (None, pid):
        beside = choose_rival(pid, watch_neighbours(pid, stop, PROBED_S))
        rival = rival if beside in (None, pid) else beside
    return _describe(pid, rival) if rival is not None else ""


def choose_rival(pid: int, waits: Mapping[int, int]) -> int | None:
    """Return the process that another one waits behind most; None where none stands out.

    The waiting process itself is returned only if no other process is to blame.
    """
    total = sum(waits.values())
    others = [(waited, rival) for rival, waited in waits.items() if rival not in (pid, NOBODY)]
    if others and max(others)[0] >= MIN_SHARE_OF_OTHERS * total:
        return max(others)[1]
    return pid if total and waits.get(pid, 0) >= MIN_SHARE * total else None


def _probe(pid: int, stop: threading.Event) -> Counter[int] | None:
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
        end_s = time.monotonic() + PROBED_S
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
