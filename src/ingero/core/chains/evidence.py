"""Evidence: host, disk and network events around slow calls, attributed to a process."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ingero.contract.events import (
    BLOCK_READ,
    BLOCK_WRITE,
    OFF_CPU_IO,
    OFF_CPU_PREEMPTED,
    OFF_CPU_SLEPT,
    OFF_CPU_UNKNOWN,
    PAGE_ALLOC,
    PAGE_ALLOC_SUMMARY,
    SCHED_SWITCH,
    SWITCH_SUMMARY,
    TCP_RETRANSMIT,
    Source,
)
from ingero.core.recording.event_columns import (
    EventColumns,
    columns_from_rows,
    concatenate,
    source_table,
)
from ingero.core.recording.latency import SlowCalls

OVERLAP_SLACK_NS = 1_000_000  # tolerance between timestamps of different probes
SAMPLE_REACH_NS = 1_500_000_000  # a system sample covers the second before it
MIN_QUEUE_NS = 500_000  # shorter waits for the CPU occur on every healthy host
SECTOR_BYTES = 512
NO_EVENTS = columns_from_rows([])
Intervals = tuple[NDArray[np.int64], NDArray[np.int64]]  # when events start and end
_IS_EVIDENCE = source_table((Source.HOST, Source.IO, Source.TCP, Source.NET))


@dataclass(frozen=True, slots=True)
class SystemSample:
    """CPU, memory, swap and load of the host at one moment."""

    timestamp_ns: int
    cpu_pct: float
    mem_pct: float
    mem_avail_mb: int
    swap_mb: int
    load_avg: float


@dataclass(frozen=True, slots=True)
class Process:
    """The process whose evidence is gathered; pid 0 stands for all processes.

    Some recorders store thread ids in the pid column.
    """

    pid: int = 0
    tids: frozenset[int] = frozenset()
    cgroup_id: int = 0

    def owns(self, events: EventColumns) -> NDArray[np.bool_]:
        """Return which events belong to this process."""
        if not self.pid:
            return np.ones(len(events), bool)
        found: NDArray[np.bool_] = (events.pid == self.pid) | (events.tid == self.pid)
        for tid in self.tids - {self.pid}:  # few, so that comparing is faster than `np.isin`
            found |= (events.pid == tid) | (events.tid == tid)
        return found

    def waited_ns(self, events: EventColumns) -> int:
        """Return how long threads of this process could have run and had no CPU."""
        return int(off_cpu_ns(events.take(contended(events) & self.owns(events))).sum())


@dataclass(frozen=True, slots=True)
class BlockIo:
    """Totals of disk requests."""

    count: int = 0
    reads: int = 0
    writes: int = 0
    total_ns: int = 0
    peak_ns: int = 0
    sectors: int = 0
    busiest_pid: int = 0

    @property
    def megabytes(self) -> float:
        return self.sectors * SECTOR_BYTES / 2**20


@dataclass(frozen=True, slots=True)
class Evidence:
    """Counts for one process over the slow calls of one operation, or over a window."""

    switches: int = 0
    off_cpu_ns: int = 0
    preemptors: tuple[int, ...] = ()
    page_bytes: int = 0
    io: BlockIo = BlockIo()
    other_io: BlockIo = BlockIo()  # requests of other processes in the same time
    retransmits: int = 0
    socket_calls: int = 0
    socket_bytes: int = 0
    system: SystemSample | None = None
    covered: float | None = None  # share of the slow calls that overlap any of this


@dataclass(slots=True)
class EvidenceWindow:
    """Host, disk and network events of the last `max_age_ns`; 0 keeps everything."""

    max_age_ns: int
    _parts: list[EventColumns] = field(default_factory=list)

    def add(self, events: EventColumns) -> None:
        """Keep events that can be evidence; CUDA calls are symptoms and are kept elsewhere."""
        is_useful = _IS_EVIDENCE[events.code]
        if is_useful.any():
            self._parts.append(events.take(is_useful))

    def at(self, now_ns: int) -> EventColumns:
        """Return the events inside the window."""
        events = self._parts[0] if len(self._parts) == 1 else concatenate(self._parts)
        if self.max_age_ns:
            is_recent = events.timestamp >= now_ns - self.max_age_ns
            events = events if is_recent.all() else events.take(is_recent)
        self._parts = [events]
        return events


def gather(
    events: EventColumns,
    process: Process,
    slow: SlowCalls | None,
    samples: Mapping[int, SystemSample] | None = None,
    intervals: Intervals | None = None,
) -> Evidence:
    """Return the evidence about a process that overlaps its slow calls in time.

    Where the slow calls are unknown, the whole window counts. `intervals` are those of the events,
    for callers that ask several times about the same ones.
    """
    near = (
        events if slow is None else events.take(overlaps(*(intervals or events.intervals()), slow))
    )
    if not len(near):
        is_known = slow is not None and len(slow.start_ns) > 0
        return Evidence(system=worst_sample(samples or {}, slow), covered=0.0 if is_known else None)
    mine = process.owns(near)
    own = near.take(mine)
    host_wide = near if process.pid else own
    switched = own.take(contended(own))
    summed = host_wide.take(host_wide.is_op(*SWITCH_SUMMARY)) if not process.pid else NO_EVENTS
    pages = int(own.arg0[own.is_op(*PAGE_ALLOC)].sum()) + int(
        own.arg1[own.is_op(*PAGE_ALLOC_SUMMARY)].sum()
    )
    is_io, ours = near.source == Source.IO, mine | _same_cgroup(near, process)
    own_io, other_io = near.take(is_io & ours), near.take(is_io & ~ours)
    sockets = own.take(own.source == Source.NET)
    causes = concatenate(
        [switched, own_io, other_io, near.take(near.source == Source.TCP), sockets]
    )
    return Evidence(
        switches=len(switched) + int(summed.arg0.sum()),
        off_cpu_ns=int(off_cpu_ns(switched).sum()) + int(summed.arg1.sum()),
        preemptors=_heaviest(switched.arg1, off_cpu_ns(switched), {0, process.pid, *process.tids}),
        page_bytes=pages,
        io=_block_io(own_io),
        other_io=_block_io(other_io),
        retransmits=int(near.is_op(*TCP_RETRANSMIT).sum()),
        socket_calls=len(sockets),
        socket_bytes=int(sockets.arg1.sum()),
        system=worst_sample(samples or {}, slow),
        covered=None if slow is None or not len(slow.start_ns) else _covered(slow, causes),
    )


def contended(events: EventColumns) -> NDArray[np.bool_]:
    """Return which switches kept a runnable thread off the CPU.

    The thread was preempted, or waited for a CPU after it woke up. Recorders that do not know why a
    thread left the CPU store 0 in both columns; their switches all count.
    """
    why, waited_ns = events.ret_code, events.arg0
    lost_cpu = (why == OFF_CPU_UNKNOWN) | (why == OFF_CPU_PREEMPTED) | (waited_ns >= MIN_QUEUE_NS)
    found: NDArray[np.bool_] = events.is_op(*SCHED_SWITCH) & lost_cpu
    return found


def off_cpu_ns(switches: EventColumns) -> NDArray[np.int64]:
    """Return how long each switch kept the thread from running, without time it slept."""
    slept = (switches.ret_code == OFF_CPU_SLEPT) | (switches.ret_code == OFF_CPU_IO)
    return np.where(slept, switches.arg0, switches.duration)


def overlaps(
    start: NDArray[np.int64], end: NDArray[np.int64], slow: SlowCalls
) -> NDArray[np.bool_]:
    """Return which intervals overlap a slow call."""
    if not len(slow.start_ns):
        return np.zeros(len(start), bool)
    order = np.argsort(slow.start_ns, kind="stable")
    first = slow.start_ns[order]
    # Calls of several threads overlap: take the latest end so far.
    last = np.maximum.accumulate(slow.end_ns[order])
    position = np.searchsorted(first, end + OVERLAP_SLACK_NS, side="right") - 1
    reachable = np.maximum(position, 0)
    touches: NDArray[np.bool_] = (position >= 0) & (last[reachable] >= start - OVERLAP_SLACK_NS)
    return touches


def worst_sample(
    samples: Mapping[int, SystemSample], slow: SlowCalls | None
) -> SystemSample | None:
    """Return the worst value of each number near the slow calls.

    Pressure that ended before the slow calls began is not a cause.
    """
    chosen = list(samples.values())
    if slow is not None and chosen:
        times = np.fromiter(samples, np.int64, len(samples))  # the keys are their times
        is_near = overlaps(times - SAMPLE_REACH_NS, times, slow)
        chosen = [sample for sample, near in zip(chosen, is_near, strict=True) if near]
    if not chosen:
        return None
    return SystemSample(
        max(sample.timestamp_ns for sample in chosen),
        max(sample.cpu_pct for sample in chosen),
        max(sample.mem_pct for sample in chosen),
        min(sample.mem_avail_mb for sample in chosen),
        max(sample.swap_mb for sample in chosen),
        max(sample.load_avg for sample in chosen),
    )


def _same_cgroup(events: EventColumns, process: Process) -> NDArray[np.bool_]:
    if process.cgroup_id <= 1:
        return np.zeros(len(events), bool)
    same: NDArray[np.bool_] = events.cgroup_id == process.cgroup_id
    return same


def _block_io(io: EventColumns) -> BlockIo:
    if not len(io):
        return BlockIo()
    busiest = _heaviest(io.pid, io.duration, {0})
    return BlockIo(
        len(io),
        int(io.is_op(*BLOCK_READ).sum()),
        int(io.is_op(*BLOCK_WRITE).sum()),
        int(io.duration.sum()),
        int(io.duration.max()),
        int(io.arg0.sum()),
        busiest[0] if busiest else 0,
    )


def _heaviest(
    values: NDArray[np.int64], weights: NDArray[np.int64], without: set[int]
) -> tuple[int, ...]:
    """Return the three values with the largest total weights, largest first."""
    found, codes = np.unique(values, return_inverse=True)
    totals = np.bincount(codes, weights, len(found))
    ranked = [int(found[index]) for index in np.argsort(-totals, kind="stable")]
    return tuple(value for value in ranked if value not in without)[:3]


def _covered(slow: SlowCalls, causes: EventColumns) -> float:
    start, end = causes.intervals()
    return float(overlaps(slow.start_ns, slow.end_ns, SlowCalls(start, end)).mean())
