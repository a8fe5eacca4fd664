"""Trace events as columns, for statistics and causal chains, instead of one object per event."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ingero.contract.events import FIRST_SUMMARY_OP, PAGE_ALLOC, OpKey, Source

_SUMMARY_NS = 1_000_000_000  # a summary covers the second before it
# Events of other sources carry the time of their start.
_IS_STAMPED_AT_END = np.isin(np.arange(256), (Source.HOST, Source.IO, Source.NET))


@dataclass(frozen=True, slots=True, eq=False)
class EventColumns:
    """Columns of equal length, in the order received; times are Unix nanoseconds."""

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
        """Return the selected rows."""
        return type(self)(
            self.timestamp[selection], self.pid[selection], self.tid[selection],
            self.source[selection], self.op[selection], self.duration[selection],
            self.arg0[selection], self.arg1[selection], self.ret_code[selection],
            self.cgroup_id[selection],
        )  # fmt: skip

    @property
    def code(self) -> NDArray[np.int64]:
        """Source and operation as one number, an index into tables of `op_table`."""
        return ((self.source & 0xFF) << 8) | (self.op & 0xFF)

    def is_op(self, source: int, op: int) -> NDArray[np.bool_]:
        """Return which rows are this operation."""
        matches: NDArray[np.bool_] = (self.source == source) & (self.op == op)
        return matches

    def intervals(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the start and end of each event."""
        is_host = self.source == Source.HOST
        span = np.where(is_host & (self.op >= FIRST_SUMMARY_OP), _SUMMARY_NS, self.duration)
        # Some recorders store bytes in the duration of page allocations.
        span = np.where(self.is_op(*PAGE_ALLOC), 0, span)
        ends_at = _IS_STAMPED_AT_END[self.source & 0xFF]
        return np.where(ends_at, self.timestamp - span, self.timestamp), np.where(
            ends_at, self.timestamp, self.timestamp + span
        )


def op_table(keys: Iterable[OpKey]) -> NDArray[np.bool_]:
    """Return a table such that `table[events.code]` tells which events are these operations."""
    table = np.zeros(1 << 16, bool)
    for source, op in keys:
        table[(source << 8) | op] = True
    return table


def source_table(sources: Iterable[int]) -> NDArray[np.bool_]:
    """Return the same table for all operations of these sources."""
    return op_table((source, op) for source in sources for op in range(256))


COLUMN_NAMES = tuple(field.name for field in fields(EventColumns))


def columns_from_rows(rows: Sequence[Sequence[int]]) -> EventColumns:
    """Return columns from rows with values in the order of `COLUMN_NAMES`."""
    return columns_from_table(np.array(rows, np.int64).reshape(len(rows), len(COLUMN_NAMES)))


def columns_from_table(table: NDArray[np.int64]) -> EventColumns:
    """Return columns from a table with one row per event, in the order of `COLUMN_NAMES`."""
    return EventColumns(
        *(np.ascontiguousarray(table[:, index]) for index in range(len(COLUMN_NAMES)))
    )


def concatenate(parts: Sequence[EventColumns]) -> EventColumns:
    """Join the rows of all parts in order."""
    if not parts:
        return columns_from_rows([])
    return EventColumns(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in COLUMN_NAMES)
    )
