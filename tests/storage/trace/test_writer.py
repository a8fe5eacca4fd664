"""The writer thread: bounded queue, full disks, and limits of size."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.waiting import until

from ingero.errors import StoreError
from ingero.storage.trace.database import EVENT_COLUMNS, Batch, RecordingState, TraceDb, insert_sql
from ingero.storage.trace.prune import compact, prune, roll_over, rolled_files
from ingero.storage.trace.reading import connect_readonly
from ingero.storage.trace.writer import MAX_HELD_ROWS, MAX_QUEUED_BATCHES, SizePolicy, TraceWriter

INSERT = insert_sql("events", EVENT_COLUMNS)
BASE_NS = 1_700_000_000_000_000_000


def batch(db: TraceDb, count: int, at_ns: int = BASE_NS, comm: str = "train") -> Batch:
    rows = [
        (
            id_,
            at_ns + i * 1_000_000,
            7,
            7,
            1,
            3,
            10,
            0,
            0,
            0,
            0,
            0,
            db.node,
            None,
            None,
            None,
            comm,
            0,
        )
        for i, id_ in enumerate(db.next_ids(count))
    ]
    return [(INSERT, list(rows))]


def count(path: Path) -> int:
    connection = connect_readonly(path)
    try:
        return int(connection.execute("SELECT count(*) FROM events").fetchone()[0])
    finally:
        connection.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 3 MB."""
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small file system")
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)], check=False
    ).returncode:
        pytest.skip("a small file system cannot be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_rows_reach_the_file(tmp_path: Path) -> None:
    db = TraceDb(tmp_path / "t.db", "n")
    writer = TraceWriter(db)
    for _ in range(20):
        assert writer.submit(batch(db, 50))
    writer.close()
    assert (count(tmp_path / "t.db"), writer.counters.written) == (1000, 1000)


def test_a_full_disk_stops_recording_and_recording_goes_on_when_there_is_room(
    small_disk: Path,
) -> None:
    """Nothing raises, `state` shows the problem, and rows kept in memory are written later."""
    ballast = small_disk / "ballast"
    db = TraceDb(small_disk / "t.db", "n")
    writer = TraceWriter(db, retry_s=0.05)
    ballast.write_bytes(bytes(shutil.disk_usage(small_disk).free - 300_000))
    submitted = 0
    while writer.state is RecordingState.RECORDING and submitted < 50_000:
        writer.submit(batch(db, 500))
        writer.flush()
        submitted += 500
    assert writer.state is RecordingState.DISK_FULL
    assert connect_readonly(small_disk / "t.db").execute("PRAGMA integrity_check").fetchone() == (
        "ok",
    )
    ballast.unlink()
    until(lambda: writer.state is RecordingState.RECORDING)
    writer.submit(batch(db, 1))
    writer.close()
    assert writer.counters.failed == 0
    assert count(small_disk / "t.db") == writer.counters.written == submitted + 1


def test_a_disk_that_stays_full_costs_a_bounded_amount_of_memory_and_is_counted(
    small_disk: Path,
) -> None:
    db = TraceDb(small_disk / "t.db", "n")
    writer = TraceWriter(db)
    total = 0
    (small_disk / "ballast").write_bytes(bytes(shutil.disk_usage(small_disk).free - 200_000))
    for _ in range(60):
        writer.submit(batch(db, 1000))
        writer.flush()
        total += 1000
    assert writer.state is RecordingState.DISK_FULL
    assert writer._held_rows <= MAX_HELD_ROWS
    written = writer.counters.written
    writer.close()
    assert writer.counters.written + writer.counters.failed == total
    assert writer.counters.failed > 0
    assert written < total


def test_a_writer_that_cannot_keep_up_drops_and_counts(tmp_path: Path) -> None:
    db = TraceDb(tmp_path / "t.db", "n")
    other = connect_readonly(tmp_path / "t.db")
    writer = TraceWriter(db)
    blocker = __import__("sqlite3").connect(tmp_path / "t.db", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")  # another process holds the write lock
    accepted = sum(writer.submit(batch(db, 1)) for _ in range(MAX_QUEUED_BATCHES + 50))
    assert accepted < MAX_QUEUED_BATCHES + 50
    assert writer.counters.dropped == MAX_QUEUED_BATCHES + 50 - accepted
    blocker.execute("ROLLBACK")
    blocker.close()
    other.close()
    writer.close()
    assert count(tmp_path / "t.db") == accepted


def test_the_oldest_rows_go_when_the_file_is_too_large(tmp_path: Path) -> None:
    with TraceDb(tmp_path / "t.db", "n") as db:
        for second in range(40):
            db.write(batch(db, 500, BASE_NS + second * 1_000_000_000, comm=f"{second:0200d}"))
        db.execute("INSERT INTO annotations (timestamp, labels) VALUES (?, '{}')", (BASE_NS,))
        db.execute("INSERT INTO cgroup_schedstat VALUES (1, 1, 1, 1, ?, ?)", (BASE_NS, BASE_NS))
        db.execute("INSERT INTO stack_traces VALUES (5, '', '[]')")
        db.checkpoint("TRUNCATE")
        limit = db.size_bytes() // 2
        deleted = prune(db, limit)
        assert db.size_bytes() <= limit
        first, last = db.execute("SELECT min(timestamp), max(timestamp) FROM events").fetchone()
        assert last == BASE_NS + 39_499_000_000, "the newest stay"
        assert first > BASE_NS + 10_000_000_000
        assert deleted > 5000
        for table in ("annotations", "cgroup_schedstat", "stack_traces"):
            assert db.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,), table
        assert prune(db, limit) == 0


def test_compaction_gives_space_back(tmp_path: Path) -> None:
    with TraceDb(tmp_path / "t.db", "n") as db:
        db.write(batch(db, 20_000))
        db.execute("DELETE FROM events WHERE CAST(substr(id, 3) AS INTEGER) > 100")
        before = db.size_bytes()
        compact(db)
        assert (tmp_path / "t.db").stat().st_size < before / 4
        assert db.write(batch(db, 1))
    assert count(tmp_path / "t.db") == 101


def test_rollover_moves_the_file_aside_and_keeps_a_few(tmp_path: Path) -> None:
    with TraceDb(tmp_path / "t.db", "n") as db:
        for _ in range(4):
            db.write(batch(db, 10))
            roll_over(db, keep=2)
        db.write(batch(db, 3))
        assert db.next_ids(1) == ["n:44"], "numbers go on"
    (tmp_path / "t.notes.db").write_text("not ours")
    assert [count(file) for file in rolled_files(tmp_path / "t.db")] == [10, 10]
    assert count(tmp_path / "t.db") == 3


def test_a_rollover_that_fails_goes_on_in_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = TraceDb(tmp_path / "t.db", "n")
    monkeypatch.setattr(
        Path,
        "rename",
        lambda *_: (_ for _ in ()).throw(PermissionError(1, "Operation not permitted")),
    )
    writer = TraceWriter(db, SizePolicy(rollover_bytes=1), checkpoint_s=0.0)
    writer.submit(batch(db, 10))
    until(lambda: writer.counters.rollover_failures > 0)
    writer.submit(batch(db, 5))
    writer.close()
    assert count(tmp_path / "t.db") == 15


def test_a_rollover_without_room_for_a_new_file_is_a_state_and_recording_goes_on_must_25(
    small_disk: Path,
) -> None:
    """The old file is renamed and the new one cannot be created until there is room."""
    db = TraceDb(small_disk / "t.db", "n")
    db.write(batch(db, 10))
    db.checkpoint("TRUNCATE")
    filler = small_disk / "filler"
    with pytest.raises(OSError, match="No space left"), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    with pytest.raises(StoreError, match="cannot be written"):
        roll_over(db, keep=6)
    writer = TraceWriter(db)
    writer.submit(batch(db, 5))
    writer.flush()
    assert writer.state is RecordingState.FAILED
    filler.unlink()
    writer.submit(batch(db, 7))
    until(lambda: writer.counters.written == 12)
    writer.close()
    assert [count(file) for file in (*rolled_files(small_disk / "t.db"), small_disk / "t.db")] == [
        10,
        12,
    ]


def test_the_writer_rolls_over_by_itself(tmp_path: Path) -> None:
    db = TraceDb(tmp_path / "t.db", "n")
    writer = TraceWriter(db, SizePolicy(rollover_bytes=1, rollover_keep=50), checkpoint_s=0.0)
    for _ in range(3):
        writer.submit(batch(db, 10))
        writer.flush()
    until(lambda: writer.counters.rollovers > 0)
    writer.close()
    files = [*rolled_files(tmp_path / "t.db"), tmp_path / "t.db"]
    assert sum(count(file) for file in files) == 30
