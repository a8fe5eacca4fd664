"""Signals from the trace database, /proc and GPU memory; what is absent is not zero."""

import sqlite3
from pathlib import Path

import pytest

from ingero.agent.host import proc
from ingero.agent.host.gpu import GpuMemory
from ingero.agent.push.cgroup_counters import MAX_CGROUPS, CgroupCounters
from ingero.agent.push.signals import ReplaySource, StubSource, TraceSource
from ingero.contract.push.encode import CgroupTotals
from ingero.contract.straggler import Straggle
from ingero.core.health.observation import GpuInfo
from ingero.core.health.score import Signals
from ingero.core.health.throttle import ThrottleReason
from ingero.errors import MalformedInput, StoreError, Unavailable
from ingero.storage.trace.aggregates import TraceReader
from ingero.storage.trace.database import TraceDb

NOW_NS = 1_794_709_940 * 10**9  # on a five-second edge
MINUTE_NS = 60 * 10**9


class NoGpu:
    def memory(self) -> GpuMemory:
        raise Unavailable("no GPU here")

    def info(self) -> GpuInfo:
        raise Unavailable("no GPU here")


class TwoGpus:
    def memory(self) -> GpuMemory:
        return GpuMemory(12288, 32768)

    def info(self) -> GpuInfo:
        return GpuInfo("NVIDIA H200", 2)

    def throttle(self) -> dict[str, int]:
        return {"GPU-a": 0x40}


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "ingero.db"
    TraceDb(path, "n1").close()
    return path


def put(path: Path, table: str, *rows: tuple[int, ...]) -> None:
    """Rows of (bucket, source, op, pid, count, sum_dur, sum_arg0)."""
    with sqlite3.connect(path) as connection:
        connection.executemany(
            f"INSERT INTO {table} (bucket, source, op, pid, count, stored, sum_dur, min_dur, "
            f"max_dur, sum_arg0) "
            "VALUES (?, ?, ?, ?, ?, 0, ?, 0, 0, ?)",
            rows,
        )
    connection.close()


def source(path: Path, gpus: object = None, **options: object) -> TraceSource:
    settings = {
        "window_s": 60.0,
        "num_gpus": 0,
        "gpus": gpus or NoGpu(),
        "cgroup_of": lambda pid: f"c{pid}",
    }
    return TraceSource(path, **(settings | {"now_ns": NOW_NS - MINUTE_NS} | options))  # type: ignore[arg-type] # a test's own dictionary


def test_launches_and_throughput_vector_72(database: Path) -> None:
    put(database, "event_aggregates_5s", (NOW_NS - 5 * 10**9, 1, 3, 7, 600, 0, 0))
    look = source(database).read(NOW_NS)
    assert (look.launches, look.signals.throughput) == (600, 10.0)


def test_bug_only_launches_count_and_both_ways_to_launch_do(database: Path) -> None:
    """The reference matched the op number alone.

    Page allocations and copies counted, driver launches did not.
    """
    bucket = NOW_NS - 5 * 10**9
    put(
        database,
        "event_aggregates_5s",
        (bucket, 1, 3, 7, 100, 10, 0),  # cudaLaunchKernel
        (bucket, 4, 1, 7, 20, 10, 0),  # cuLaunchKernel
        (bucket, 3, 3, 7, 5000, 0, 0),  # page allocations
        (bucket, 4, 3, 7, 300, 10, 0),  # cuMemcpyAsync
        (bucket, 5, 3, 7, 40, 10**12, 0),  # block discard
        (bucket, 3, 1, 7, 40, 10**12, 0),  # off-CPU time
    )
    look = source(database).read(NOW_NS)
    assert look.launches == 120
    assert look.signals.compute == pytest.approx(30 / 60e9)


@pytest.mark.parametrize(
    ("summed_ns", "gpus", "compute"), [(120 * 10**9, 1, 1.0), (-5, 1, 0.0), (30 * 10**9, 2, 0.25)]
)
def test_compute_is_a_share_vector_73(
    database: Path, summed_ns: int, gpus: int, compute: float
) -> None:
    put(database, "event_aggregates_5s", (NOW_NS - 5 * 10**9, 1, 5, 7, 1, summed_ns, 0))
    assert source(database, num_gpus=gpus).read(NOW_NS).signals.compute == pytest.approx(compute)


@pytest.mark.parametrize(
    ("window_s", "launches"), [(30.0, 600), (60.0, 600), (61.0, 100), (300.0, 100)]
)
def test_short_windows_read_the_fine_table_vector_74(
    database: Path, window_s: float, launches: int
) -> None:
    bucket = NOW_NS - 20 * 10**9
    put(database, "event_aggregates_5s", (bucket, 1, 3, 7, 600, 0, 0))
    put(database, "event_aggregates", (bucket, 1, 3, 7, 100, 0, 0))
    assert source(database, window_s=window_s).read(NOW_NS).launches == launches


def test_buckets_outside_the_window_do_not_count(database: Path) -> None:
    put(
        database,
        "event_aggregates_5s",
        (NOW_NS - 65 * 10**9, 1, 3, 7, 1, 0, 0),
        (NOW_NS - 60 * 10**9, 1, 3, 7, 10, 0, 0),
        (NOW_NS, 1, 3, 7, 100, 0, 0),
        (NOW_NS + 5 * 10**9, 1, 3, 7, 1000, 0, 0),
    )
    assert source(database).read(NOW_NS).launches == 110


def test_a_missing_database_means_idle_and_one_that_vanishes_is_a_failed_read(
    tmp_path: Path,
) -> None:
    path = tmp_path / "later.db"
    reader = source(path)
    waiting = reader.read(NOW_NS)
    assert (waiting.launches, waiting.signals.throughput, waiting.signals.compute) == (
        0,
        None,
        None,
    )
    TraceDb(path, "n1").close()
    put(path, "event_aggregates_5s", (NOW_NS, 1, 3, 7, 60, 0, 0))
    assert reader.read(NOW_NS).launches == 60
    path.unlink()
    gone = reader.read(NOW_NS)
    assert gone.launches is None
    assert "later.db" in gone.problem
    reader.close()


def test_a_recorder_that_stopped_is_a_failed_read_not_an_idle_node(database: Path) -> None:
    with sqlite3.connect(database) as connection:
        connection.execute("INSERT INTO losses VALUES (1, 'calls', 0, ?)", (NOW_NS,))
    connection.close()
    look = source(database)
    assert look.read(NOW_NS + 10 * 10**9).launches == 0, "it wrote a moment ago: there is no work"
    ended = look.read(NOW_NS + 60 * 10**9)
    assert ended.launches is None
    assert "is `ingero trace` running?" in ended.problem


def test_a_foreign_file_is_a_failed_read(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    path.write_text("not a database, but long enough to look like one" * 50)
    assert source(path).read(NOW_NS).launches is None


def test_the_reader_follows_a_rolled_over_file(database: Path) -> None:
    put(database, "event_aggregates_5s", (NOW_NS, 1, 3, 7, 1, 0, 0))
    reader = TraceReader(database)
    assert reader.window(NOW_NS, 60.0).launches == 1
    database.rename(database.with_suffix(".old"))
    TraceDb(database, "n1").close()
    assert reader.window(NOW_NS, 60.0).launches == 0
    reader.close()
    with pytest.raises(StoreError):
        TraceReader(database / "none").window(NOW_NS, 60.0)


def test_reading_while_the_tracer_writes_f014(database: Path) -> None:
    reader = source(database)
    with TraceDb(database, "n1"):
        for count in range(1, 6):
            put(database, "event_aggregates_5s", (NOW_NS - count * 5 * 10**9, 1, 3, 7, 1, 0, 0))
            assert reader.read(NOW_NS).launches == count
    reader.close()


def test_memory_is_the_gpus_and_only_without_one_the_hosts(database: Path) -> None:
    assert source(database, TwoGpus()).read(NOW_NS).signals.memory == 0.625
    host = source(database).read(NOW_NS).signals.memory
    assert host == pytest.approx(proc.host_memory_headroom(), abs=0.2)
    assert source(database, TwoGpus()).read(NOW_NS).gpu == GpuInfo("NVIDIA H200", 2)


def test_counters_add_every_bucket_once_bug_overcount(database: Path) -> None:
    """The reference added a whole 60 s window on every push: six times too much."""
    counters = CgroupCounters(TraceReader(database), lambda pid: "same", NOW_NS)
    put(
        database,
        "event_aggregates_5s",
        (NOW_NS - 5 * 10**9, 1, 3, 100, 999, 0, 0),  # before we came
        (NOW_NS, 1, 3, 100, 50, 0, 0),
        (NOW_NS, 4, 1, 101, 25, 0, 0),
        (NOW_NS, 3, 1, 101, 3, 4_000_000, 0),
        (NOW_NS, 1, 7, 101, 3, 0, 700),
    )
    # vector 79
    expected = (
        CgroupTotals(
            cgroup_hash="same", launches=75, stall_ns=4_000_000, memcpy_bytes={"unknown": 700}
        ),
    )
    assert counters.read(NOW_NS + 9 * 10**9) == ()  # the bucket may still grow
    for later_s in (15, 16, 40, 60):
        assert counters.read(NOW_NS + later_s * 10**9) == expected
    put(database, "event_aggregates_5s", (NOW_NS + 60 * 10**9, 1, 3, 100, 5, 0, 0))
    assert counters.read(NOW_NS + 90 * 10**9)[0].launches == 80


def test_a_process_that_lost_its_cpu_is_found_in_the_buckets(database: Path) -> None:
    trace, second_ns = source(database, now_ns=NOW_NS), 10**9
    for bucket in range(6):
        launches, switches = (100, 200) if bucket == 5 else (1000, 3)
        at_ns = NOW_NS + bucket * 5 * second_ns
        put(
            database,
            "event_aggregates_5s",
            (at_ns, 1, 3, 42, launches, 0, 0),
            (at_ns, 3, 1, 42, switches, 9, 0),
        )
    with sqlite3.connect(database) as connection:
        connection.executemany(
            "INSERT INTO events (id, timestamp, pid, tid, source, op, duration, arg0, arg1) "
            "VALUES (?, ?, 42, 42, 3, 1, ?, 0, ?)",
            [
                (f"n1:{other}", NOW_NS + 26 * second_ns, took, other)
                for other, took in ((7, 10), (9, 90), (42, 99), (0, 99))
            ],
        )
    connection.close()
    found = [
        trace.read(NOW_NS + later * second_ns).straggles for later in (15, 20, 25, 30, 35, 40, 41)
    ]
    assert found[:5] == [()] * 5
    assert found[5] == (
        Straggle(
            pid=42, throughput_drop_pct=90.0, sched_switch_count=200, preempting_pids=[9, 7],
            timestamp_ns=NOW_NS + 30 * second_ns, sustained=False,
        ),
    )  # fmt: skip
    assert found[6] == ()  # each bucket speaks once


def test_copies_keep_the_direction_where_it_was_recorded(database: Path) -> None:
    counters = CgroupCounters(TraceReader(database), lambda pid: "c", NOW_NS)
    put(
        database,
        "event_aggregates_5s",
        (NOW_NS, 1, 4, 100, 10, 0, 1000),
        (NOW_NS, 1, 9, 100, 1, 0, 50),
    )
    with sqlite3.connect(database) as connection:
        connection.executemany(
            "INSERT INTO events (id, timestamp, pid, tid, source, op, duration, arg0, arg1) "
            "VALUES (?, ?, 100, 1, 1, 4, 0, ?, ?)",
            [("n1:1", NOW_NS, 300, 1), ("n1:2", NOW_NS, 200, 2), ("n1:3", NOW_NS, 100, 4)],
        )
    connection.close()
    [totals] = counters.read(NOW_NS + 20 * 10**9)
    assert totals.memcpy_bytes == {"h2d": 300, "d2h": 200, "unknown": 100 + 1050 - 600}


def test_counters_are_bounded(database: Path) -> None:
    counters = CgroupCounters(TraceReader(database), lambda pid: f"c{pid}", NOW_NS)
    put(
        database,
        "event_aggregates_5s",
        *[(NOW_NS, 1, 3, pid, 1, 0, 0) for pid in range(MAX_CGROUPS + 10)],
    )
    assert len(counters.read(NOW_NS + 20 * 10**9)) == MAX_CGROUPS
    assert counters.evicted == 10


def test_evicted_cgroups_are_counted_in_every_observation(database: Path) -> None:
    put(
        database,
        "event_aggregates_5s",
        *[(NOW_NS, 1, 3, pid, 1, 0, 0) for pid in range(MAX_CGROUPS + 10)],
    )
    looking = source(database, cgroup_of=lambda pid: f"c{pid}", now_ns=NOW_NS)
    assert looking.read(NOW_NS + 20 * 10**9).evicted_cgroups == 10


def test_throttle_reasons_are_part_of_the_observation(database: Path) -> None:
    assert source(database, TwoGpus()).read(NOW_NS).throttle == {
        "GPU-a": {ThrottleReason.THERMAL, ThrottleReason.HW}
    }
    assert source(database).read(NOW_NS).throttle == {}


def test_stub_is_the_published_constants() -> None:
    look = StubSource().read(NOW_NS)
    assert (look.launches, look.signals) == (10, Signals(100.0, 0.9, 0.9, 0.9))


def test_replay_plays_each_line_once(tmp_path: Path) -> None:
    path = tmp_path / "rec.jsonl"
    path.write_text('{"launches": 5, "throughput": 1.5, "cpu": 0.5}\n\n{}\n')
    replay = ReplaySource(path)
    first, second, third = (replay.read(NOW_NS) for _ in range(3))
    assert first is not None
    assert (first.launches, first.signals) == (5, Signals(1.5, None, None, 0.5))
    assert second is not None
    assert second.launches is None
    assert third is None


@pytest.mark.parametrize("text", ["", "not json", '{"launches": "5"}', '{"lunches": 5}', "[]"])
def test_replay_errors_name_the_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rec.jsonl"
    path.write_text(text)
    with pytest.raises(MalformedInput, match=r"rec\.jsonl"):
        ReplaySource(path)
