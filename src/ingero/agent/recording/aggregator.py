"""Time buckets of a recording, from the totals of the kernel or else from the records."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ingero.contract.events import PAGE_ALLOC, PAGE_ALLOC_SUMMARY, Source
from ingero.core.recording.aggregate import AggregateRow, aggregate
from ingero.core.recording.event_columns import EventColumns
from ingero.core.recording.histogram import BucketWindow, histogram_percentile
from ingero.core.recording.latency import ANOMALY_RATIO, OpSummary, SlowCalls, StatKey
from ingero.storage.trace.database import Batch, upsert_aggregates_sql
from ingero.storage.trace.schema import FIVE_SECONDS_NS, MINUTE_NS

MAX_KEYS: Final = 8192
_TABLES: Final = ((FIVE_SECONDS_NS, "event_aggregates_5s"), (MINUTE_NS, "event_aggregates"))


@dataclass(frozen=True, slots=True)
class CountedRow:
    """Totals of one operation of one process since its probe was attached.

    `buckets` begin at `floors_ns`.
    """

    pid: int
    source: int
    op: int
    calls: int
    timed: int
    sum_ns: int
    max_ns: int
    buckets: NDArray[np.int64]
    floors_ns: NDArray[np.int64]
    has_all_records: bool  # every call is also a record


@dataclass(slots=True)
class _Counted:
    window: BucketWindow
    calls: int = 0
    timed: int = 0
    sum_ns: int = 0
    row: CountedRow | None = None


class Aggregator:
    """Adds up until a bucket has ended, then returns its rows once."""

    def __init__(self) -> None:
        self.forgotten = 0
        self._sums: dict[int, dict[tuple[int, int, int, int], list[int]]] = {
            size: {} for size, _ in _TABLES
        }
        self._counted: OrderedDict[StatKey, _Counted] = OrderedDict()
        self._early: OrderedDict[StatKey, tuple[int, int]] = OrderedDict()

    def add_records(self, events: EventColumns, stored: NDArray[np.bool_]) -> None:
        """Count records.

        Of operations that the kernel counts completely, only rows and amounts are taken from
        records.
        """
        # a minute is a multiple of this
        for row in aggregate(events, stored, FIVE_SECONDS_NS):
            self._add_row(row)

    def _add_row(self, row: AggregateRow) -> None:
        start_ns, source, op, pid, count, kept, sum_ns, low_ns, high_ns, amount = row
        if (source, op) == PAGE_ALLOC_SUMMARY:
            return  # already in the totals of page allocations
        if (pid, source, op) in self._counted:
            count, sum_ns, low_ns, high_ns = 0, 0, 0, 0
        else:
            self._remember((pid, source, op), count, sum_ns)
        for size_ns, _ in _TABLES:
            key = (start_ns // size_ns * size_ns, source, op, pid)
            self._add(size_ns, key, count, kept, sum_ns, low_ns, high_ns, amount)

    def _remember(self, key: StatKey, count: int, sum_ns: int) -> None:
        """Keep what was recorded before the first total of the kernel, which includes it."""
        before, before_ns = self._early.pop(key, (0, 0))
        self._early[key] = (before + count, before_ns + sum_ns)
        if len(self._early) > MAX_KEYS:
            self._early.popitem(last=False)

    def _add(self, size_ns: int, key: tuple[int, int, int, int], *values: int) -> None:
        sums = self._sums[size_ns].get(key)
        if sums is None:
            self._sums[size_ns][key] = list(values)
            return
        count, kept, sum_ns, low_ns, high_ns, amount = values
        if count:
            sums[3] = min(sums[3], low_ns) if sums[0] else low_ns
            sums[4] = max(sums[4], high_ns)
        sums[0] += count
        sums[1] += kept
        sums[2] += sum_ns
        sums[5] += amount

    def add_counted(self, rows: Sequence[CountedRow], now_ns: int) -> None:
        """Add the totals of the kernel; increases belong to the present bucket."""
        for row in rows:
            state = self._state((row.pid, row.source, row.op))
            # a new process has this pid: its probe started at zero
            is_another = row.calls < state.calls or row.sum_ns < state.sum_ns
            if is_another:
                state.calls = state.timed = state.sum_ns = 0
            calls, timed, sum_ns = (
                row.calls - state.calls,
                row.timed - state.timed,
                row.sum_ns - state.sum_ns,
            )
            fresh = state.window.add(row.buckets)
            state.calls, state.timed, state.sum_ns, state.row = (
                row.calls,
                row.timed,
                row.sum_ns,
                row,
            )
            if calls:
                self._add_delta(row, now_ns, calls, timed, sum_ns, fresh)

    def _add_delta(
        self,
        row: CountedRow,
        now_ns: int,
        calls: int,
        timed: int,
        sum_ns: int,
        fresh: NDArray[np.int64],
    ) -> None:
        amount = 0
        if (row.source, row.op) == PAGE_ALLOC:
            amount, sum_ns, low_ns, high_ns = sum_ns, 0, 0, 0
        else:
            used = np.flatnonzero(fresh)
            low_ns = int(row.floors_ns[used[0]]) if len(used) else 0
            last = int(used[-1]) + 1 if len(used) else 0
            high_ns = (
                min(row.max_ns, int(row.floors_ns[last]))
                if 0 < last < len(row.floors_ns)
                else row.max_ns
            )
            # only some calls are timed when probing is reduced
            sum_ns = sum_ns * calls // timed if timed else 0
        for size_ns, _ in _TABLES:
            bucket = now_ns // size_ns * size_ns
            self._add(
                size_ns,
                (bucket, row.source, row.op, row.pid),
                calls,
                0,
                sum_ns,
                low_ns,
                high_ns,
                amount,
            )

    def _state(self, key: StatKey) -> _Counted:
        state = self._counted.get(key)
        if state is None:
            count, sum_ns = self._early.pop(key, (0, 0))
            state = self._counted[key] = _Counted(BucketWindow(), count, count, sum_ns)
            if len(self._counted) > MAX_KEYS:
                self._counted.popitem(last=False)
                self.forgotten += 1
        self._counted.move_to_end(key)
        return state

    def improve(self, summaries: Sequence[OpSummary]) -> list[OpSummary]:
        """Replace counts and percentiles of sampled operations with those of the kernel."""
        found = {(summary.pid, *summary.key): summary for summary in summaries}
        for key, state in self._counted.items():
            row = state.row
            if (
                row is None
                or row.has_all_records
                or not row.calls
                or row.source in (Source.HOST, Source.IO)
            ):
                continue
            pid, source, op = key
            recent = state.window.recent()
            p50, p95, p99 = (
                histogram_percentile(recent, row.floors_ns, share) for share in (0.50, 0.95, 0.99)
            )
            known = found.get(key) or OpSummary((source, op), 0, 0, 0, pid=pid)
            total_ns = row.sum_ns * row.calls // row.timed if row.timed else 0
            found[key] = replace(
                known, count=row.calls, p50_ns=p50, p95_ns=p95, p99_ns=p99,
                max_ns=max(row.max_ns, known.max_ns), total_ns=total_ns, slow=slow_of(known, p50),
            )  # fmt: skip
        return sorted(found.values(), key=lambda summary: -summary.total_ns)

    def due(self, now_ns: int, *, is_last: bool = False) -> Batch:
        """Return the rows of ended buckets, with `is_last` of all."""
        batch: Batch = []
        for size_ns, table in _TABLES:
            sums = self._sums[size_ns]
            limit = now_ns + size_ns if is_last else now_ns // size_ns * size_ns
            keys = [key for key in sums if key[0] < limit]
            rows = [(*key, *values) for key, values in ((key, sums.pop(key)) for key in keys)]
            batch.append((upsert_aggregates_sql(table), list(rows)))
        return batch


def slow_of(summary: OpSummary, p50_ns: int) -> SlowCalls:
    """Return the recorded calls that are slow compared with the true median."""
    slow = summary.slow
    if slow is None:
        return SlowCalls(np.empty(0, np.int64), np.empty(0, np.int64))
    is_slow = slow.end_ns - slow.start_ns >= ANOMALY_RATIO * p50_ns
    return SlowCalls(slow.start_ns[is_slow], slow.end_ns[is_slow])
