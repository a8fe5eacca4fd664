"""Time buckets of a recording, from the totals of the kernel or else from the records."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ingero.contract.events import PAGE_ALLOC, PAGE_ALLOC_SUMMARY, Source
from ingero.core.recording.aggregate import AggregateRow, aggregate_with_durations
from ingero.core.recording.event_columns import EventColumns
from ingero.core.recording.histogram import FLOORS_NS, BucketWindow, histogram_percentile
from ingero.core.recording.latency import ANOMALY_RATIO, OpSummary, SlowCalls, StatKey
from ingero.core.recording.operations import Buckets, OpTotals, is_timed, to_buckets
from ingero.storage.trace.database import ADD_DURATIONS, Batch, upsert_aggregates_sql
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
    """Adds up for five seconds, then returns what it counted once, by minute and by five seconds.

    `totals` are the counts since the start, which are also those of the file.
    """

    def __init__(self, node: str = "") -> None:
        self.node = node
        self.forgotten = 0
        self.totals: OrderedDict[StatKey, OpTotals] = OrderedDict()
        self._durations: dict[tuple[int, int, int, int], Buckets] = {}
        self._sums: dict[int, dict[tuple[int, int, int, int], list[int]]] = {
            size: {} for size, _ in _TABLES
        }
        self._counted: OrderedDict[StatKey, _Counted] = OrderedDict()
        self._early: OrderedDict[StatKey, OpTotals] = OrderedDict()

    def add_records(self, events: EventColumns, stored: NDArray[np.bool_]) -> None:
        """Count records.

        Of operations that the kernel counts completely, only rows and amounts are taken from
        records.
        """
        # a minute is a multiple of this
        rows, counts = aggregate_with_durations(events, stored, FIVE_SECONDS_NS)
        for row, durations in zip(rows, counts, strict=True):
            self._add_row(row, to_buckets(durations, FLOORS_NS))

    def _add_row(self, row: AggregateRow, buckets: Buckets) -> None:
        start_ns, source, op, pid, count, kept, sum_ns, low_ns, high_ns, amount = row
        if (source, op) == PAGE_ALLOC_SUMMARY:
            return  # already in the totals of page allocations
        if (pid, source, op) in self._counted:
            count, sum_ns, low_ns, high_ns, buckets = 0, 0, 0, 0, {}
        else:
            early = _entry(self._early, (pid, source, op))
            early.add(count, sum_ns, low_ns, high_ns)
            early.add_buckets(buckets)
        values = (count, kept, sum_ns, low_ns, high_ns, amount)
        self._add_everywhere(start_ns, (source, op, pid), values, buckets)

    def _add_everywhere(
        self, at_ns: int, what: tuple[int, int, int], values: tuple[int, ...], buckets: Buckets
    ) -> None:
        for size_ns, _ in _TABLES:
            self._add(size_ns, (at_ns // size_ns * size_ns, *what), *values)
        source, op, pid = what
        totals = _entry(self.totals, (pid, source, op))
        count, _, sum_ns, low_ns, high_ns, _ = values
        totals.add(count, sum_ns, low_ns, high_ns)
        if is_timed((source, op)) and buckets:
            totals.add_buckets(buckets)
            minute = self._durations.setdefault((at_ns // MINUTE_NS * MINUTE_NS, *what), {})
            for bounds, number in buckets.items():
                minute[bounds] = minute.get(bounds, 0) + number

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
            state, early = self._state((row.pid, row.source, row.op))
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
                self._add_delta(row, now_ns, calls, timed, sum_ns, fresh, early)

    def _add_delta(
        self,
        row: CountedRow,
        now_ns: int,
        calls: int,
        timed: int,
        sum_ns: int,
        fresh: NDArray[np.int64],
        early: Buckets,
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
        new = to_buckets(fresh, row.floors_ns)
        buckets = {
            bounds: count - early.get(bounds, 0)
            for bounds, count in new.items()
            if count > early.get(bounds, 0)
        }
        values = (calls, 0, sum_ns, low_ns, high_ns, amount)
        self._add_everywhere(now_ns, (row.source, row.op, row.pid), values, buckets)

    def _state(self, key: StatKey) -> tuple[_Counted, Buckets]:
        """Return the state of an operation, and the durations of records that its total repeats."""
        state = self._counted.get(key)
        early = OpTotals()
        if state is None:
            early = self._early.pop(key, early)
            state = _Counted(BucketWindow(), early.count, early.count, early.total_ns)
            self._counted[key] = state
            if len(self._counted) > MAX_KEYS:
                self._counted.popitem(last=False)
                self.forgotten += 1
        self._counted.move_to_end(key)
        return state, early.buckets

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
        """Return the rows of ended five seconds, with `is_last` of all.

        Rows of minutes are added up in the file, so that readers need not wait for their end.
        """
        short = self._sums[FIVE_SECONDS_NS]
        limit = now_ns + FIVE_SECONDS_NS if is_last else now_ns // FIVE_SECONDS_NS * FIVE_SECONDS_NS
        ended = [key for key in short if key[0] < limit]
        if not ended:
            return [(upsert_aggregates_sql(table), []) for _, table in _TABLES]
        rows = [(*key, *short.pop(key)) for key in ended]
        minutes = self._sums[MINUTE_NS]
        durations = [
            (self.node, *key, *bounds, count)
            for key, buckets in self._durations.items()
            for bounds, count in buckets.items()
        ]
        batch: Batch = [
            (upsert_aggregates_sql("event_aggregates_5s"), list(rows)),
            (
                upsert_aggregates_sql("event_aggregates"),
                [(*key, *values) for key, values in minutes.items()],
            ),
            (ADD_DURATIONS, list(durations)),
        ]
        minutes.clear()
        self._durations.clear()
        return batch


def slow_of(summary: OpSummary, p50_ns: int) -> SlowCalls:
    """Return the recorded calls that are slow compared with the true median."""
    slow = summary.slow
    if slow is None:
        return SlowCalls(np.empty(0, np.int64), np.empty(0, np.int64))
    is_slow = slow.end_ns - slow.start_ns >= ANOMALY_RATIO * p50_ns
    return SlowCalls(slow.start_ns[is_slow], slow.end_ns[is_slow])


def _entry(known: OrderedDict[StatKey, OpTotals], key: StatKey) -> OpTotals:
    """Return the totals of an operation; the least recently used are dropped first."""
    totals = known.get(key)
    if totals is None:
        totals = known[key] = OpTotals()
        if len(known) > MAX_KEYS:
            known.popitem(last=False)
    known.move_to_end(key)
    return totals
