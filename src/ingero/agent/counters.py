"""Running totals per cgroup: every bucket of the trace database is added once, when it is complete."""

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from ingero.contract.events import MemcpyKind
from ingero.contract.health import CgroupTotals
from ingero.storage.aggregates import SHORT_BUCKET_NS, ProcessTotals, TraceReader

SETTLE_NS = 2 * SHORT_BUCKET_NS  # the writer flushes a bucket after it is over
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
    """Totals since the agent started. `evicted` counts cgroups that were forgotten to stay within bounds."""

    def __init__(self, reader: TraceReader, cgroup_of: Callable[[int], str], now_ns: int) -> None:
        self.since_ns = now_ns
        self.evicted = 0
        self._reader = reader
        self._cgroup_of = cgroup_of
        self._next_bucket_ns = now_ns - now_ns % SHORT_BUCKET_NS
        self._totals: OrderedDict[str, _Totals] = OrderedDict()
        self._cgroups: OrderedDict[int, str] = OrderedDict()

    def read(self, now_ns: int) -> tuple[CgroupTotals, ...]:
        """Add the buckets that became complete and return all totals, sorted. Raises StoreError."""
        end_ns = now_ns - SETTLE_NS
        end_ns -= end_ns % SHORT_BUCKET_NS
        if end_ns > self._next_bucket_ns:
            for row in self._reader.processes(self._next_bucket_ns, end_ns):
                self._add(row)
            self._next_bucket_ns = end_ns
        return tuple(
            CgroupTotals(
                cgroup_hash=name,
                launches=totals.launches,
                stall_ns=totals.stall_ns,
                memcpy_bytes=dict(totals.memcpy_bytes),
            )
            for name, totals in sorted(self._totals.items())
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
        if row.copied_bytes > directed:  # counted in the bucket, not kept as rows: direction unknown
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
