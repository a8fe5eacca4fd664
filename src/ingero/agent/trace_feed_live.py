"""The live feed of a recording: eBPF probes of this node, and the rings of jobs that run with the NCCL plugin."""

import time
from collections.abc import Sequence
from typing import Final

from ingero.agent.aggregator import CountedRow
from ingero.agent.ebpf.batch import EventBatch
from ingero.agent.ebpf.policy import TracePolicy
from ingero.agent.ebpf.tracer import Tracer
from ingero.agent.nccl.rings import Rings
from ingero.agent.process_info import ProcessBook
from ingero.agent.recorder import TracedEvents
from ingero.agent.trace_feed import probe_rows, ring_rows, to_counted, to_events
from ingero.core.governor import Step
from ingero.storage.trace_db import Row

_HOW: Final = {Step.ENTRY: "without durations", Step.DUTY: "part of the time", Step.OFF: "not at all"}


class LiveFeed:
    """Owner of the tracer and the rings. Probes are in place when the constructor returns."""

    def __init__(self, policy: TracePolicy, node: str) -> None:
        self.tracer = Tracer(policy)
        self.tracer.start()
        self.rings = Rings(node=node)
        self._policy, self._node = policy, node
        self._batch = EventBatch()

    def poll(self) -> TracedEvents:
        """Everything since the last poll."""
        self._batch = self.tracer.poll()
        return to_events(self._batch)

    def collectives(self, book: ProcessBook) -> Sequence[Row]:
        """NCCL operations since the last poll: as the GPU timed them, else as the probes saw them enqueued."""
        rows: list[Row] = []
        for batch in self.rings.poll(time.monotonic()):
            if self._policy.pids is None or batch.pid in self.tracer.processes():
                rows += ring_rows(batch, self._node)
        if len(self._batch.nccl):
            timed = {reader.header.pid for reader in self.rings.readers()}
            rows += probe_rows(self._batch, self._node, book, timed)
        return rows

    def counted(self) -> Sequence[CountedRow]:
        """What the kernel counted so far."""
        return to_counted(self.tracer.histograms(), records_everything=self._policy.record_everything)

    def losses(self) -> dict[str, int]:
        """What the kernel could not hand over, and what a ring overwrote before we read it."""
        counts = self.rings.counts
        return self.tracer.losses() | {"nccl_missed": counts.missed + counts.torn, "nccl_dropped": counts.dropped}

    def notes(self) -> list[str]:
        """What is not traced in full, and why."""
        off = [f"{one.name}: {one.detail}" for one in self.tracer.capabilities() if not one.on]
        thinned = [
            f"process {cost.pid}: {name} is watched {_HOW[watch.step]}: probing costs {cost.cost_share:.1%} of a core"
            for cost in self.tracer.costs()
            for name, watch in cost.watches.items()
            if watch.step is not Step.FULL
        ]
        return [*off, *thinned, *(f"{path}: {why}" for path, why in self.rings.refused.items())]

    def close(self) -> None:
        """Take the probes out."""
        self.rings.close()
        self.tracer.close()
