"""CPU waits of the threads of each cgroup in windows of ten seconds: rows of `cgroup_schedstat`.

The kernel counts every wait of traced processes, and samples those of all others by cgroup. Here
the processes of a cgroup are added up.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ingero.agent.ebpf.layout import CgroupWait
from ingero.agent.recording.aggregator import CountedRow
from ingero.contract.events import SCHED_SWITCH
from ingero.core.recording.histogram import histogram_percentile
from ingero.storage.trace.database import Row, insert_sql, signed64

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
    """Adds up until a window has ended, then returns its rows once.

    `cgroup_of` returns 0 for a pid whose cgroup is unknown. `last` is the 99th percentile and the
    number of waits of every cgroup in the previous window.
    """

    def __init__(self, since_ns: int, cgroup_of: Callable[[int], int]) -> None:
        self.last: dict[int, tuple[int, int]] = {}
        self._since_ns, self._cgroup_of = since_ns, cgroup_of
        self._others: dict[int, tuple[int, NDArray[np.int64]]] = {}
        self._before: dict[int, tuple[int, NDArray[np.int64]]] = {}
        self._waits: dict[int, _Waits] = {}

    def add(self, counted: Sequence[CountedRow]) -> None:
        """Add the totals of the kernel; if counts fell, a new process has the pid."""
        rows = [row for row in counted if (row.source, row.op) == SCHED_SWITCH]
        for row in rows:
            total_ns, buckets = self._before.get(row.pid, (0, np.zeros_like(row.buckets)))
            if (row.buckets < buckets).any():
                total_ns, buckets = 0, np.zeros_like(row.buckets)
            cgroup = self._cgroup_of(row.pid)
            if cgroup:
                self._take(cgroup, row.buckets - buckets, row.floors_ns, row.sum_ns - total_ns)
        self._before = {row.pid: (row.sum_ns, row.buckets) for row in rows}

    def add_others(self, rows: Sequence[CgroupWait], floors_ns: NDArray[np.int64]) -> None:
        """Add what the kernel sampled of processes that are not traced."""
        for row in rows:
            total_ns, buckets = self._others.get(row.cgroup, (0, np.zeros_like(row.buckets)))
            if (row.buckets < buckets).any():  # evicted by the kernel meanwhile, and started again
                total_ns, buckets = 0, np.zeros_like(row.buckets)
            self._take(row.cgroup, row.buckets - buckets, floors_ns, row.sum_ns - total_ns)
        self._others = {row.cgroup: (row.sum_ns, row.buckets) for row in rows}

    def _take(
        self, cgroup: int, fresh: NDArray[np.int64], floors_ns: NDArray[np.int64], total_ns: int
    ) -> None:
        waits = self._waits.setdefault(cgroup, _Waits(np.zeros_like(fresh), floors_ns))
        waits.buckets = waits.buckets + fresh
        waits.total_ns += max(total_ns, 0)

    def due(self, now_ns: int, *, is_last: bool = False) -> list[Row]:
        """Return the rows of the window if it has ended, or if `is_last`."""
        if now_ns - self._since_ns < WINDOW_NS and not is_last:
            return []
        rows: list[Row] = []
        self.last = {}
        for cgroup, waits in self._waits.items():
            count = int(waits.buckets.sum())
            if count:
                p99_ns = histogram_percentile(waits.buckets, waits.floors_ns, 0.99)
                self.last[cgroup] = (p99_ns, count)
                rows.append(
                    (signed64(cgroup), p99_ns, waits.total_ns, count, self._since_ns, now_ns)
                )
        self._since_ns, self._waits = now_ns, {}
        return rows
