"""Steps of engines from the probes: graph launches and waits, for pages without steps."""

import sqlite3
from pathlib import Path

from ingero.agent.engines.steps import ProbedSteps
from ingero.contract.events import GRAPH_LAUNCH, STREAM_SYNC_OPS, find_op
from ingero.contract.measurements.engines import EngineKind
from ingero.core.inference.metric_table import Value
from ingero.core.inference.page import EnginePage
from ingero.core.inference.samples import measure
from ingero.storage.trace.aggregates import SHORT_BUCKET_NS, TraceReader
from ingero.storage.trace.database import TraceDb

START_NS = 1_768_478_400_000_000_000
SYNC = min(STREAM_SYNC_OPS)


def record(path: Path, bucket: int, pid: int, launches: int, wait_ns: int) -> None:
    """Set what a bucket holds, as the recorder does while it grows."""
    with sqlite3.connect(path) as connection:
        for (source, op), count, total in ((GRAPH_LAUNCH, launches, 1), (SYNC, launches, wait_ns)):
            connection.execute(
                "INSERT OR REPLACE INTO event_aggregates_5s (bucket, source, op, pid, count, "
                "stored, sum_dur, min_dur, max_dur, sum_arg0) "
                "VALUES (?, ?, ?, ?, ?, 0, ?, 0, 0, 0)",
                (START_NS + bucket * SHORT_BUCKET_NS, source, op, pid, count, total),
            )
    connection.close()


def page_of(values: dict[Value, float] | None = None) -> EnginePage:
    return EnginePage(EngineKind.TRITON, "m", {None: dict(values or {Value.RUNNING: 1.0})})


def completed(steps: ProbedSteps, at_s: float, *workers: int) -> EnginePage:
    page = page_of()
    steps.update(START_NS + int(at_s * 1e9))
    steps.complete(page, workers)
    return page


def test_the_launch_of_a_graph_is_a_step_by_its_own_name() -> None:
    assert find_op("graphLaunch") == GRAPH_LAUNCH


def test_totals_only_grow_while_buckets_fill_settle_and_are_pruned(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    TraceDb(path, "n").close()
    steps = ProbedSteps(TraceReader(path), START_NS)
    seen = []
    for second in range(60):
        bucket = second // 5
        record(path, bucket, 7, 10 * (second % 5 + 1), 10_000_000 * (second % 5 + 1))
        page = completed(steps, second + 0.9, 7)
        seen.append(page.ranks[None][Value.STEPS])
    assert seen == [10.0 * (second + 1) for second in range(60)]


def test_a_page_without_steps_gets_a_heartbeat_and_a_step_time(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    TraceDb(path, "n").close()
    steps = ProbedSteps(TraceReader(path), START_NS)
    record(path, 0, 7, 100, 400_000_000)
    record(path, 0, 8, 90, 999_000_000)  # another worker of the same tensor group
    before = completed(steps, 1, 7, 8).ranks[None]
    record(path, 0, 7, 200, 1_200_000_000)
    after = completed(steps, 2, 7, 8).ranks[None]
    report = measure(before, after, 1.0)
    assert (report.steps_per_s, report.step_s) == (100.0, 0.008)


def test_an_engine_that_counts_its_steps_is_believed(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    TraceDb(path, "n").close()
    steps = ProbedSteps(TraceReader(path), START_NS)
    record(path, 0, 7, 100, 1)
    steps.update(START_NS + 10**9)
    own = {Value.STEPS: 3.0, Value.STEP_COUNT: 3.0, Value.STEP_SUM: 0.5}
    for workers, ranks in (((7,), 1), ((), 1), ((9,), 1), ((7,), 2)):
        page = page_of(own)
        if ranks == 2:
            page.ranks[1] = {}
        steps.complete(page, workers)
        assert page.ranks[None] == own
        assert page.ranks.get(1, {}) == {}, "probes cannot tell data-parallel ranks apart"


def test_a_missing_database_is_no_trouble(tmp_path: Path) -> None:
    steps = ProbedSteps(TraceReader(tmp_path / "none.db"), START_NS)
    assert completed(steps, 1, 7).ranks == {None: {Value.RUNNING: 1.0}}
