"""Links from a causal chain to events on a timeline: the slowest of each layer and of its call."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

import numpy as np

from ingero.contract.chain import CHAIN_WINDOW_NS
from ingero.contract.events import Layer, OpKey, Source
from ingero.contract.timeline.model import SliceChunk, TimelineChain
from ingero.contract.timeline.perfetto import as_columns, groups

MAX_LAYERS: Final = 8
_LAYER_SOURCES: Final[dict[str, tuple[int, ...]]] = {
    Layer.HOST: (Source.HOST,),
    Layer.IO: (Source.IO,),
    Layer.NET: (Source.TCP, Source.NET),
    Layer.INFRA: (Source.HOST, Source.IO, Source.TCP),
    Layer.CUDA: (Source.CUDA, Source.GRAPH),
    Layer.DRIVER: (Source.DRIVER,),
}
# Duration and row of the slowest event, by node and operation
_Slowest: TypeAlias = dict[int, dict[OpKey, tuple[int, int]]]


def link_events(
    chains: Sequence[TimelineChain], chunks: Iterable[SliceChunk]
) -> list[TimelineChain]:
    """Return the chains with the rows of their events, from the minute before each was found.

    The events are read once, however many chains there are; chunks must be in order of time.
    """
    slowest: list[dict[OpKey, tuple[int, int]]] = [{} for _ in chains]
    found_at = as_columns([chain.at_ns for chain in chains])
    for chunk in chunks:
        firsts = np.searchsorted(chunk.ts_ns, found_at - CHAIN_WINDOW_NS)
        ends = np.searchsorted(chunk.ts_ns, found_at, side="right")
        of_whole_chunk: _Slowest | None = None
        for number in np.flatnonzero(firsts < ends).tolist():
            first, end = int(firsts[number]), int(ends[number])
            if end - first < len(chunk.ts_ns):
                of_part = _slowest(chunk, slice(first, end))
            else:
                of_part = of_whole_chunk = of_whole_chunk or _slowest(chunk, slice(None))
            for key, candidate in of_part.get(chains[number].node, {}).items():
                slowest[number][key] = max(candidate, slowest[number].get(key, candidate))
    return [
        replace(chain, rows=_rows(chain, found))
        for chain, found in zip(chains, slowest, strict=True)
    ]


def _slowest(chunk: SliceChunk, part: slice) -> _Slowest:
    node, source, op = chunk.node[part], chunk.source[part], chunk.op[part]
    duration, row = chunk.dur_ns[part], chunk.row[part]
    code = np.zeros(len(node), np.int64)
    groups(node, source, op, np.zeros_like(code), code)
    order = np.lexsort((duration, code))
    last_of_each = order[np.flatnonzero(np.diff(code[order], append=-1))]
    found: _Slowest = {}
    for i in last_of_each.tolist():
        found.setdefault(int(node[i]), {})[int(source[i]), int(op[i])] = (
            int(duration[i]),
            int(row[i]),
        )
    return found


def _rows(chain: TimelineChain, slowest: dict[OpKey, tuple[int, int]]) -> list[int]:
    """Return the rows of the causes, then of the slow call."""
    rows = []
    for layer in chain.layers[:MAX_LAYERS]:
        sources = _LAYER_SOURCES.get(layer, ())
        if chain.op is not None and chain.op[0] in sources:  # the layer of the call itself
            continue
        of_layer = [found for (source, _), found in slowest.items() if source in sources]
        rows += [max(of_layer)[1]] if of_layer else []
    if chain.op in slowest:
        rows.append(slowest[chain.op][1])
    return list(dict.fromkeys(rows))
