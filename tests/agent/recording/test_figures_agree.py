"""Counts and percentiles of an operation are the same wherever they are shown."""

import asyncio
import json
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient
from tests.support.asking import data_of
from tests.support.trace_events import MS, T0, US, events

from ingero.agent.api.routes import NodeApi
from ingero.agent.api.tools.context import AgentContext
from ingero.agent.processes.info import ProcessCache, ProcessInfo
from ingero.agent.recording.aggregator import CountedRow
from ingero.agent.recording.app import TraceView
from ingero.agent.recording.recorder import Recorder, RecorderPolicy, TracedEvents
from ingero.cli.commands.explain import command as explain
from ingero.cli.show.trace import render_view
from ingero.contract.events import op_name
from ingero.core.durations import readable_duration
from ingero.core.recording.event_columns import EventColumns, columns_from_rows
from ingero.core.recording.histogram import BUCKETS, FLOORS_NS, bucket_durations
from ingero.core.recording.latency import OpSummary
from ingero.core.recording.operations import bucket_percentiles, to_buckets
from ingero.core.recording.row_selection import BOOTSTRAP_NS
from ingero.storage.merge.merge import merge
from ingero.storage.sqlite_guard import run_query
from ingero.storage.trace.database import Batch, TraceDb
from ingero.storage.trace.node_view import NodeView

SECOND = 1000 * MS
BEGIN = T0 // (60 * SECOND) * 60 * SECOND + 2 * BOOTSTRAP_NS
LAUNCH, SYNC = (1, 3), (1, 5)
PIDS = (1000, 1001)
Figures = dict[tuple[int, str], tuple[int, float, float]]  # (pid, op) → count, p50, p99 in ns
DURATIONS = st.lists(st.integers(300, 40 * MS), min_size=1, max_size=60)


class _Sink:
    def __init__(self, db: TraceDb) -> None:
        self._db = db
        self.next_ids = db.next_ids

    def submit(self, batch: Batch) -> bool:
        return self._db.write(batch)


def _traced(columns: EventColumns) -> TracedEvents:
    count = len(columns)
    return TracedEvents(
        columns, np.full(count, -1), np.full(count, b"train", "S16"), np.full(count, -1), {}
    )


def _counted(pid: int, durations: np.ndarray[Any, np.dtype[np.int64]]) -> CountedRow:
    buckets = np.bincount(bucket_durations(durations), minlength=BUCKETS)
    return CountedRow(
        pid, *LAUNCH, len(durations), len(durations), int(durations.sum()), int(durations.max()),
        buckets, FLOORS_NS, False,
    )  # fmt: skip


def _record(path: Path, launches: list[int], syncs: list[int]) -> Figures:
    """Record a job whose launches the kernel counts and whose rows are only a sample."""
    with TraceDb(path, "n") as db:
        sink = _Sink(db)
        one = Recorder(
            RecorderPolicy(node="n", since_ns=BEGIN - 2 * BOOTSTRAP_NS, cpus=4), sink, sink,
            processes=ProcessCache(lambda pid: ProcessInfo(pid, 5, f"p{pid}")),
        )  # fmt: skip
        for second in range(12):
            at = BEGIN + second * SECOND
            for pid in PIDS:
                if second % 3 == 0:  # one record of many calls, the slowest
                    one.take(_traced(events("cudaLaunchKernel", 1, max(launches), at=at, pid=pid)))
                rows = [
                    (at + number, pid, pid, *SYNC, duration + pid, 0, 0, 0, 0)
                    for number, duration in enumerate(syncs)
                ]
                one.take(_traced(columns_from_rows(rows)))
            seen = np.tile(np.array([*launches, max(launches)], np.int64), second + 1)
            one.tick(at + SECOND, [_counted(pid, seen) for pid in PIDS], None)
        one.flush(BEGIN + 13 * SECOND, is_last=True)
        operations = one.operations()
        assert _of_trace(operations) == {
            (op.pid, op_name(*op.key)): (
                str(op.count),
                *map(readable_duration, (op.p50_ns, op.p99_ns)),
            )
            for op in operations
        }
        return {(op.pid, op_name(*op.key)): (op.count, op.p50_ns, op.p99_ns) for op in operations}


def _of_trace(operations: list[OpSummary]) -> dict[tuple[int, str], tuple[str, ...]]:
    """Return what the screen of `ingero trace` shows: count, p50 and p99."""
    view = TraceView(
        wall_s=12.0, sample=None, operations=operations, chains=[], processes={}, events=1,
        stored=1, collectives=0, anomalies=0, losses={}, dropped_rows=0, failed_rows=0, state=None,
        notes=(),
    )  # fmt: skip
    lines = [line for line in render_view(view).splitlines() if line.startswith("  cuda")]
    rows = [re.split(r" {2,}", line.strip()) for line in lines]
    return {(int(pid), op): (count, p50, p99) for op, pid, count, p50, _, p99, *_ in rows}


def _of_explain(path: Path) -> Figures:
    done = CliRunner().invoke(explain, ["-d", str(path), "--per-process", "--json"])
    return {
        (row["pid"], row["op"]): (row["count"], row["p50_ns"], row["p99_ns"])
        for row in json.loads(done.output)
    }


def _of_sql(path: Path) -> Figures:
    found = run_query(path, "SELECT pid, op, count, p50_ns, p99_ns FROM operations").rows
    return {(pid, op): tuple(rest) for pid, op, *rest in found}  # type: ignore[misc]


def _of_tool(path: Path) -> Figures:
    answer = asyncio.run(data_of(AgentContext(db=path), "get_trace_stats"))
    return {
        (row["pid"], row["operation"]): (
            row["count"], round(row["p50_us"] * 1e3), round(row["p99_us"] * 1e3),
        )
        for row in answer["ops"]
    }  # fmt: skip


def _of_page(path: Path, pid: int) -> dict[str, tuple[int, int, int]]:
    api = TestClient(NodeApi(view=NodeView(path)).app(), base_url="http://localhost")
    ops = api.get("/api/v1/ops", params={"pid": pid}).json()["ops"]
    return {op["operation"]: (op["count"], op.get("p50_us", 0), op.get("p99_us", 0)) for op in ops}


@settings(max_examples=8, deadline=None)
@given(launches=DURATIONS, syncs=DURATIONS)
def test_every_surface_shows_the_same_figures_whatever_was_sampled(
    launches: list[int], syncs: list[int]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.db"
        shown = _record(path, launches, syncs)
        assert shown[PIDS[0], "cudaLaunchKernel"][0] == 12 * (len(launches) + 1)
        assert _of_explain(path) == _of_sql(path) == _of_tool(path) == shown
        for pid in PIDS:
            wanted = {
                op: (count, int(p50) // 1000, int(p99) // 1000)
                for (of, op), (count, p50, p99) in shown.items()
                if of == pid
            }
            assert _of_page(path, pid) == wanted
        merged = Path(folder) / "merged.db"
        merge([path], merged)
        assert _of_sql(merged) == shown


@given(
    durations=st.lists(st.integers(0, 10**11), min_size=1, max_size=300),
    share=st.sampled_from([0, 2]),
)
def test_a_percentile_is_within_a_bucket_of_the_true_one(durations: list[int], share: int) -> None:
    values = np.sort(np.array(durations, np.int64))
    counts = np.bincount(bucket_durations(values), minlength=BUCKETS)
    found = bucket_percentiles(to_buckets(counts, FLOORS_NS), int(values[0]), int(values[-1]))
    assert found is not None
    true = int(values[max(int(np.ceil((0.5, 0, 0.99)[share] * len(values))) - 1, 0)])
    assert abs(found[share] - true) <= max(0.25 * true, 256)
    assert bucket_percentiles({}, 0, 0) is None


def test_rows_that_favour_slow_calls_do_not_move_the_median(tmp_path: Path) -> None:
    """Without counts of every call, the kept rows would put p50 at the slowest call."""
    shown = _record(tmp_path / "t.db", [90 * US] * 99 + [3 * MS], [MS])
    count, p50, _ = shown[PIDS[0], "cudaLaunchKernel"]
    assert count == 12 * 101
    assert abs(p50 - 90 * US) < 20 * US
