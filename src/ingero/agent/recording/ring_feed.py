"""A recording without probes: the rings of the NCCL plugin and annotations alone."""

import time
from collections.abc import Sequence

from ingero.agent.ebpf.batch import EventBatch
from ingero.agent.ebpf.layout import CgroupWait
from ingero.agent.nccl.rings import Rings
from ingero.agent.processes.info import ProcessCache
from ingero.agent.recording.aggregator import CountedRow
from ingero.agent.recording.feed import ring_rows, to_events
from ingero.agent.recording.recorder import TracedEvents
from ingero.core.recording.latency import OpSummary
from ingero.storage.trace.database import Row


class RingOnlyFeed:
    """Owner of the rings. `why` says why there are no probes."""

    def __init__(self, node: str, why: str) -> None:
        self.rings = Rings(node=node)
        self._node, self._why = node, why
        self._nothing = to_events(EventBatch())

    def poll(self) -> TracedEvents:
        """Return no events."""
        return self._nothing

    def collectives(self, processes: ProcessCache) -> Sequence[Row]:
        """Return the NCCL operations since the last poll."""
        batches = self.rings.poll(time.monotonic())
        return [row for batch in batches for row in ring_rows(batch, self._node)]

    def counted(self) -> Sequence[CountedRow]:
        """Return no totals."""
        return []

    def neighbours(self) -> Sequence[CgroupWait]:
        """Return no waits."""
        return []

    def allocations(self) -> dict[int, list[tuple[int, int]]]:
        """Return no blocks."""
        return {}

    def tune(self, operations: Sequence[OpSummary]) -> None:
        """Do nothing: there is no probe to set."""

    def losses(self) -> dict[str, int]:
        """Return what a ring overwrote before it was read."""
        counts = self.rings.counts
        return {"nccl_missed": counts.missed + counts.torn, "nccl_dropped": counts.dropped}

    def notes(self) -> list[str]:
        """Return why there are no probes, and what the rings miss."""
        return [f"probes: {self._why}", *self.rings.notes()]

    def is_idle(self) -> bool:
        """Return whether no job writes a ring."""
        return not self.rings.pids()

    def close(self) -> None:
        """Close the rings."""
        self.rings.close()
