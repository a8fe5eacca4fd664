"""The live feed of a recording: eBPF probes of this node."""

from collections.abc import Iterable, Sequence

from ingero.agent.aggregator import CountedRow
from ingero.agent.ebpf.batch import EventBatch
from ingero.agent.ebpf.policy import TracePolicy
from ingero.agent.ebpf.tracer import Tracer
from ingero.agent.process_info import ProcessBook
from ingero.agent.recorder import TracedEvents
from ingero.agent.trace_feed import to_collectives, to_counted, to_events
from ingero.contract.collective import CollectiveRecord


class LiveFeed:
    """Owner of the tracer. Probes are in place when the constructor returns."""

    def __init__(self, policy: TracePolicy, node: str) -> None:
        self.tracer = Tracer(policy)
        self.tracer.start()
        self._policy, self._node = policy, node
        self._batch = EventBatch()

    def poll(self) -> TracedEvents:
        """Everything since the last poll."""
        self._batch = self.tracer.poll()
        return to_events(self._batch)

    def collectives(self, book: ProcessBook) -> Iterable[tuple[CollectiveRecord, int]]:
        """NCCL operations of the last poll."""
        return to_collectives(self._batch, self._node, book) if len(self._batch.nccl) else ()

    def counted(self) -> Sequence[CountedRow]:
        """What the kernel counted so far."""
        return to_counted(self.tracer.histograms(), records_everything=self._policy.record_everything)

    def losses(self) -> dict[str, int]:
        """What the kernel could not hand over."""
        return self.tracer.losses()

    def notes(self) -> list[str]:
        """What is not traced, and why."""
        return [f"{one.name}: {one.detail}" for one in self.tracer.capabilities() if not one.on]

    def close(self) -> None:
        """Take the probes out."""
        self.tracer.close()
