"""Merging: the published rules, the reference samples, and files that must not be merged."""

import os
import shutil
import sqlite3
from pathlib import Path

import pytest
from tests.support.shared_data import shared
from tests.support.trace_databases import changed, database, rows

from ingero.errors import ForeignFile, MalformedInput, StoreError
from ingero.storage.merge.merge import merge


def legacy(path: Path) -> Path:
    connection = sqlite3.connect(path)
    connection.execute(
        "CREATE TABLE events (id INTEGER PRIMARY KEY, timestamp INTEGER, pid INTEGER, tid INTEGER, "
        "source INTEGER, op INTEGER, duration INTEGER)"
    )
    connection.executemany("INSERT INTO events VALUES (?, 1, 1, 1, 1, 1, 1)", [(1,), (2,), (3,)])
    connection.commit()
    connection.close()
    return path


def test_v15_reference_samples_give_600_events_6_chains_9_stacks(tmp_path: Path) -> None:
    """F143, F144: nine unique stacks out of ten."""
    sources = [shared(f"data/ingero/sample-gpu-node-0{i}.db") for i in (1, 2, 3)]
    before = [source.read_bytes() for source in sources]
    summary = merge([*sources, sources[0]], tmp_path / "out.db")
    assert (summary.events, summary.chains, summary.stacks) == (600, 6, 9)
    assert [file.events for file in summary.files] == [200, 200, 200, 0]
    assert "same content" in (summary.files[3].skipped or "")
    assert [source.read_bytes() for source in sources] == before
    reference = shared("data/ingero/sample-cluster.db")
    same = "SELECT id, timestamp, pid, source, op, duration, node FROM events ORDER BY id"
    assert rows(tmp_path / "out.db", same) == rows(reference, same)
    assert rows(tmp_path / "out.db", "PRAGMA user_version") == [(10,)]


def test_merged_files_merge_again_without_change(tmp_path: Path) -> None:
    one = database(tmp_path / "a.db", "a")
    two = database(tmp_path / "b.db", "b")
    merge([one, two], tmp_path / "ab.db")
    summary = merge([tmp_path / "ab.db"], tmp_path / "again.db")
    assert summary.nodes == ["a", "b"]
    for table in (
        "events",
        "node_aggregates",
        "event_aggregates",
        "sessions",
        "collectives",
        "processes",
        "annotations",
    ):
        everything = f"SELECT * FROM {table} ORDER BY 1, 2"
        assert rows(tmp_path / "again.db", everything) == rows(tmp_path / "ab.db", everything)


def test_aggregates_add_up_and_keep_their_node(tmp_path: Path) -> None:
    merge([database(tmp_path / "a.db", "a"), database(tmp_path / "b.db", "b")], tmp_path / "out.db")
    assert rows(
        tmp_path / "out.db", "SELECT count, stored, sum_dur, min_dur, max_dur FROM event_aggregates"
    ) == [(20, 6, 200, 1, 50)]
    assert rows(tmp_path / "out.db", "SELECT node, count FROM node_aggregates ORDER BY node") == [
        ("a", 10),
        ("b", 10),
    ]


def test_names_and_annotations_keep_their_node(tmp_path: Path) -> None:
    merge([database(tmp_path / "a.db", "a"), database(tmp_path / "b.db", "b")], tmp_path / "out.db")
    names = rows(tmp_path / "out.db", "SELECT labels ->> '$.node' FROM annotations ORDER BY 1")
    assert names == [("a",), ("b",)]
    assert rows(tmp_path / "out.db", "SELECT count(*) FROM collectives") == [(2,)]


def test_older_copy_of_a_node_adds_nothing_new(tmp_path: Path) -> None:
    old = database(tmp_path / "old.db", "a")
    new = shutil.copy(old, tmp_path / "new.db")
    connection = sqlite3.connect(new)
    connection.execute(
        "INSERT INTO events (id, timestamp, pid, tid, source, op, duration, node) VALUES "
        "('a:9',1,1,1,1,1,1,'a')"
    )
    connection.commit()
    connection.close()
    changed(Path(new), "UPDATE event_aggregates SET count = 12, sum_dur = 130")
    for sources in ([old, Path(new)], [Path(new), old]):
        summary = merge(sources, tmp_path / "out.db")
        assert summary.events == 4
        for table in ("sessions", "collectives", "annotations"):
            assert rows(tmp_path / "out.db", f"SELECT count(*) FROM {table}") == [(1,)], table
        for table in ("event_aggregates", "node_aggregates"):
            counted = rows(
                tmp_path / "out.db", f"SELECT count, stored, sum_dur, min_dur, max_dur FROM {table}"
            )
            assert counted == [(12, 3, 130, 1, 50)], table


def test_a_merged_file_and_one_of_its_sources_add_nothing_new(tmp_path: Path) -> None:
    sources = [database(tmp_path / "a.db", "a", events=5), database(tmp_path / "b.db", "b")]
    merge(sources, tmp_path / "ab.db")
    merge([tmp_path / "ab.db", sources[1]], tmp_path / "again.db")
    for table in (
        "events",
        "node_aggregates",
        "event_aggregates",
        "sessions",
        "collectives",
        "annotations",
    ):
        everything = f"SELECT * FROM {table} ORDER BY 1, 2"
        assert rows(tmp_path / "again.db", everything) == rows(tmp_path / "ab.db", everything), (
            table
        )


def test_two_recordings_under_one_name_keep_all_their_events(tmp_path: Path) -> None:
    """Both count from 1. An id identifies one event, so the second recording gets new numbers."""
    monday = database(tmp_path / "mon.db", "a", events=5)
    tuesday = database(tmp_path / "tue.db", "a", events=4, start_ns=2 * 10**18)
    summary = merge([monday, tuesday], tmp_path / "both.db")
    assert [(file.events, file.renumbered_events) for file in summary.files] == [(5, 0), (4, 4)]
    times = "SELECT id, timestamp FROM events ORDER BY timestamp"
    assert rows(tmp_path / "both.db", times) == [
        *((f"a:{i}", 10**18 + i) for i in range(5)),
        *((f"a:{i + 5}", 2 * 10**18 + i) for i in range(4)),
    ]
    again = merge([tmp_path / "both.db", tuesday, monday], tmp_path / "again.db")
    assert [file.events for file in again.files] == [9, 0, 0]
    assert rows(tmp_path / "again.db", times) == rows(tmp_path / "both.db", times)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_legacy_file_and_a_new_recording_of_its_node_keep_all_events(
    tmp_path: Path, is_first: bool
) -> None:
    """F145: before node names, ids were numbers that the new recording uses again."""
    old, new = legacy(tmp_path / "old.db"), database(tmp_path / "new.db", "n7", events=9)
    merge([old, new] if is_first else [new, old], tmp_path / "out.db", force_node="n7")
    assert rows(
        tmp_path / "out.db", "SELECT count(*), count(DISTINCT id), sum(timestamp = 1) FROM events"
    ) == [(12, 12, 3)]


def test_numbers_are_counted_by_node_and_huge_ones_are_not_counted_on(tmp_path: Path) -> None:
    other = database(tmp_path / "other.db", "other", events=500)
    own = changed(
        database(tmp_path / "own.db", "old", events=1),
        "UPDATE events SET id = 'old:9223372036854775807'",
    )
    merge([other, own, legacy(tmp_path / "l.db")], tmp_path / "out.db", force_node="old")
    ids = rows(tmp_path / "out.db", "SELECT id FROM events WHERE node = 'old' ORDER BY id")
    assert ids == [("old:1",), ("old:2",), ("old:3",), ("old:9223372036854775807",)]


def test_what_an_old_table_lacks_takes_its_default_and_what_an_event_needs_is_counted(
    tmp_path: Path,
) -> None:
    source = changed(
        legacy(tmp_path / "l.db"),
        "ALTER TABLE events ADD COLUMN comm TEXT",
        "INSERT INTO events VALUES (8, NULL, 1, 1, 1, 1, 1, 'x'), (9, 1, 1, 1, 1, 1, NULL, 'x')",
        "CREATE TABLE stack_traces (hash INTEGER PRIMARY KEY, ips TEXT)",
        "INSERT INTO stack_traces VALUES (1, '[]'), (2, NULL)",
        "CREATE TABLE causal_chains (id TEXT, detected_at INTEGER, severity TEXT, summary TEXT, "
        "root_cause TEXT)",
        "INSERT INTO causal_chains VALUES ('slow', 5, 'HIGH', 's', 'r')",
    )
    summary = merge([source], tmp_path / "out.db", force_node="old")
    assert (summary.events, summary.chains, summary.stacks) == (3, 1, 2)
    assert summary.files[0].incomplete_events == 2
    assert rows(tmp_path / "out.db", "SELECT DISTINCT comm, gpu_id, rank FROM events") == [
        ("", 0, None)
    ]
    assert rows(tmp_path / "out.db", "SELECT id, explanation, node FROM causal_chains") == [
        ("old:slow", "", "old")
    ]


def test_snapshots_and_process_names_keep_their_node(tmp_path: Path) -> None:
    """In a file of several nodes, rows that do not name their node get none."""
    columns = "(timestamp, cpu_pct, mem_pct, mem_avail, swap_mb, load_avg)"
    for number, name in enumerate(("a", "b")):
        snapshot = f"INSERT INTO system_snapshots {columns} VALUES (5, {number}, 1, 2, 3, 4)"
        changed(database(tmp_path / f"{name}.db", name), snapshot)
    merge([tmp_path / "a.db", tmp_path / "b.db"], tmp_path / "ab.db")
    for path in (tmp_path / "ab.db", tmp_path / "again.db"):
        assert rows(path, "SELECT node, timestamp, cpu_pct FROM node_snapshots") == [
            ("a", 5, 0.0),
            ("b", 5, 1.0),
        ]
        assert rows(path, "SELECT node, name FROM processes") == [
            ("a", "python-a"),
            ("b", "python-b"),
        ]
        merge([tmp_path / "ab.db"], tmp_path / "again.db")
    changed(tmp_path / "ab.db", "DROP TABLE node_snapshots", "DROP TABLE processes")
    merge([tmp_path / "ab.db"], tmp_path / "unknown.db")
    for table in ("node_snapshots", "processes"):
        assert rows(tmp_path / "unknown.db", f"SELECT count(*) FROM {table}") == [(0,)]


def test_v15b_legacy_files_share_one_counter(tmp_path: Path) -> None:
    """F145."""
    one, two = legacy(tmp_path / "1.db"), legacy(tmp_path / "2.db")
    with sqlite3.connect(two) as connection:
        connection.execute("UPDATE events SET timestamp = 2")
    connection.close()
    merge([one, two], tmp_path / "out.db", force_node="old")
    assert [row[0] for row in rows(tmp_path / "out.db", "SELECT id FROM events ORDER BY id")] == [
        f"old:{i}" for i in range(1, 7)
    ]


def test_v15c_refusals_name_the_file_and_the_remedy(tmp_path: Path) -> None:
    plain = database(tmp_path / "a.db")
    with pytest.raises(
        ForeignFile, match=r"1\.db does not say which node it is from: name it with --force-node"
    ):
        merge([legacy(tmp_path / "1.db")], tmp_path / "out.db")
    with pytest.raises(StoreError, match="is also a source"):
        merge([plain], plain)
    with pytest.raises(StoreError, match=r"gone\.db does not exist"):
        merge([tmp_path / "gone.db"], tmp_path / "out.db")
    with pytest.raises(MalformedInput, match="contain a colon"):
        merge([plain], tmp_path / "out.db", force_node="a:b")
    assert not (tmp_path / "out.db").exists()


def test_damaged_and_foreign_files_are_refused_or_skipped_by_name(tmp_path: Path) -> None:
    good = database(tmp_path / "good.db", events=2000)
    damaged = tmp_path / "damaged.db"
    content = bytearray(good.read_bytes())
    content[8192:40000] = b"\xff" * (40000 - 8192)
    damaged.write_bytes(content)
    text = tmp_path / "notes.txt"
    text.write_text("not a database at all, but long enough to look like one" * 50)
    for bad in (damaged, text):
        with pytest.raises(ForeignFile, match=bad.name):
            merge([good, bad], tmp_path / "out.db")
    summary = merge([good, damaged, text], tmp_path / "out.db", skip_bad=True)
    assert summary.events == 2000
    assert [bool(file.skipped) for file in summary.files] == [False, True, True]


def test_a_source_with_a_write_ahead_log_is_read_whole_and_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "media"
    folder.mkdir()
    path = database(folder / "wal.db", "w")
    writer = sqlite3.connect(path)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute(
        "INSERT INTO events (id, timestamp, pid, tid, source, op, duration, node) VALUES "
        "('w:9',1,1,1,1,1,1,'w')"
    )
    writer.commit()
    log = path.with_name("wal.db-wal").read_bytes()
    (folder / "wal.db-shm").unlink()  # as on media copied without it
    before = path.read_bytes()
    assert merge([path], tmp_path / "out.db").events == 4
    assert (path.read_bytes(), path.with_name("wal.db-wal").read_bytes()) == (before, log)
    assert sorted(file.name for file in folder.iterdir()) == ["wal.db", "wal.db-wal"]
    writer.close()


def test_failure_leaves_the_earlier_output_and_no_litter(tmp_path: Path) -> None:
    output = tmp_path / "out.db"
    output.write_text("earlier")
    with pytest.raises(ForeignFile):
        merge([database(tmp_path / "a.db"), legacy(tmp_path / "1.db")], output)
    assert output.read_text() == "earlier"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["1.db", "a.db", "out.db"]


@pytest.mark.parametrize(("second", "merged"), [(0o644, 0o644), (0o640, 0o640), (0o600, 0o600)])
def test_whoever_may_not_read_a_source_may_not_read_the_result(
    tmp_path: Path, second: int, merged: int
) -> None:
    sources = [database(tmp_path / f"{name}.db", name) for name in ("a", "b")]
    sources[0].chmod(0o644)
    sources[1].chmod(second)
    before = os.umask(0o022)
    try:
        merge(sources, tmp_path / "out.db")
    finally:
        os.umask(before)
    assert (tmp_path / "out.db").stat().st_mode & 0o777 == merged


def test_far_apart_beginnings_are_a_hedged_hint(tmp_path: Path) -> None:
    one = database(tmp_path / "a.db", "a")
    two = database(tmp_path / "b.db", "b", start_ns=10**18 + 2 * 10**9)
    assert merge([one, two], tmp_path / "out.db").possible_skew == [("a", "b", 2.0)]
    assert merge([one, two], tmp_path / "out.db", skew_threshold_s=5).possible_skew == []


def test_oversized_stacks_are_counted_not_copied(tmp_path: Path) -> None:
    summary = merge([database(tmp_path / "a.db")], tmp_path / "out.db")
    assert (summary.stacks, summary.files[0].oversized_stacks) == (0, 1)


def test_files_that_end_alike_are_told_apart_by_their_whole_content(tmp_path: Path) -> None:
    """F143: files with the same size and last pages are compared in full."""
    one, other, copy = (
        database(tmp_path / "a.db", events=5000),
        tmp_path / "b.db",
        tmp_path / "c.db",
    )
    shutil.copyfile(one, other)
    connection = sqlite3.connect(other)
    connection.execute("UPDATE events SET id = 'n1:X' WHERE id = 'n1:0'")
    connection.commit()
    connection.close()
    assert one.read_bytes()[-16384:] == other.read_bytes()[-16384:]
    shutil.copyfile(other, copy)
    summary = merge([one, other, copy], tmp_path / "all.db")
    assert [file.skipped for file in summary.files] == [None, None, f"same content as {other}"]
    assert [file.events for file in summary.files] == [5000, 1, 0]


def test_one_strange_event_among_many_is_seen(tmp_path: Path) -> None:
    """F144: an event of another node, one without a node, and one whose id has none."""
    source = database(tmp_path / "a.db", events=500)
    connection = sqlite3.connect(source)
    for key, column, value in (
        ("n1:400", "node", "n2"),
        ("n1:401", "node", ""),
        ("n1:402", "id", "402"),
    ):
        connection.execute(f"UPDATE events SET {column} = ? WHERE id = ?", (value, key))
    connection.commit()
    connection.close()
    summary = merge([source], tmp_path / "all.db")
    assert (summary.events, sorted(summary.nodes)) == (500, ["n1", "n2"])
    assert (
        rows(
            tmp_path / "all.db", "SELECT id, node FROM events WHERE node = '' OR instr(id, ':') = 0"
        )
        == []
    )
    assert rows(tmp_path / "all.db", "SELECT count(*) FROM events WHERE node = 'n1'") == [(499,)]


def test_a_recording_without_events_is_of_the_node_of_its_session(tmp_path: Path) -> None:
    source = database(tmp_path / "a.db", "quiet", events=0)
    assert merge([source], tmp_path / "out.db").events == 0
    for table in ("node_aggregates", "processes", "sessions"):
        assert rows(tmp_path / "out.db", f"SELECT node FROM {table}") == [("quiet",)], table
