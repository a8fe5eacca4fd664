"""Steps that jobs name, beside the collectives that probes saw."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.support.live_collectives import MS, FleetStub, record

from ingero.agent.processes.info import ProcessCache, ProcessInfo
from ingero.agent.push.collective_feed import TableFeed
from ingero.agent.push.collectives import LiveCollectives
from ingero.agent.push.step_feed import FORGET_NS, HOLD_NS, StepFeed
from ingero.contract.collective import CollectiveRecord, CollectiveSource
from ingero.contract.types import Identity
from ingero.storage.trace.database import COLLECTIVE_COLUMNS, TraceDb, collective_row

START_NS = 10**18
PID = 4711


class Clock:
    def __init__(self) -> None:
        self.now_ns = START_NS

    def __call__(self) -> int:
        return self.now_ns


def process(pid: int) -> ProcessInfo:
    return ProcessInfo(
        pid, 1, "python", rank=5 if pid == PID else None, local_rank=1, world_size=16, job="j"
    )


@pytest.fixture
def db(tmp_path: Path) -> TraceDb:
    return TraceDb(tmp_path / "t.db", "n")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def feed(db: TraceDb, clock: Clock) -> StepFeed:
    found = StepFeed(TableFeed(db.path, with_plugin=False), db.path, ProcessCache(process), clock)
    assert found.poll() == []
    return found


def name_step(db: TraceDb, step: object, at_ms: int, *, pid: int = PID, to_ms: int = 0) -> None:
    span = (START_NS + at_ms * MS, START_NS + to_ms * MS) if to_ms else (0, 0)
    db.connection.execute(
        "INSERT INTO annotations (timestamp, labels, pid, span_start, span_end, peer_pid) VALUES "
        "(?, ?, ?, ?, ?, ?)",
        (START_NS + at_ms * MS, json.dumps({"step": step}), 0, *span, pid),
    )
    db.connection.commit()


def see_collective(
    db: TraceDb, seq: int, from_ms: int, to_ms: int, pid: int = PID
) -> CollectiveRecord:
    seen = replace(
        record(seq, 5, CollectiveSource.EBPF),
        start_ns=START_NS + from_ms * MS, end_ns=START_NS + to_ms * MS, gpu_duration_ns=None,
    )  # fmt: skip
    sql = (
        f"INSERT INTO collectives (pid, {', '.join(COLLECTIVE_COLUMNS)}) VALUES "
        f"(?{', ?' * len(COLLECTIVE_COLUMNS)})"
    )
    db.connection.execute(sql, (pid, *collective_row(seen)))
    db.connection.commit()
    return seen


def test_own_time_of_named_steps_is_what_lies_outside_collectives(
    db: TraceDb, feed: StepFeed, clock: Clock
) -> None:
    """F069: without the plugin, the job's own step numbers and the collectives that probes saw."""
    for step in range(4):
        name_step(db, str(100 + step), 1000 * step)
        see_collective(db, step, 1000 * step + 700, 1000 * step + 950)
    assert feed.poll() == [], "what probes saw waits a round for its end"
    clock.now_ns += 4000 * MS + HOLD_NS
    (batch,) = feed.poll()
    assert (batch.source, batch.rank, batch.job, len(batch.collectives)) == (
        CollectiveSource.ANNOTATION,
        5,
        "j",
        4,
    )
    assert batch.steps is not None
    assert batch.steps.step.tolist() == [100, 101, 102]
    assert np.allclose(batch.steps.own_s, 0.75)


def test_a_rank_without_collectives_is_known_by_its_environment(
    db: TraceDb, feed: StepFeed, clock: Clock
) -> None:
    for step in range(3):
        name_step(db, step, 1000 * step, to_ms=1000 * step + 800)
    clock.now_ns += 9000 * MS
    (batch,) = feed.poll()
    assert (batch.rank, batch.local_rank, batch.world_size) == (5, 1, 16)
    assert batch.steps is not None
    assert np.allclose(batch.steps.own_s, 0.8)


def test_a_missing_rank_is_reported_and_a_missing_number_is_ignored(
    db: TraceDb, feed: StepFeed, clock: Clock
) -> None:
    for step in range(3):
        name_step(db, step, 1000 * step, pid=1)
        name_step(db, "warm-up", 1000 * step)
    clock.now_ns += 9000 * MS
    assert feed.poll() == []
    assert feed.problem == "process 1 names steps but has no rank: set RANK in its environment"


def test_a_job_that_stops_naming_steps_is_measured_by_its_collectives_again(
    db: TraceDb, feed: StepFeed, clock: Clock
) -> None:
    name_step(db, 1, 0)
    feed.poll()
    clock.now_ns += FORGET_NS + 1
    see_collective(db, 1, 0, 5)
    feed.poll()
    (batch,) = feed.poll()
    assert batch.source is CollectiveSource.EBPF


def test_named_steps_are_sent_unless_a_ring_measures_the_same_rank(
    db: TraceDb, feed: StepFeed, clock: Clock
) -> None:
    fleet = FleetStub()
    live = LiveCollectives([feed], fleet, Identity(node="n"), lambda _: None)
    for step in range(4):
        name_step(db, step, 1000 * step)
    clock.now_ns += 9000 * MS
    (report,) = live.measure(0.0)
    assert [(point.step, round(point.own_ms), str(point.source)) for point in report.own_times] == [
        (0, 1000, "annotation"),
        (1, 1000, "annotation"),
        (2, 1000, "annotation"),
    ]
    assert (report.identity.rank, report.identity.world_size) == (5, 16)
    for rank in live.ranks.values():
        rank.is_timed = True  # as by a ring of the plugin
    for step in range(4, 8):
        name_step(db, step, 1000 * step)
    clock.now_ns += 9000 * MS
    assert live.measure(1.0) == []
