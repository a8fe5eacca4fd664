"""Offline merge: the published rules, the reference samples, and files that should not be merged."""

import shutil
import sqlite3
from pathlib import Path

import pytest
from tests.shared_data import shared

from ingero.errors import ForeignFile, MalformedInput, StoreError
from ingero.storage.merge import merge
from ingero.storage.schema import create_schema


def database(path: Path, node: str = "n1", events: int = 3, start_ns: int = 10**18) -> Path:
    connection = sqlite3.connect(path)
    create_schema(connection)
    connection.executemany(
        "INSERT INTO events (id, timestamp, pid, tid, source, op, duration, node) VALUES (?, ?, 7, 7, 1, 3, 1000, ?)",
        [(f"{node}:{i}", start_ns + i, node) for i in range(events)],
    )
    connection.execute("INSERT INTO event_aggregates VALUES (60, 1, 3, 7, 10, 3, 100, 1, 50, 0)")
    connection.execute("INSERT INTO process_names VALUES (7, ?, 1)", (f"python-{node}",))
    connection.execute("INSERT INTO sessions (started_at, node) VALUES (?, ?)", (start_ns, node))
    connection.execute('INSERT INTO annotations (timestamp, labels, pid) VALUES (5, \'{"step": "1"}\', 7)')
    connection.execute(
        "INSERT INTO collectives (comm, op, rank, nranks, datatype, size_bytes, start_ns, end_ns, source, node) "
        "VALUES (1, 'AllReduce', 0, 2, 'float32', 4, 1, 2, 'ebpf', ?)",
        (node,),
    )
    connection.execute("INSERT INTO stack_traces VALUES (1, '[]', ?)", ("x" * 70000,))
    connection.commit()
    connection.close()
    return path


def legacy(path: Path) -> Path:
    connection = sqlite3.connect(path)
    connection.execute(
        "CREATE TABLE events (id INTEGER PRIMARY KEY, timestamp INTEGER, pid INTEGER, tid INTEGER, source INTEGER, "
        "op INTEGER, duration INTEGER)"
    )
    connection.executemany("INSERT INTO events VALUES (?, 1, 1, 1, 1, 1, 1)", [(1,), (2,), (3,)])
    connection.commit()
    connection.close()
    return path


def rows(path: Path, sql: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


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
    assert rows(tmp_path / "out.db", "SELECT count, stored, sum_dur, min_dur, max_dur FROM event_aggregates") == [
        (20, 6, 200, 1, 50)
    ]
    assert rows(tmp_path / "out.db", "SELECT node, count FROM node_aggregates ORDER BY node") == [("a", 10), ("b", 10)]


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
        "INSERT INTO events (id, timestamp, pid, tid, source, op, duration, node) VALUES ('a:9',1,1,1,1,1,1,'a')"
    )
    connection.commit()
    connection.close()
    summary = merge([old, Path(new)], tmp_path / "out.db")
    assert summary.events == 4
    for table in ("sessions", "collectives", "annotations"):
        assert rows(tmp_path / "out.db", f"SELECT count(*) FROM {table}") == [(1,)], table


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
    with pytest.raises(ForeignFile, match=r"1\.db does not say which node it is from: name it with --force-node"):
        merge([legacy(tmp_path / "1.db")], tmp_path / "out.db")
    with pytest.raises(StoreError, match="is also a source"):
        merge([plain], plain)
    with pytest.raises(StoreError, match=r"gone\.db is not there"):
        merge([tmp_path / "gone.db"], tmp_path / "out.db")
    with pytest.raises(MalformedInput, match="no colon"):
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
        "INSERT INTO events (id, timestamp, pid, tid, source, op, duration, node) VALUES ('w:9',1,1,1,1,1,1,'w')"
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


def test_far_apart_beginnings_are_a_hedged_hint(tmp_path: Path) -> None:
    one = database(tmp_path / "a.db", "a")
    two = database(tmp_path / "b.db", "b", start_ns=10**18 + 2 * 10**9)
    assert merge([one, two], tmp_path / "out.db").possible_skew == [("a", "b", 2.0)]
    assert merge([one, two], tmp_path / "out.db", skew_threshold_s=5).possible_skew == []


def test_oversized_stacks_are_counted_not_copied(tmp_path: Path) -> None:
    summary = merge([database(tmp_path / "a.db")], tmp_path / "out.db")
    assert (summary.stacks, summary.files[0].oversized_stacks) == (0, 1)


def test_files_that_end_alike_are_told_apart_by_their_whole_content(tmp_path: Path) -> None:
    """F143: the same size and the same last pages; the first event differs, then nothing does."""
    one, other, copy = database(tmp_path / "a.db", events=5000), tmp_path / "b.db", tmp_path / "c.db"
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
    """F144: an event of another node, one without a node, and one whose id has none, each deep in the file."""
    source = database(tmp_path / "a.db", events=500)
    connection = sqlite3.connect(source)
    for key, column, value in (("n1:400", "node", "n2"), ("n1:401", "node", ""), ("n1:402", "id", "402")):
        connection.execute(f"UPDATE events SET {column} = ? WHERE id = ?", (value, key))
    connection.commit()
    connection.close()
    summary = merge([source], tmp_path / "all.db")
    assert (summary.events, sorted(summary.nodes)) == (500, ["n1", "n2"])
    assert rows(tmp_path / "all.db", "SELECT id, node FROM events WHERE node = '' OR instr(id, ':') = 0") == []
    assert rows(tmp_path / "all.db", "SELECT count(*) FROM events WHERE node = 'n1'") == [(499,)]
