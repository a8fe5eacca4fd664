"""Exports opened by Perfetto's own trace processor show what the database holds."""

import shutil
import sqlite3
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from tests.support.perfetto_oracle import ask_perfetto
from tests.support.shared_data import shared

from ingero.cli.commands.export import command
from ingero.cli.dispatch import run
from ingero.contract.events import op_name
from ingero.contract.timeline.json_writer import JsonTimeline
from ingero.contract.timeline.model import SliceChunk, TimelineChain, TimelineNode
from ingero.contract.timeline.packet_writer import PacketTimeline
from ingero.storage.trace.reading import connect_readonly

pytestmark = pytest.mark.e2e
NAMES = "SELECT name, count(*) FROM slice GROUP BY name"
PROCESSES = "SELECT name FROM process WHERE name IS NOT NULL ORDER BY pid"
TRACKS = (
    "SELECT thread.name, process.name, count(*) FROM slice JOIN track thread "
    "ON thread.id = slice.track_id JOIN track process ON process.id = thread.parent_id "
    "WHERE thread.name LIKE 'thread %' GROUP BY 1, 2"
)
ARROWS = (
    "SELECT a.name, b.name FROM flow JOIN slice a ON a.id = slice_out JOIN slice b "
    "ON b.id = slice_in"
)
COUNTERS = (
    "SELECT t.name, count(*), min(value), max(value) FROM counter JOIN counter_track t "
    "ON t.id = track_id GROUP BY 1"
)
CHAINS_WITH_EVENTS = (
    "SELECT severity, summary FROM causal_chains c WHERE EXISTS (SELECT 1 FROM events e "
    "WHERE e.node = c.node AND e.timestamp BETWEEN c.detected_at - 60000000000 AND c.detected_at)"
)


def exported(db: Path, folder: Path, kind: str) -> bytes:
    output = folder / "out"
    result = CliRunner().invoke(
        command, ["--format", kind, "-d", str(db), "-o", str(output)], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    return output.read_bytes()


def rows(db: Path, sql: str) -> list[tuple[object, ...]]:
    connection = connect_readonly(db)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def names_in(db: Path) -> dict[str, int]:
    """Return how often each name must appear: events, collectives, chains."""
    found = Counter(
        op_name(int(str(source)), int(str(op)))
        for source, op in rows(db, "SELECT source, op FROM events")
    )
    if rows(db, "SELECT 1 FROM sqlite_master WHERE name = 'collectives'"):
        found.update(f"nccl{op}" for (op,) in rows(db, "SELECT op FROM collectives"))
    found.update(
        f"{level}: {text}"
        for level, text in rows(db, "SELECT severity, summary FROM causal_chains")
    )
    return dict(found)


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("samples")
    assert run(["demo", "--write-samples", str(folder)]) == 0
    return folder


@pytest.mark.parametrize("kind", ["perfetto", "perfetto-proto"])
def test_f146_reference_samples_open_in_perfetto(kind: str, tmp_path: Path) -> None:
    db = shared("data/ingero/sample-cluster.db")
    names, processes, arrows = ask_perfetto(
        exported(db, tmp_path, kind), [NAMES, PROCESSES, ARROWS]
    )
    assert dict(names) == names_in(db)
    assert [name for (name,) in processes] == ["gpu-node-01", "gpu-node-02", "gpu-node-03"]
    chains = {f"{severity}: {summary}" for severity, summary in rows(db, CHAINS_WITH_EVENTS)}
    assert len(chains) == 4
    assert {end for _, end in arrows} == (chains if kind == "perfetto-proto" else set())


@pytest.mark.parametrize("kind", ["perfetto", "perfetto-proto"])
def test_f147_own_samples_have_a_process_per_node_and_rank(
    kind: str, samples: Path, tmp_path: Path
) -> None:
    db = samples / "sample-cluster.db"
    names, processes = ask_perfetto(exported(db, tmp_path, kind), [NAMES, PROCESSES])
    assert dict(names) == names_in(db)
    assert [name for (name,) in processes] == [f"gpu-node-0{i + 1} (rank {i})" for i in range(3)]


def test_native_file_of_one_node_has_threads_arrows_and_counters(
    samples: Path, tmp_path: Path
) -> None:
    db = samples / "sample-gpu-node-01.db"
    trace = exported(db, tmp_path, "perfetto-proto")
    tracks, arrows, counters, extent = ask_perfetto(
        trace, [TRACKS, ARROWS, COUNTERS, "SELECT min(ts), sum(dur) FROM slice"]
    )
    by_process = Counter[object]()
    for _, process, count in tracks:
        by_process[process] += count
    stored = (
        "SELECT pid, count(*) FROM (SELECT pid FROM events UNION ALL SELECT pid FROM collectives) "
        "GROUP BY 1"
    )
    names = {
        812: "rsync 812",
        1880: "python3 1880 (rank 0)",
        1890: "evaluate 1890",
        1900: "upload 1900",
        1910: "tokenize 1910",
    }
    assert by_process == {names[int(str(pid))]: count for pid, count in rows(db, stored)}
    causes = {cause for cause, end in arrows if end.startswith("HIGH: cuLaunchKernel")}
    assert causes == {"sched_switch", "block_write", "cuLaunchKernel"}
    ((measured, lowest, highest),) = rows(
        db, "SELECT count(*), min(cpu_pct), max(cpu_pct) FROM system_snapshots"
    )
    assert ("CPU busy", measured, lowest, highest) in counters
    assert {name for name, *_ in counters} == {
        "CPU busy",
        "memory used",
        "load average",
        "GPU calls",
        "health score",
    }
    whole = (
        "SELECT min(t), sum(d) FROM (SELECT timestamp AS t, duration AS d FROM events "
        "UNION ALL SELECT start_ns, end_ns - start_ns FROM collectives)"
    )
    assert extent == rows(db, whole), "to the nanosecond"


def test_the_wait_for_a_cpu_lies_within_the_call_that_it_delays(
    samples: Path, tmp_path: Path
) -> None:
    """The stored time of a context switch is its end."""
    db = tmp_path / "delayed.db"
    shutil.copy(samples / "sample-gpu-node-01.db", db)
    with sqlite3.connect(db) as connection:  # a launch around the first wait
        connection.execute(
            "INSERT INTO events (timestamp, pid, tid, source, op, duration) "
            "SELECT timestamp - duration - 1000, pid, tid, 4, 1, duration + 2000 FROM events "
            "WHERE source = 3 AND op = 1 ORDER BY timestamp LIMIT 1"
        )
    connection.close()
    trace = exported(db, tmp_path, "perfetto-proto")
    within = (
        "SELECT count(*), sum(EXISTS (SELECT 1 FROM slice call "
        "WHERE call.name IN ('cuLaunchKernel', 'cuMemAlloc') AND call.ts <= wait.ts "
        "AND wait.ts + wait.dur <= call.ts + call.dur)) FROM slice wait "
        "WHERE wait.name = 'sched_switch'"
    )
    # the others make the rank late between two calls
    assert ask_perfetto(trace, [within])[0] == [(14, 1)]


def test_every_node_of_a_merged_file_has_its_counters_and_arrows(
    samples: Path, tmp_path: Path
) -> None:
    counters = (
        "SELECT p.name, t.name, count(*), max(value) FROM counter JOIN process_counter_track t "
        "ON t.id = track_id JOIN process p USING (upid) GROUP BY 1, 2"
    )
    ends = (
        "SELECT DISTINCT p.name FROM flow JOIN slice ON slice.id = slice_in "
        "JOIN process_track t ON t.id = slice.track_id JOIN process p USING (upid) ORDER BY 1"
    )
    merged = exported(samples / "sample-cluster.db", tmp_path, "perfetto-proto")
    measured, chains = ask_perfetto(merged, [counters, ends])
    nodes = [f"gpu-node-0{i + 1} (rank {i})" for i in range(3)]
    assert chains == [(node,) for node in nodes]
    for number, node in enumerate(nodes, 1):
        alone = exported(samples / f"sample-gpu-node-0{number}.db", tmp_path, "perfetto-proto")
        assert [row for row in measured if row[0] == node] == ask_perfetto(alone, [counters])[0]
        assert len([row for row in measured if row[0] == node]) == 5


def test_hostile_names_and_overlapping_calls_survive() -> None:
    """Quotes, control characters, lone surrogates and bytes of packets are only names."""
    hostile = 'a"b\\\n\x00</script>\ud800 \u2028' + "é" * 300
    nodes = [TimelineNode(hostile, 0), TimelineNode("b")]
    chain = TimelineChain(
        node=0, at_ns=500, severity="HIGH", summary=hostile, root_cause=hostile, rows=[0]
    )
    starts = np.array([0, 10, 20, 20, 400], np.int64)
    lengths = np.array([1_000_000, 2_000_000, 0, 5000, 2**40], np.int64)
    ones = np.ones(5, np.int64)
    chunk = SliceChunk(
        starts, lengths, ones * 200, ones * 77, ones, ones, ones, ones, ones - 1, np.arange(5)
    )
    for writer in (JsonTimeline(nodes), PacketTimeline(nodes)):
        if isinstance(writer, PacketTimeline):
            writer.expect_chains([chain])
        trace = writer.begin() + writer.slices(chunk) + writer.chains([chain]) + writer.end()
        ((count,),), ((named,),) = ask_perfetto(
            trace,
            ["SELECT count(*) FROM slice", "SELECT count(*) FROM process WHERE name LIKE 'a\"b%'"],
        )
        assert (count, named) == (6, 1)


def test_the_judge_refuses_a_broken_trace() -> None:
    with pytest.raises(AssertionError):
        ask_perfetto(
            b'[{"name":"a","ph":"X","ts":1,"dur":2,"pid":1,"tid":1},{"name":nope}]', ["SELECT 1"]
        )
