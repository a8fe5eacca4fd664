"""Running totals per cgroup, and processes that lost their CPU.

Every bucket of the trace database is read once, when it is complete.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from ingero.contract.events import MemcpyKind
from ingero.contract.push.encode import CgroupTotals
from ingero.contract.straggler import Straggle
from ingero.core.health.starvation import Activity, StraggleWatch, check_straggle
from ingero.storage.trace.aggregates import SHORT_BUCKET_NS, ProcessTotals, TraceReader

SETTLE_NS = 2 * SHORT_BUCKET_NS  # the writer flushes a bucket after it has ended
MAX_CGROUPS = 256
MAX_PIDS = 1024
_DIRECTIONS = {kind.value: kind.name.lower() for kind in MemcpyKind if kind <= MemcpyKind.D2D}
_UNKNOWN = "unknown"


@dataclass(slots=True)
class _Totals:
    launches: int = 0
    stall_ns: int = 0
    memcpy_bytes: Counter[str] = field(default_factory=Counter)


class CgroupCounters:
    """Totals since the agent started.

    `evicted` counts cgroups that were dropped to stay within the limit; `straggles` are the
    processes that the last read found without CPU.
    """

    def __init__(self, reader: TraceReader, cgroup_of: Callable[[int], str], now_ns: int) -> None:
        self.since_ns = now_ns
        self.evicted = 0
        self.straggles: tuple[Straggle, ...] = ()
        self._watch = StraggleWatch()
        self._reader = reader
        self._cgroup_of = cgroup_of
        self._next_bucket_ns = now_ns - now_ns % SHORT_BUCKET_NS
        self._totals: OrderedDict[str, _Totals] = OrderedDict()
        self._cgroups: OrderedDict[int, str] = OrderedDict()

    def read(self, now_ns: int) -> tuple[CgroupTotals, ...]:
        """Add the buckets that are now complete; return all totals, sorted. Raises StoreError."""
        end_ns = now_ns - SETTLE_NS
        end_ns -= end_ns % SHORT_BUCKET_NS
        self.straggles = ()
        if end_ns > self._next_bucket_ns:
            rows = self._reader.processes(self._next_bucket_ns, end_ns)
            for row in rows:
                self._add(row)
            begin_ns, self._next_bucket_ns = self._next_bucket_ns, end_ns
            self.straggles = self._check_straggle(rows, begin_ns, end_ns)
        return tuple(
            CgroupTotals(
                cgroup_hash=name,
                launches=totals.launches,
                stall_ns=totals.stall_ns,
                memcpy_bytes=dict(totals.memcpy_bytes),
            )
            for name, totals in sorted(self._totals.items())
        )

    def _check_straggle(
        self, rows: list[ProcessTotals], begin_ns: int, end_ns: int
    ) -> tuple[Straggle, ...]:
        activity = {row.pid: Activity(row.launches, row.switches) for row in rows}
        self._watch, found = check_straggle(self._watch, activity, end_ns / 1e9)
        return tuple(
            Straggle(
                pid=each.pid,
                throughput_drop_pct=round(each.drop_percent, 4),
                sched_switch_count=each.switches,
                preempting_pids=self._reader.preemptors(each.pid, begin_ns, end_ns),
                timestamp_ns=end_ns,
                sustained=each.sustained,
            )
            for each in found
        )

    def _add(self, row: ProcessTotals) -> None:
        name = self._cgroup(row.pid)
        totals = self._totals.setdefault(name, _Totals())
        self._totals.move_to_end(name)
        totals.launches += row.launches
        totals.stall_ns += row.stall_ns
        directed = sum(row.directed_bytes.values())
        for direction, size in row.directed_bytes.items():
            totals.memcpy_bytes[_DIRECTIONS.get(direction, _UNKNOWN)] += size
        # counted in the bucket but not kept as rows: the direction is unknown
        if row.copied_bytes > directed:
            totals.memcpy_bytes[_UNKNOWN] += row.copied_bytes - directed
        while len(self._totals) > MAX_CGROUPS:
            self._totals.popitem(last=False)
            self.evicted += 1

    def _cgroup(self, pid: int) -> str:
        if pid in self._cgroups:
            self._cgroups.move_to_end(pid)
        else:
            self._cgroups[pid] = self._cgroup_of(pid)
            if len(self._cgroups) > MAX_PIDS:
                self._cgroups.popitem(last=False)
        return self._cgroups[pid]
