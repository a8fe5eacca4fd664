"""What a timeline shows: nodes, processes, slices, causal chains and counters."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ingero.contract.events import OpKey
from ingero.contract.timeline.perfetto import CATEGORY, OTHER_CATEGORY, Columns, groups


@dataclass(frozen=True, slots=True)
class TimelineNode:
    """One node; unnamed nodes are shown as `local`."""

    name: str
    rank: int | None = None

    @property
    def label(self) -> str:
        return (self.name or "local") + ("" if self.rank is None else f" (rank {self.rank})")


@dataclass(frozen=True, slots=True)
class TimelineProcess:
    """One process; name and rank are shown where they are known."""

    pid: int
    name: str = ""
    rank: int | None = None

    @property
    def label(self) -> str:
        return f"{self.name or 'process'} {self.pid}" + (
            "" if self.rank is None else f" (rank {self.rank})"
        )


@dataclass(frozen=True, slots=True)
class SliceChunk:
    """Events in the order of their stored times.

    `node` is a position in the list of nodes; `row` is the row that chains refer to.
    """

    ts_ns: Columns
    dur_ns: Columns
    source: Columns
    op: Columns
    pid: Columns
    tid: Columns
    gpu_id: Columns
    ret_code: Columns
    node: Columns
    row: Columns


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineChain:
    """A causal chain: the layers of its causes, the slow operation, and the rows of its events."""

    node: int
    at_ns: int
    severity: str
    summary: str
    root_cause: str
    recommendations: Sequence[str] = ()
    layers: Sequence[str] = ()
    op: OpKey | None = None
    rows: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class TimelineCounter:
    """The values of one quantity of one node over time."""

    node: int
    name: str
    unit: str
    ts_ns: Columns
    values: Sequence[float]


class TimelineWriter(Protocol):
    """Writes one timeline and counts what it wrote.

    Call `begin`, then `slices`, `chains` and `counters` in any order, then `end`.
    """

    events: int
    markers: int

    def begin(self) -> bytes: ...
    def slices(self, chunk: SliceChunk) -> bytes: ...
    def chains(self, chains: Sequence[TimelineChain]) -> bytes: ...
    def counters(self, counters: Sequence[TimelineCounter]) -> bytes: ...
    def end(self) -> bytes: ...


def kinds_of(chunk: SliceChunk) -> tuple[list[tuple[int, int]], Columns]:
    """Return the distinct (source, op) pairs of a chunk, and which of them each event is."""
    code = np.zeros(len(chunk.op), np.int64)
    nothing = np.zeros_like(code)
    firsts = groups(chunk.source, chunk.op, nothing, nothing, code)
    return [(int(chunk.source[i]), int(chunk.op[i])) for i in firsts], code


def category_of(source: int) -> str:
    return CATEGORY.get(source, OTHER_CATEGORY)
