"""Trace events as columns: what statistics and causal chains work on, never one object per event."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ingero.contract.events import Source

_SUMMARY_NS = 1_000_000_000  # summaries speak for the second before them
_ENDS_AT_TIMESTAMP = (Source.HOST, Source.IO, Source.NET)  # the others carry their entry time


@dataclass(frozen=True, slots=True, eq=False)
class EventColumns:
    """Equally long columns; times are Unix nanoseconds, in event order as received."""

    timestamp: NDArray[np.int64]
    pid: NDArray[np.int64]
    tid: NDArray[np.int64]
    source: NDArray[np.int64]
    op: NDArray[np.int64]
    duration: NDArray[np.int64]
    arg0: NDArray[np.int64]
    arg1: NDArray[np.int64]
    ret_code: NDArray[np.int64]
    cgroup_id: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.timestamp)

    def take(self, selection: NDArray[np.bool_] | NDArray[np.intp] | slice) -> Self:
        """The chosen rows."""
        return type(self)(*(getattr(self, field.name)[selection] for field in fields(self)))

    def is_op(self, source: int, op: int) -> NDArray[np.bool_]:
        """Which rows are this operation."""
        matches: NDArray[np.bool_] = (self.source == source) & (self.op == op)
        return matches

    def intervals(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """When each event began and ended."""
        is_host = self.source == Source.HOST
        span = np.where(is_host & (self.op >= 20), _SUMMARY_NS, self.duration)
        span = np.where(is_host & (self.op == 3), 0, span)  # page allocations of some recorders carry bytes here
        ends_at = np.isin(self.source, _ENDS_AT_TIMESTAMP)
        return np.where(ends_at, self.timestamp - span, self.timestamp), np.where(
            ends_at, self.timestamp, self.timestamp + span
        )


COLUMN_NAMES = tuple(field.name for field in fields(EventColumns))


def columns_from_rows(rows: Sequence[Sequence[int]]) -> EventColumns:
    """Rows in the order of `COLUMN_NAMES`."""
    table = np.array(rows, np.int64).reshape(len(rows), len(COLUMN_NAMES))
    return EventColumns(*(np.ascontiguousarray(table[:, index]) for index in range(len(COLUMN_NAMES))))


def concatenate(parts: Sequence[EventColumns]) -> EventColumns:
    """All rows, in order."""
    if not parts:
        return columns_from_rows([])
    return EventColumns(*(np.concatenate([getattr(part, name) for part in parts]) for name in COLUMN_NAMES))
