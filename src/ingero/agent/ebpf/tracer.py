"""The tracer: loads the probes, tracks processes and drains the rings.

Call `poll` every 10 ms; everything else only reads.

tracer = Tracer(TracePolicy(pids=(4711,)))
tracer.start()
while running:
    batch = tracer.poll()
    time.sleep(POLL_INTERVAL_S)
tracer.close()
"""

import struct
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ingero.agent.ebpf.attach import ProbeMode, ProcessProbes
from ingero.agent.ebpf.batch import EventBatch
from ingero.agent.ebpf.calibrate import calibrate
from ingero.agent.ebpf.functions import FUNCTIONS
from ingero.agent.ebpf.governor import Governor, ProcessCost, StepChange, describe_watch
from ingero.agent.ebpf.layout import EVENT, HOST_SLOTS, LOST, MAX_FRAMES, WAITS, CgroupWait
from ingero.agent.ebpf.loaded import Capability, LoadedProbes
from ingero.agent.ebpf.policy import TracePolicy
from ingero.agent.ebpf.process_tracker import ProcessTracker
from ingero.agent.ebpf.slots import Recording
from ingero.agent.ebpf.sockets import SocketOwners
from ingero.contract.events import Source
from ingero.core.recording.governor import GovernorPolicy, ProbeLevel
from ingero.errors import Unavailable

POLL_INTERVAL_S: Final = 0.01
_CLOCK_CHECK_S: Final = 5.0
# then all are deleted here and in the kernel: by its hash a stack fits only one of the
# 16,384 entries there
_MAX_STACKS: Final = 4096
_SUMMARY_S: Final = 1.0
_GOVERN_AFTER_S: Final = 0.1  # calibration must not delay the start
_PAGE_SUMMARY: Final = 20
_MAX_ENDED: Final = 256


@dataclass(frozen=True, slots=True)
class HistogramRow:
    """Everything the kernel counted of one function or kernel event of one process.

    Counting starts when the probe is attached.
    """

    pid: int
    source: int
    op: int
    name: str
    calls: int
    timed: int
    sum_ns: int  # bytes for page allocations
    max_ns: int
    failed: int
    buckets: NDArray[np.uint64]


@dataclass(slots=True)
class _EndedCounts:
    """What the earlier programs of a pid had counted."""

    rows: dict[str, HistogramRow] = field(default_factory=dict)  # by name
    until_s: float = 0.0


class Tracer:
    """Owner of all probes of this agent."""

    def __init__(self, policy: TracePolicy) -> None:
        self.policy = policy
        self._stacks: dict[int, tuple[int, ...]] = {}
        self._next_clock_s = 0.0
        self._next_summary_s = 0.0
        self._sockets = SocketOwners()
        self._ended: dict[int, _EndedCounts] = {}
        self._pages: dict[int, tuple[int, int]] = {}  # counts at the last summary
        self._offset_ns = 0

    def start(self, path: Path | None = None) -> None:
        """Load the probes and trace all present processes.

        Raises Unavailable when nothing at all can be traced.
        """
        self._probes = LoadedProbes(self.policy, path)
        self._tracker = ProcessTracker(self.policy, self._probes, self._keep_counts)
        self._stacks.clear()
        self._ended.clear()
        self._check_clock()
        try:
            self._tracker.scan(time.monotonic())
        except BaseException:
            self.close()
            raise
        self._governor: Governor | None = None
        self._govern_at_s = time.monotonic() + _GOVERN_AFTER_S

    def close(self) -> None:
        """Remove every probe; records that were not polled are lost."""
        self._tracker.close()
        self._probes.close()

    def poll(self) -> EventBatch:
        """Return everything recorded since the last poll."""
        now_s = time.monotonic()
        if now_s >= self._next_clock_s:
            self._check_clock()
        parts = [ring.drain() for ring in self._probes.rings]
        nccl = self._probes.nccl_ring.drain()
        if len(parts[0]):
            self._tracker.handle_forks_and_execs(parts[0])
        self._tracker.scan(now_s)
        # measuring what probes cost takes 0.1 s of CPU time: only where there is one to govern
        is_due = now_s >= self._govern_at_s and (self._governor or self._tracker.processes)
        if self.policy.budget_share is not None and is_due:
            self._govern(self.policy.budget_share, now_s)
        if now_s >= self._next_summary_s:
            parts.append(self._summarise_pages())
            self._next_summary_s = now_s + _SUMMARY_S
        records = _joined([part for part in parts if len(part)] or parts[:1])
        if len(parts[1]):
            self._sockets.fill(records, self._tracker.processes, now_s)
        return EventBatch(records, nccl, self._offset_ns, self._stacks_of(records, nccl))

    def _govern(self, budget_share: float, now_s: float) -> None:
        if self._governor is None:
            costs = calibrate(self._probes.calls, self._probes.table)
            self._governor = Governor(
                GovernorPolicy(budget_share=budget_share), costs, self.set_mode
            )
        self._governor.tick(self._tracker.processes, self._probes.table.rows, now_s)

    def costs(self) -> list[ProcessCost]:
        """Return what probing costs each process; empty without a governor."""
        return self._governor.report() if self._governor else []

    def steps(self) -> list[StepChange]:
        """Return the latest steps of the governor, oldest first."""
        return list(self._governor.changes) if self._governor else []

    def step_count(self) -> int:
        """Return how many steps the governor has taken."""
        return self._governor.steps_taken if self._governor else 0

    def _summarise_pages(self) -> NDArray[np.void]:
        """Return the page allocations since the last summary, one record per process.

        Single allocations are only counted, in the kernel.
        """
        rows = []
        for process in self._tracker.processes.values():
            if not process.host_slots:
                continue
            row = self._probes.table.rows[process.first_host_slot + HOST_SLOTS.index("pages")]
            totals = int(row["calls"]), int(row["sum"])
            before = self._pages.get(process.pid, (0, 0))
            if totals[0] > before[0]:
                rows.append((process.pid, totals[0] - before[0], totals[1] - before[1]))
            self._pages[process.pid] = totals
        records = np.zeros(len(rows), EVENT)
        records["end_ns"] = time.monotonic_ns()
        records["start_ns"] = records["end_ns"]
        records["source"], records["op"] = int(Source.HOST), _PAGE_SUMMARY
        records["stack"] = records["gpu"] = -1
        for index, (pid, count, size) in enumerate(rows):
            records[index]["pid"], records[index]["arg0"], records[index]["arg1"] = pid, count, size
        return records

    def _check_clock(self) -> None:
        """Measure the distance from kernel time to wall-clock time.

        Kernel times are monotonic. The distance is measured repeatedly, because NTP changes it.
        """
        before = time.monotonic_ns()
        wall = time.time_ns()
        self._offset_ns = wall - (before + time.monotonic_ns()) // 2
        self._next_clock_s = time.monotonic() + _CLOCK_CHECK_S

    def _stacks_of(self, *batches: NDArray[np.void]) -> dict[int, tuple[int, ...]]:
        numbers: set[int] = set()
        for batch in batches:
            column = batch["stack"]
            taken = column[column >= 0]
            if len(taken):
                # not np.unique: its first call takes 0.1 s for imports
                numbers.update(taken.tolist())
        if not numbers:
            return {}
        stack_map = self._probes.maps["stacks"]
        for number in numbers - self._stacks.keys():
            raw = stack_map.lookup(struct.pack("<I", number))
            if raw is not None:
                addresses = struct.unpack(f"<{MAX_FRAMES}Q", raw)
                self._stacks[number] = tuple(address for address in addresses if address)
        found = {number: self._stacks[number] for number in numbers if number in self._stacks}
        if len(self._stacks) > _MAX_STACKS:
            for number in self._stacks:
                stack_map.delete(struct.pack("<I", number))
            self._stacks.clear()
        return found

    def histograms(self) -> list[HistogramRow]:
        """Return counts and durations of all functions and kernel events that occurred.

        The counts of a pid only grow, also across exec, until 10 s after its process ended.
        """
        now_s, living = time.monotonic(), self._tracker.processes
        self._ended = {
            pid: counts
            for pid, counts in self._ended.items()
            if pid in living or counts.until_s >= now_s
        }
        rows = [row for process in living.values() for row in self._rows(process)]
        return rows + [row for counts in self._ended.values() for row in counts.rows.values()]

    def _keep_counts(self, process: ProcessProbes) -> None:
        """Keep the counts of a program that ended.

        They stay readable for a while, or for as long as its pid runs another program.
        """
        self._pages.pop(process.pid, None)
        counts = self._ended.setdefault(process.pid, _EndedCounts())
        counts.until_s = time.monotonic() + self.policy.keep_ended_s
        for row in self._rows(process):
            before = counts.rows.get(row.name)
            counts.rows[row.name] = row if before is None else _added(before, row)
        ended = [pid for pid in self._ended if pid not in self._tracker.processes]
        for pid in ended[: max(len(ended) - _MAX_ENDED, 0)]:
            del self._ended[pid]

    def _rows(self, process: ProcessProbes) -> list[HistogramRow]:
        calls = self._probes.table.rows["calls"]
        rows = []
        for number, slot in process.slots.items():
            if calls[slot]:
                function = FUNCTIONS[number]
                rows.append(
                    self._row(process.pid, int(function.source), function.op, function.name, slot)
                )
        for index in range(process.host_slots):
            if calls[process.first_host_slot + index]:
                source, op, name = _HOST_ROWS[index]
                rows.append(
                    self._row(process.pid, source, op, name, process.first_host_slot + index)
                )
        return rows

    def _row(self, pid: int, source: int, op: int, name: str, slot: int) -> HistogramRow:
        row = self._probes.table.rows[slot].copy()
        return HistogramRow(
            pid=pid,
            source=source,
            op=op,
            name=name,
            calls=int(row["calls"]),
            timed=int(row["buckets"].sum()),
            sum_ns=int(row["sum"]),
            max_ns=int(row["max"]),
            failed=int(row["failed"]),
            buckets=row["buckets"],
        )

    def neighbours(self) -> list[CgroupWait]:
        """Return sampled CPU waits of processes that are not traced, by cgroup, cumulative."""
        found = []
        for key in self._probes.maps["neighbours"].keys():  # noqa: SIM118 - a kernel map, not a dict
            raw = self._probes.maps["neighbours"].lookup(key)
            if raw is not None:
                row = np.frombuffer(raw, WAITS)[0]
                found.append(
                    CgroupWait(
                        int.from_bytes(key, "little"),
                        int(row["sum"]),
                        row["buckets"].astype(np.int64),
                    )
                )
        return found

    def allocations(self) -> dict[int, list[tuple[int, int]]]:
        """Return the GPU memory blocks that traced processes hold now: addresses and sizes by pid.

        The kernel keeps the newest 16384 of the node.
        """
        held: dict[int, list[tuple[int, int]]] = {}
        kept = self._probes.maps["allocations"]
        for key in kept.keys():  # noqa: SIM118 - a kernel map, not a dict
            pid, address = struct.unpack("<QQ", key)
            if pid not in self._tracker.processes:
                kept.delete(key)  # it ended without freeing
            elif (raw := kept.lookup(key)) is not None:
                held.setdefault(pid, []).append((address, int.from_bytes(raw, "little")))
        return held

    def losses(self) -> dict[str, int]:
        """Return records and measurements that were lost, by ring or reason.

        `slots` and `processes` count what exceeded the limits.
        """
        found = {}
        for index, name in enumerate(LOST):
            raw = self._probes.maps["lost"].lookup(struct.pack("<I", index))
            found[name] = int(np.frombuffer(raw or b"", np.uint64).sum())  # one number per CPU
        found["slots"] = self._probes.table.refused
        found["processes"] = self._tracker.refused
        return found

    def capabilities(self) -> list[Capability]:
        """Return which layers are on, and which are off and why.

        Libraries that could not be attached and functions that are not fully probed are included.
        """
        failures = [
            Capability(f"process {process.pid}: {what}", False, why)
            for process in self.processes().values()  # copies: a scrape runs in its own thread
            for what, why in list(process.failures.items())
        ]
        thinned = [
            Capability(
                f"process {cost.pid}: {name}", False, describe_watch(watch, cost.budget_share)
            )
            for cost in self.costs()
            for name, watch in cost.watches.items()
            if watch.level is not ProbeLevel.FULL
        ]
        return [*self._probes.capabilities.values(), *failures, *thinned]

    def processes(self) -> dict[int, ProcessProbes]:
        """Traced processes by pid."""
        return dict(self._tracker.processes)

    def set_recording(self, pid: int, name: str, recording: Recording) -> None:
        """Change which calls of a function become records; does nothing if the process ended."""
        process = self._tracker.processes.get(pid)
        slots = process.slots.items() if process else ()
        slot = next((slot for number, slot in slots if FUNCTIONS[number].name == name), None)
        if slot is None:
            return
        self._probes.table.rows[slot]["slow_ns"] = recording.slow_ns
        self._probes.table.rows[slot]["sample_every"] = recording.sample_every

    def set_mode(self, pid: int, number: int, mode: ProbeMode) -> None:
        """Change the probe mode of one function; does nothing if the process ended."""
        process = self._tracker.processes.get(pid)
        if process is not None and number in process.slots:
            mode = ProbeMode.ENTRY if process.entry_only and mode is ProbeMode.FULL else mode
            try:
                process.set_mode(number, mode, self._probes.table, self._probes.calls)
            except Unavailable as refused:  # the process has just ended: the next scan drops it
                process.failures[FUNCTIONS[number].name] = str(refused)


def _added(one: HistogramRow, other: HistogramRow) -> HistogramRow:
    return replace(
        other,
        calls=one.calls + other.calls,
        timed=one.timed + other.timed,
        sum_ns=one.sum_ns + other.sum_ns,
        max_ns=max(one.max_ns, other.max_ns),
        failed=one.failed + other.failed,
        buckets=one.buckets + other.buckets,
    )


def _joined(parts: list[NDArray[np.void]]) -> NDArray[np.void]:
    """Join record arrays as plain words, because numpy joins structures field by field."""
    if len(parts) == 1:
        return parts[0]
    return np.concatenate([part.view(np.uint64) for part in parts]).view(EVENT)


_HOST_ROWS: Final = {
    HOST_SLOTS.index("runqueue"): (int(Source.HOST), 1, "runqueue_wait"),
    HOST_SLOTS.index("sleep"): (int(Source.HOST), 1, "sleep"),
    HOST_SLOTS.index("io_wait"): (int(Source.HOST), 1, "io_wait"),
    HOST_SLOTS.index("pages"): (int(Source.HOST), 3, "mm_page_alloc"),
    HOST_SLOTS.index("block"): (int(Source.IO), 0, "block_io"),
}
