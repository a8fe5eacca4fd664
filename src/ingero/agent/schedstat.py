"""How long the threads of each cgroup waited for a CPU, in windows of ten seconds: rows of `cgroup_schedstat`.

The kernel counts every wait of every traced process; here the processes of a cgroup are added up.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ingero.agent.aggregator import CountedRow
from ingero.contract.events import SCHED_SWITCH
from ingero.core.histogram import histogram_percentile
from ingero.storage.trace_db import Row, insert_sql, signed64

WINDOW_NS: Final = 10_000_000_000
INSERT_SCHEDSTAT: Final = insert_sql(
    "cgroup_schedstat",
    ("cgroup_id", "p99_off_cpu", "total_off_cpu", "event_count", "window_start", "window_end"),
    "INSERT OR REPLACE",
)


@dataclass(slots=True)
class _Waits:
    buckets: NDArray[np.int64]
    floors_ns: NDArray[np.int64]
    total_ns: int = 0


class CgroupWaits:
    """Adds up until a window is over, then gives its rows away once. `cgroup_of` a pid: 0 is unknown."""

    def __init__(self, since_ns: int, cgroup_of: Callable[[int], int]) -> None:
        self._since_ns, self._cgroup_of = since_ns, cgroup_of
        self._before: dict[int, tuple[int, NDArray[np.int64]]] = {}
        self._waits: dict[int, _Waits] = {}

    def add(self, counted: Sequence[CountedRow]) -> None:
        """Take in the kernel's totals; a process whose counts fell is a new one under an old number."""
        rows = [row for row in counted if (row.source, row.op) == SCHED_SWITCH]
        for row in rows:
            total_ns, buckets = self._before.get(row.pid, (0, np.zeros_like(row.buckets)))
            if (row.buckets < buckets).any():
                total_ns, buckets = 0, np.zeros_like(row.buckets)
            cgroup = self._cgroup_of(row.pid)
            if cgroup:
                waits = self._waits.setdefault(cgroup, _Waits(np.zeros_like(row.buckets), row.floors_ns))
                waits.buckets = waits.buckets + (row.buckets - buckets)
                waits.total_ns += max(row.sum_ns - total_ns, 0)
        self._before = {row.pid: (row.sum_ns, row.buckets) for row in rows}

    def due(self, now_ns: int, *, is_last: bool = False) -> list[Row]:
        """Rows of the window that is over; `is_last` also of one that is not."""
        if now_ns - self._since_ns < WINDOW_NS and not is_last:
            return []
        rows: list[Row] = []
        for cgroup, waits in self._waits.items():
            count = int(waits.buckets.sum())
            if count:
                p99_ns = histogram_percentile(waits.buckets, waits.floors_ns, 0.99)
                rows.append((signed64(cgroup), p99_ns, waits.total_ns, count, self._since_ns, now_ns))
        self._since_ns, self._waits = now_ns, {}
        return rows
