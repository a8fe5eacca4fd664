"""A timeline written chunk by chunk as Trace Event JSON."""

from collections.abc import Sequence

from ingero.contract.events import op_name
from ingero.contract.timeline.model import (
    SliceChunk,
    TimelineChain,
    TimelineCounter,
    TimelineNode,
    category_of,
    kinds_of,
)
from ingero.contract.timeline.perfetto import json_chain, json_head, json_process, json_slices


class JsonTimeline:
    """Trace Event JSON: one process track per node, chains as coloured markers, no counters.

    Every event begins at its stored time, as other readers expect.
    """

    def __init__(self, nodes: Sequence[TimelineNode]) -> None:
        self.nodes = nodes
        self.events = self.markers = 0
        self._is_first = True

    def begin(self) -> bytes:
        return b"[\n" + self._joined(
            [json_process(i + 1, node.label) for i, node in enumerate(self.nodes)]
        )

    def slices(self, chunk: SliceChunk) -> bytes:
        count = len(chunk.ts_ns)
        if not count:
            return b""
        kinds, which = kinds_of(chunk)
        heads = [json_head(op_name(source, op), category_of(source)) for source, op in kinds]
        text = json_slices(
            chunk.ts_ns // 1000,
            chunk.dur_ns // 1000,
            which,
            chunk.node + 1,
            chunk.pid,
            chunk.gpu_id,
            chunk.ret_code,
            heads,
        )
        self.events += count
        return self._joined([text])

    def chains(self, chains: Sequence[TimelineChain]) -> bytes:
        self.markers += len(chains)
        return self._joined(
            [
                json_chain(
                    c.node + 1, c.at_ns, c.severity, c.summary, c.root_cause, c.recommendations
                )
                for c in chains
            ]
        )

    def counters(self, counters: Sequence[TimelineCounter]) -> bytes:
        return b""

    def end(self) -> bytes:
        return b"\n]\n"

    def _joined(self, elements: list[bytes]) -> bytes:
        separator = b",\n" if elements and not self._is_first else b""
        self._is_first = self._is_first and not elements
        return separator + b",\n".join(elements)
