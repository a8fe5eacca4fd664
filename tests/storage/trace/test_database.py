"""The trace database: one writer, many readers, files of all versions."""

import os
import shutil
import sqlite3
import threading
from pathlib import Path

import pytest
from tests.support.shared_data import shared

from ingero.errors import ForeignFile, StoreError, StoreLocked
from ingero.storage.trace.aggregates import TraceReader
from ingero.storage.trace.database import (
    EVENT_COLUMNS,
    RecordingState,
    TraceDb,
    insert_sql,
    signed64,
    upsert_aggregates_sql,
)
from ingero.storage.trace.reading import connect_readonly
from ingero.storage.trace.schema import (
    AGGREGATE_COLUMNS,
    OWN_TABLES,
    OWN_VERSION,
    OWN_VERSION_KEY,
    TABLES,
    table_columns,
)

INSERT_EVENT = insert_sql("events", EVENT_COLUMNS)


def event_rows(db: TraceDb, count: int, start_ns: int = 1_000) -> list[tuple[object, ...]]:
    return [
        (id_, start_ns + i, 7, 7, 1, 3, 10, 0, 0, 0, 0, 0, db.node, None, None, None, "train", 0)
        for i, id_ in enumerate(db.next_ids(count))
    ]


def test_new_file_has_every_table_and_both_versions(tmp_path: Path) -> None:
    with TraceDb(tmp_path / "t.db", "n1"):
        pass
    with sqlite3.connect(tmp_path / "t.db") as connection:
        names = {
            row[0]
            for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }
        assert names >= set(TABLES) | set(OWN_TABLES)
        info = dict(connection.execute("SELECT key, value FROM schema_info").fetchall())
        assert (info["version"], info[OWN_VERSION_KEY]) == ("0.10", OWN_VERSION)
        assert connection.execute("PRAGMA user_version").fetchone() == (10,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA auto_vacuum").fetchone() == (2,)
    assert (tmp_path / "t.db").stat().st_mode & 0o777 == 0o600


def test_published_columns_are_all_there_under_their_names(tmp_path: Path) -> None:
    """Compare each column with a database of the format's own recorder."""
    reference = connect_readonly(shared("data/ingero/sample-gpu-node-01.db"))
    tables = reference.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    assert len(tables) > 5
    with TraceDb(tmp_path / "t.db", "n1") as db:
        for (table,) in tables:
            if table != "sqlite_sequence":
                theirs = set(table_columns(reference, table))
                assert theirs <= set(table_columns(db.connection, table)), table
    reference.close()


@pytest.mark.parametrize("node", ["gpu-node-01", "50%", "a_b", "back\\slash"])
def test_ids_go_on_where_the_node_stopped(tmp_path: Path, node: str) -> None:
    """F133: wildcard characters in a node name never match another node's ids."""
    with TraceDb(tmp_path / "t.db", node) as db:
        assert db.write([(INSERT_EVENT, event_rows(db, 3))])
        db.execute("UPDATE events SET id = replace(id, ':3', ':41')")
        db.write(
            [
                (
                    INSERT_EVENT,
                    [
                        ("axb:900", *event_rows(db, 1)[0][1:]),
                        ("50x:900", *event_rows(db, 1)[0][1:]),
                    ],
                )
            ]
        )
    with TraceDb(tmp_path / "t.db", node) as db:
        assert db.next_ids(2) == [f"{node}:42", f"{node}:43"]


def test_aggregates_add_up_over_restarts(tmp_path: Path) -> None:
    row = (60_000_000_000, 1, 3, 7, 10, 2, 100, 5, 40, 0)
    for _ in range(2):
        with TraceDb(tmp_path / "t.db", "n") as db:
            db.write([(upsert_aggregates_sql("event_aggregates"), [row])])
    later = (60_000_000_000, 1, 3, 7, 1, 0, 99, 1, 99, 0)
    with TraceDb(tmp_path / "t.db", "n") as db:
        db.write([(upsert_aggregates_sql("event_aggregates"), [later])])
        columns = ", ".join(AGGREGATE_COLUMNS)
        assert db.execute(f"SELECT {columns} FROM event_aggregates").fetchall() == [
            (60_000_000_000, 1, 3, 7, 21, 4, 299, 1, 99, 0)
        ]


def test_a_batch_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    with TraceDb(tmp_path / "t.db", "n") as db:
        bad = [("n:1",)]
        with pytest.raises(sqlite3.ProgrammingError):
            db.write([(INSERT_EVENT, event_rows(db, 2)), (INSERT_EVENT, bad)])
        assert db.execute("SELECT count(*) FROM events").fetchone() == (0,)


def test_newer_format_is_refused(tmp_path: Path) -> None:
    with TraceDb(tmp_path / "t.db", "n") as db:
        db.execute("PRAGMA user_version = 11")
    with pytest.raises(ForeignFile, match="format 11"):
        TraceDb(tmp_path / "t.db", "n")
    with pytest.raises(ForeignFile, match="format 11"):
        connect_readonly(tmp_path / "t.db")


def test_other_files_are_named_for_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database, but long enough to look at" * 100)
    with pytest.raises(ForeignFile, match="not a SQLite database"):
        connect_readonly(tmp_path / "text")
    with pytest.raises(ForeignFile, match="not a SQLite database"):
        TraceDb(tmp_path / "text", "n")
    sqlite3.connect(tmp_path / "other.db").execute("CREATE TABLE x (a)").connection.close()
    with pytest.raises(ForeignFile, match="no table `events`"):
        connect_readonly(tmp_path / "other.db")
    with pytest.raises(StoreError, match="does not exist"):
        connect_readonly(tmp_path / "nowhere.db")


def test_second_recorder_is_told_who_has_the_file(tmp_path: Path) -> None:
    with (
        TraceDb(tmp_path / "t.db", "n"),
        pytest.raises(StoreLocked, match=f"process {os.getpid()}"),
    ):
        TraceDb(tmp_path / "t.db", "n")
    TraceDb(tmp_path / "t.db", "n").close()


def test_readers_run_beside_the_writer_without_lock_errors(tmp_path: Path) -> None:
    """F014 on a small scale: every read during 200 commits and 20 checkpoints succeeds.

    No read sees half a batch.
    """
    path = tmp_path / "t.db"
    errors: list[str] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            try:
                connection = connect_readonly(path)
                (count,) = connection.execute("SELECT count(*) FROM events").fetchone()
                connection.close()
            except (sqlite3.Error, StoreError) as error:
                errors.append(repr(error))
                return
            if count % 50:
                errors.append(f"saw {count} rows")

    with TraceDb(path, "n") as db:
        db.write([(INSERT_EVENT, event_rows(db, 50))])
        readers = [threading.Thread(target=read) for _ in range(3)]
        for reader in readers:
            reader.start()
        for round_number in range(200):
            assert db.write([(INSERT_EVENT, event_rows(db, 50))])
            if round_number % 10 == 0:
                db.checkpoint()
        done.set()
        for reader in readers:
            reader.join()
    assert errors == []


def test_a_plain_copy_after_a_checkpoint_has_the_data(tmp_path: Path) -> None:
    with TraceDb(tmp_path / "t.db", "n") as db:
        db.write([(INSERT_EVENT, event_rows(db, 10))])
        db.checkpoint()
        shutil.copy(tmp_path / "t.db", tmp_path / "copy.db")
    connection = connect_readonly(tmp_path / "copy.db")
    assert connection.execute("SELECT count(*) FROM events").fetchone() == (10,)
    connection.close()


def test_reading_leaves_nothing_beside_the_file(tmp_path: Path) -> None:
    source = tmp_path / "sample.db"
    shutil.copy(shared("data/ingero/sample-gpu-node-01.db"), source)
    connection = connect_readonly(source)
    assert connection.execute("SELECT count(*) FROM events").fetchone() == (200,)
    connection.close()
    assert [file.name for file in tmp_path.iterdir()] == ["sample.db"]


def test_the_first_format_is_rebuilt_and_can_be_appended_to(tmp_path: Path) -> None:
    """Tables with integer ids refuse `node:number`, so their rows are moved to a new table."""
    path = tmp_path / "old.db"
    shutil.copy(shared("data/ingero/vllm-37343-logprobs-amplification.db"), path)
    path.chmod(0o600)
    with TraceDb(path, "h") as db:
        assert db.next_ids(1) == ["h:10870"]
        assert db.write([(INSERT_EVENT, event_rows(db, 5))])
        assert db.execute("SELECT count(*), count(DISTINCT id) FROM events").fetchone() == (
            10874,
            10874,
        )
        assert db.execute(
            "SELECT count(*) FROM events WHERE node = 'h' AND id LIKE 'h:%'"
        ).fetchone() == (10874,)
        assert db.execute("SELECT count(*) FROM causal_chains").fetchone() == (6,)


def test_full_disk_is_a_state_and_recording_goes_on_when_there_is_room(tmp_path: Path) -> None:
    with TraceDb(tmp_path / "t.db", "n") as db:
        pages = db.execute("PRAGMA page_count").fetchone()[0]
        db.connection.execute(f"PRAGMA max_page_count = {pages}")
        assert not db.write([(INSERT_EVENT, event_rows(db, 5000))])
        assert db.state is RecordingState.DISK_FULL
        db.connection.execute("PRAGMA max_page_count = 1000000")
        assert db.write([(INSERT_EVENT, event_rows(db, 5))])
        assert db.state is RecordingState.RECORDING
        assert db.execute("SELECT count(*) FROM events").fetchone() == (5,)


def test_unwritable_folder_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="name another place with --db"):
        TraceDb(tmp_path / "file" / "t.db", "n")


@pytest.mark.parametrize(
    ("value", "stored"), [(0, 0), (2**63 - 1, 2**63 - 1), (2**63, -(2**63)), (2**64 - 1, -1)]
)
def test_unsigned_values_wrap(value: int, stored: int) -> None:
    assert signed64(value) == stored


def test_every_connection_waits_for_a_busy_file_must_22(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    with TraceDb(path, "n") as db:
        reader, follower = connect_readonly(path), TraceReader(path)._connect()
        waits_ms = [
            one.execute("PRAGMA busy_timeout").fetchone()[0]
            for one in (db.connection, reader, follower)
        ]
        assert waits_ms == [5000, 2000, 2000]
        reader.close()
        follower.close()
