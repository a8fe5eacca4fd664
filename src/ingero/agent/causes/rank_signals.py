"""The signals of a rank: what was counted between two readings, and what its GPU says now."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ingero.agent.causes.cgroups import CgroupCounts, count_cgroups
from ingero.agent.causes.network import NetworkCounts, count_network
from ingero.agent.causes.threads import ThreadCounts, count_threads
from ingero.contract.causes import Signal

MIN_SEGMENTS: Final = 100  # of TCP, below which a share of retransmits says nothing
_TICK_S: Final = 1.0 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Reading:
    """Everything that is counted about a rank, at one moment."""

    at_s: float
    threads: ThreadCounts
    cgroup: CgroupCounts
    network: NetworkCounts


def take_reading(pid: int, now_s: float, tids: Sequence[int]) -> Reading | None:
    """Read the counters of a process and of its driving threads; None when it is gone."""
    threads = count_threads(pid, tids)
    if threads is None:
        return None
    return Reading(now_s, threads, count_cgroups(pid), count_network(pid))


def signals_between(before: Reading, after: Reading) -> dict[Signal, float]:
    """Return the signals of the time between two readings; what is not counted is left out."""
    seconds = after.at_s - before.at_s
    if seconds <= 0:
        return {}
    one, two = before.threads, after.threads
    quota = _quota_share(before.cgroup, after.cgroup, seconds)
    # A thread that a quota stops waits for a CPU, too; that time is counted once.
    waited = max((two.wait_ns - one.wait_ns) / 1e9 / seconds - quota, 0.0)
    found = {
        Signal.CPU_SHARE: _share((two.run_ns - one.run_ns) / 1e9 / seconds),
        Signal.RUNQUEUE_SHARE: _share(waited),
        Signal.PREEMPTIONS: max((two.involuntary - one.involuntary) / seconds, 0.0),
        Signal.MAJOR_FAULTS: max((two.major_faults - one.major_faults) / seconds, 0.0),
        Signal.QUOTA_SHARE: quota,
        Signal.NIC_ERRORS: max((after.network.errors - before.network.errors) / seconds, 0.0),
    }
    if two.disk_ticks:
        found[Signal.DISK_SHARE] = _share((two.disk_ticks - one.disk_ticks) * _TICK_S / seconds)
    sent = after.network.sent - before.network.sent
    if sent >= MIN_SEGMENTS:
        again = after.network.retransmitted - before.network.retransmitted
        found[Signal.RETRANSMIT_SHARE] = _share(again / sent)
    if after.network.speed_gbits is not None:
        found[Signal.NIC_SPEED] = after.network.speed_gbits
    for signal, begin, end in (
        (Signal.MEMORY_PRESSURE, before.cgroup.memory_stall_us, after.cgroup.memory_stall_us),
        (Signal.IO_PRESSURE, before.cgroup.io_stall_us, after.cgroup.io_stall_us),
    ):
        if begin is not None and end is not None:
            found[signal] = _share((end - begin) / 1e6 / seconds)
    return found


def _quota_share(before: CgroupCounts, after: CgroupCounts, seconds: float) -> float:
    """Return the share of the time that a quota stopped the cgroup.

    The kernel adds up all CPUs, so the share of periods that were cut is the other bound.
    """
    periods = after.periods - before.periods
    cut = after.throttled_periods - before.throttled_periods
    if periods <= 0 or cut <= 0:
        return 0.0
    return _share(min((after.throttled_ns - before.throttled_ns) / 1e9 / seconds, cut / periods))


def _share(value: float) -> float:
    return min(max(value, 0.0), 1.0)
