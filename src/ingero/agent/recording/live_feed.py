"""The live feed of a recording: the probes of this node and the rings of the NCCL plugin."""

import time
from collections.abc import Sequence
from typing import Final

from ingero.agent.ebpf.batch import EventBatch
from ingero.agent.ebpf.layout import CgroupWait
from ingero.agent.ebpf.policy import TracePolicy
from ingero.agent.ebpf.slots import Recording
from ingero.agent.ebpf.tracer import HistogramRow, Tracer
from ingero.agent.nccl.rings import Rings
from ingero.agent.processes.info import ProcessCache
from ingero.agent.recording.aggregator import CountedRow
from ingero.agent.recording.feed import HOT_OPS, probe_rows, ring_rows, to_counted, to_events
from ingero.agent.recording.recorder import TracedEvents
from ingero.contract.events import Source
from ingero.core.recording.latency import OpSummary
from ingero.storage.trace.database import Row

SLOW_RATIO: Final = 3
MIN_SLOW_NS: Final = 100_000  # shorter calls are recorded without a stack
MIN_CALLS: Final = 20


class LiveFeed:
    """Owner of the tracer and the rings. The constructor returns with the probes in place."""

    def __init__(self, policy: TracePolicy, node: str) -> None:
        self.tracer = Tracer(policy)
        self.tracer.start()
        self.rings = Rings(node=node)
        self._policy, self._node = policy, node
        self._batch = EventBatch()
        self._rows: list[HistogramRow] = []
        self._slow_ns: dict[tuple[int, str], int] = {}

    def poll(self) -> TracedEvents:
        """Return everything recorded since the last poll."""
        self._batch = self.tracer.poll()
        return to_events(self._batch)

    def collectives(self, processes: ProcessCache) -> Sequence[Row]:
        """Return the NCCL operations since the last poll.

        They are timed by the GPU where the plugin runs, else by the probes when they were enqueued.
        """
        rows: list[Row] = []
        for batch in self.rings.poll(time.monotonic()):
            if self._policy.pids is None or batch.pid in self.tracer.processes():
                rows += ring_rows(batch, self._node)
        if len(self._batch.nccl):
            rows += probe_rows(self._batch, self._node, processes, self.rings.pids())
        return rows

    def counted(self) -> Sequence[CountedRow]:
        """Return the totals of the kernel."""
        self._rows = self.tracer.histograms()
        return to_counted(self._rows, records_everything=self._policy.record_everything)

    def neighbours(self) -> Sequence[CgroupWait]:
        """Return CPU waits of processes that are not traced."""
        return self.tracer.neighbours()

    def allocations(self) -> dict[int, list[tuple[int, int]]]:
        """Return the GPU memory blocks of each process."""
        return self.tracer.allocations()

    def tune(self, operations: Sequence[OpSummary]) -> None:
        """Set the duration from which calls of each process are recorded with their stack."""
        living = {row.pid for row in self._rows}
        self._slow_ns = {key: slow_ns for key, slow_ns in self._slow_ns.items() if key[0] in living}
        typical = {(one.pid, *one.key): one.p50_ns for one in operations if one.count >= MIN_CALLS}
        for row in self._rows:
            key = (row.pid, row.source, row.op)
            if (
                row.source not in (Source.CUDA, Source.DRIVER)
                or (row.source, row.op) in HOT_OPS
                or not typical.get(key)
            ):
                continue
            slow_ns = max(SLOW_RATIO * typical[key], MIN_SLOW_NS)
            if abs(slow_ns - self._slow_ns.get((row.pid, row.name), 0)) > slow_ns // 4:
                self._slow_ns[row.pid, row.name] = slow_ns
                self.tracer.set_recording(row.pid, row.name, Recording.everything(slow_ns))

    def losses(self) -> dict[str, int]:
        """Return what the kernel lost, and what a ring overwrote before it was read."""
        counts = self.rings.counts
        return self.tracer.losses() | {
            "nccl_missed": counts.missed + counts.torn,
            "nccl_dropped": counts.dropped,
        }

    def notes(self) -> list[str]:
        """Return what is not fully traced, and why."""
        off = [f"{one.name}: {one.detail}" for one in self.tracer.capabilities() if not one.on]
        return [*off, *self.rings.notes()]

    def is_idle(self) -> bool:
        """Return whether no process is traced and no job writes a ring."""
        return not self.tracer.processes() and not self.rings.pids()

    def close(self) -> None:
        """Remove the probes."""
        self.rings.close()
        self.tracer.close()
