"""The recorder: everything counted, rows for what matters, chains under one name."""

import numpy as np
import pytest
from tests.support.trace_events import MS, PID, T0, US, events, join

from ingero.agent.ebpf.layout import CgroupWait
from ingero.agent.processes.info import ProcessCache, ProcessInfo
from ingero.agent.recording.aggregator import Aggregator, CountedRow
from ingero.agent.recording.recorder import Recorder, RecorderPolicy, TracedEvents
from ingero.core.chains.evidence import SystemSample
from ingero.core.recording.event_columns import EventColumns
from ingero.core.recording.row_selection import BOOTSTRAP_NS
from ingero.storage.trace.database import EVENT_COLUMNS, Batch

SECOND = 1000 * MS
LATER = T0 // SECOND * SECOND + 2 * BOOTSTRAP_NS
FLOORS = np.array([0, 10 * US, 100 * US, 1 * MS, 10 * MS, 100 * MS], np.int64)


class RowSink:
    """A sink and id source that keeps everything."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self._next = 1

    def submit(self, batch: Batch) -> bool:
        self.batches.append(batch)
        return True

    def next_ids(self, count: int) -> list[str]:
        first, self._next = self._next, self._next + count
        return [f"n:{number}" for number in range(first, first + count)]

    def rows(self, table: str) -> list[tuple[object, ...]]:
        return [
            tuple(row)
            for batch in self.batches
            for sql, rows in batch
            if f"INTO {table} " in sql
            for row in rows
        ]


@pytest.fixture
def sink() -> RowSink:
    return RowSink()


def recorder(sink: RowSink | None, **settings: object) -> Recorder:
    policy = RecorderPolicy(node="n", since_ns=T0 - BOOTSTRAP_NS, cpus=4, **settings)  # type: ignore[arg-type]
    processes = ProcessCache(
        lambda pid: ProcessInfo(pid, 5, f"p{pid}", rank=2, local_rank=0, world_size=4, cgroup_id=77)
    )
    return Recorder(policy, sink, sink, processes=processes)


def traced(
    columns: EventColumns, stack: int = -1, stacks: dict[int, tuple[int, ...]] | None = None
) -> TracedEvents:
    count = len(columns)
    return TracedEvents(
        columns, np.full(count, -1), np.full(count, b"train", "S16"), np.full(count, stack),
        stacks or {}
    )  # fmt: skip


def test_rows_carry_identity_and_are_numbered(sink: RowSink) -> None:
    """F133, F134."""
    one = recorder(sink)
    one.take(traced(events("cudaStreamSync", 2, MS, at=LATER, arg0=0x7F)))
    one.tick(LATER + SECOND, (), None)
    rows = [dict(zip(EVENT_COLUMNS, row, strict=True)) for row in sink.rows("events")]
    assert [row["id"] for row in rows] == ["n:1", "n:2"]
    assert {row["rank"] for row in rows} == {2}
    assert rows[0] == {
        "id": "n:1", "timestamp": LATER, "pid": PID, "tid": PID, "source": 1, "op": 5,
        "duration": MS, "gpu_id": 0,
        "arg0": 0x7F, "arg1": 0, "ret_code": 0, "stack_hash": 0, "node": "n", "rank": 2,
        "local_rank": 0,
        "world_size": 4, "comm": "train", "cgroup_id": 0,
    }  # fmt: skip
    assert sink.rows("process_names") == [(PID, f"p{PID}", LATER + SECOND)]


def test_every_event_is_counted_once_whether_stored_or_not(sink: RowSink) -> None:
    one = recorder(sink)
    for second in range(12):
        one.take(
            traced(events("cudaMemcpyAsync", 10, 20 * US, at=LATER + second * SECOND, arg0=100))
        )
        one.tick(LATER + (second + 1) * SECOND, (), None)
    one.flush(LATER + 12 * SECOND, is_last=True)
    for table in ("event_aggregates", "event_aggregates_5s"):
        rows = sink.rows(table)
        assert sum(int(str(row[4])) for row in rows) == 120
        assert sum(int(str(row[5])) for row in rows) == len(sink.rows("events")) == 12, (
            "one sample per second"
        )
        assert sum(int(str(row[9])) for row in rows) == 120 * 100
    assert {int(str(row[0])) % (5 * SECOND) for row in sink.rows("event_aggregates_5s")} == {0}


def counted(
    calls: int, timed: int, sum_ns: int, buckets: list[int], max_ns: int = 5 * MS
) -> CountedRow:
    return CountedRow(
        PID, 1, 3, calls, timed, sum_ns, max_ns, np.array(buckets, np.int64), FLOORS, False
    )


def test_the_kernel_counts_what_comes_only_as_samples(sink: RowSink) -> None:
    """Records that came before the first total are in it: nothing is counted twice."""
    one = recorder(sink)
    one.take(traced(events("cudaLaunchKernel", 3, 20 * US, at=LATER)))
    one.tick(LATER + SECOND, [counted(1000, 1000, 20_000 * US, [0, 990, 0, 10, 0, 0])], None)
    one.take(traced(events("cudaLaunchKernel", 5, 20 * US, at=LATER + SECOND)))
    one.tick(LATER + 2 * SECOND, [counted(3000, 3000, 60_000 * US, [0, 2970, 0, 30, 0, 0])], None)
    one.flush(LATER + 3 * SECOND, is_last=True)
    assert sum(int(str(row[4])) for row in sink.rows("event_aggregates")) == 3000
    assert sum(int(str(row[6])) for row in sink.rows("event_aggregates")) == 60_000 * US
    [launch] = [op for op in one.summaries() if op.key == (1, 3)]
    assert (launch.count, launch.p50_ns) == (3000, 55 * US)


def test_durations_are_scaled_up_when_only_some_calls_are_timed() -> None:
    aggregator = Aggregator()
    aggregator.add_counted([counted(1000, 10, 10 * 50 * US, [0, 10, 0, 0, 0, 0], 90 * US)], LATER)
    [(_, fives), *_] = aggregator.due(LATER, is_last=True)
    assert [tuple(row)[4:9] for row in fives] == [(1000, 0, 1000 * 50 * US, 10 * US, 90 * US)]


def test_page_allocations_are_bytes_not_time() -> None:
    aggregator = Aggregator()
    row = CountedRow(
        PID,
        3,
        3,
        5,
        5,
        5 * 4096,
        4096,
        np.array([5, 0], np.int64),
        np.array([0, 256], np.int64),
        True,
    )
    aggregator.add_counted([row], LATER)
    aggregator.add_records(
        events("mm_page_alloc_summary", 1, at=LATER, arg0=5, arg1=5 * 4096), np.array([False])
    )
    [(_, fives), *_] = aggregator.due(LATER, is_last=True)
    assert [tuple(row)[1:] for row in fives] == [(3, 3, PID, 5, 0, 0, 0, 0, 5 * 4096)]


def test_a_probe_that_began_anew_is_not_a_negative_count() -> None:
    aggregator = Aggregator()
    aggregator.add_counted([counted(1000, 1000, 900 * MS, [0, 1000, 0, 0, 0, 0])], LATER)
    aggregator.add_counted([counted(10, 10, 1 * MS, [0, 10, 0, 0, 0, 0])], LATER)
    [(_, fives), *_] = aggregator.due(LATER, is_last=True)
    assert [tuple(row)[4] for row in fives] == [1010]


def test_stacks_are_interned_and_rows_per_stack_are_limited(sink: RowSink) -> None:
    one = recorder(sink, stack_samples=3)
    for second in range(8):
        at = LATER + second * SECOND
        one.take(traced(events("cudaStreamSync", 1, MS, at=at), 4, {4: (0x1000, 0x2000)}))
        one.tick(at + SECOND, (), None)
    assert len(set(sink.rows("stack_traces"))) == 1
    assert len(sink.rows("events")) == 3


def storm(at: int) -> EventColumns:
    calls = events("cudaStreamSync", 60, MS, at=at, step=10 * MS)
    slow = events("cudaStreamSync", 6, 60 * MS, at=at + 600 * MS, step=60 * MS)
    return join(
        calls,
        slow,
        events("sched_switch", 6, 50 * MS, at=at + 655 * MS, step=60 * MS, arg1=812, ret=1),
    )


def test_a_chain_is_one_row_and_its_history_counts(sink: RowSink) -> None:
    one = recorder(sink)
    one.take(traced(storm(LATER)))
    for second in range(1, 4):
        one.tick(
            LATER + second * SECOND,
            (),
            SystemSample(LATER + second * SECOND, 20.0, 20.0, 9999, 0, 1.0),
        )
    assert [row[0] for row in sink.rows("causal_chains")] == ["n:tail-medium-cudaStreamSync"]
    assert [row[0] for row in sink.rows("chain_history")] == ["n:tail-medium-cudaStreamSync"] * 3
    assert len(sink.rows("system_snapshots")) == 3
    assert "p812 (pid 812)" in one.chains[0].recommendations[1]


def test_without_a_database_chains_are_still_found() -> None:
    one = recorder(None)
    one.take(traced(storm(LATER)))
    assert [chain.name for chain in one.tick(LATER + SECOND, (), None)] == [
        "tail-medium-cudaStreamSync"
    ]
    assert one.totals.stored == 0


def test_a_burst_does_not_wait_for_the_tick(sink: RowSink) -> None:
    one = recorder(sink, record_all=True)
    one.take(traced(events("cudaLaunchKernel", 1500, US, at=LATER, step=US)))
    one.flush_if_full(LATER)
    assert len(sink.rows("events")) == 1500


def test_a_container_that_waits_longer_than_its_neighbours_is_found_among_all_must_37(
    sink: RowSink,
) -> None:
    """CPU waits of processes that are not traced count too, in windows of ten seconds."""
    one = recorder(sink)
    # it uses the GPU: its container is cgroup 77
    one.take(traced(events("cudaStreamSync", 5, MS, at=LATER)))
    waits = CountedRow(
        PID, 3, 1, 40, 40, 800 * MS, 30 * MS, np.array([0, 0, 0, 0, 40, 0]), FLOORS, True
    )
    calm = [CgroupWait(group, 50 * MS, np.array([0, 0, 0, 50, 0, 0])) for group in (88, 99)]
    few = [CgroupWait(111, MS, np.array([9, 0, 0, 0, 0, 0]))]
    found = []
    for second in range(0, 25):
        one.take_neighbours([*calm, *few], FLOORS)
        now_ns = LATER + second * SECOND
        found.append([chain.name for chain in one.tick(now_ns, [waits], None)])
    assert ["noisy-neighbor-high"] in found
    assert found[-1] == [], "nobody waited in the last window"
    rows = {row[0]: row[2:4] for row in sink.rows("cgroup_schedstat")}
    assert rows == {77: (800 * MS, 40), 88: (50 * MS, 50), 99: (50 * MS, 50), 111: (MS, 9)}


def test_aggregates_leave_with_the_events_also_when_no_row_is_kept_must_33(sink: RowSink) -> None:
    """A flood that keeps the ticker waiting: buckets that are over are handed over all the same."""
    one = recorder(sink)
    for part in range(12):
        one.take(traced(events("cudaLaunchKernel", 1000, US, at=LATER + part * SECOND, step=US)))
        one.flush_if_full(LATER + part * SECOND)
    assert len(sink.rows("events")) < 1000
    assert sum(row[4] for row in sink.rows("event_aggregates_5s")) >= 5000


def test_bursts_between_ticks_do_not_count_a_finding_again(sink: RowSink) -> None:
    one = recorder(sink, record_all=True)
    one.take(traced(storm(LATER)))
    one.tick(LATER + SECOND, (), None)
    for _ in range(3):
        one.take(traced(events("cudaLaunchKernel", 1500, US, at=LATER + SECOND, step=US)))
        one.flush_if_full(LATER + SECOND)
    assert len(sink.rows("chain_history")) == 1


def test_what_is_kept_per_process_and_finding_is_bounded_must_57(sink: RowSink) -> None:
    """Ends that were not recorded, and an endless number of new graph handles."""
    one = recorder(sink, max_active=50, max_chains=20)
    for number in range(200):
        one.take(
            traced(events("graphInstantiate", at=LATER, pid=10_000 + number, arg1=0x1000 + number))
        )
    one.tick(LATER + 40 * SECOND, (), None)
    assert len(sink.rows("causal_chains")) == 200
    assert (len(one._active), len(one._kept_chains)) == (50, 20)
