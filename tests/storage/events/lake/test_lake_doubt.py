"""Commits whose outcome a writer of a lake cannot know: rows are there once, whatever it was."""

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.cut_commit import CommitCutter, commit_cutter
from tests.support.echo_samples import metrics_body
from tests.support.lakes import lake_for, postgres, url_of
from tests.support.stores import ON_LAKE
from tests.support.waiting import until

from ingero.contract.otlp.rows import Signal
from ingero.echo.maintenance import move_to_lake
from ingero.errors import StoreError
from ingero.storage.events.file_store import DuckDbStore
from ingero.storage.events.lake.store import LakeStore
from ingero.storage.journal.frames import Frame

MEMORY = 512 << 20
SLOW_COMMIT = """
CREATE FUNCTION {schema}.wait() RETURNS trigger LANGUAGE plpgsql AS
$$BEGIN PERFORM pg_sleep(60); RETURN NULL; END$$;
CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON {schema}.ducklake_snapshot
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION {schema}.wait()
"""

MOVE = """
import sys
from pathlib import Path
from ingero.echo.maintenance import move_to_lake
from ingero.storage.events.lake.address import LakeSecrets, parse_lake_address
file, url = sys.argv[1:]
secrets = LakeSecrets(s3_key_id="key", s3_secret="secret")
move_to_lake(Path(file), parse_lake_address(url), secrets)
"""


def frame(seq: int) -> Frame:
    body = metrics_body(points=3, first=10 * seq)
    return Frame(seq, 0, time.time_ns() // 1000, Signal.METRICS, body)


@pytest.fixture
def cutter() -> Iterator[CommitCutter]:
    with commit_cutter(postgres().port) as running:
        yield running


@pytest.fixture
def store(cutter: CommitCutter, tmp_path: Path) -> Iterator[LakeStore]:
    address, secrets = lake_for(tmp_path / "lake", in_bucket=ON_LAKE)
    near = replace(address, port=cutter.port)
    with closing(LakeStore(near, secrets, tmp_path / "one", MEMORY, 1)) as opened:
        yield opened


def load_rest(store: LakeStore, frames: list[Frame]) -> None:
    """Do what the loader does after an error."""
    store.recover()
    waiting = [each for each in frames if each.seq > store.applied_seq]
    if waiting:
        store.load(waiting)


def counted(store: LakeStore) -> list[tuple[int, int]]:
    sql = "SELECT count(*), count(DISTINCT (seq, idx)) FROM events"
    with closing(store.cursor()) as reader:
        return reader.execute(sql).fetchall()


@pytest.mark.parametrize("late", [False, True], ids=["done-unheard", "done-later"])
def test_a_commit_nobody_heard_of_counts_once(
    store: LakeStore, cutter: CommitCutter, late: bool
) -> None:
    store.load([frame(1)])
    cutter.arm(late=late)
    with pytest.raises(StoreError):
        store.load([frame(2), frame(3)])
    load_rest(store, [frame(2), frame(3)])
    cutter.let_pass()
    store.load([frame(4)])
    assert counted(store) == [(12, 12)]
    assert store.applied_seq == 4


def test_a_commit_that_takes_long_is_ended_before_its_load_is_tried_again(
    store: LakeStore, cutter: CommitCutter
) -> None:
    store.load([frame(1)])
    schema = store._catalogue._address.schema
    postgres().execute("echo", SLOW_COMMIT.format(schema=schema))
    cutter.arm(late=False)
    with pytest.raises(StoreError):
        store.load([frame(2)])
    asked = f"SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE '%{schema}/%'"
    until(lambda: postgres().execute("echo", f"{asked} AND wait_event = 'PgSleep'") == [(1,)])
    store.recover()
    postgres().execute("echo", f"DROP FUNCTION {schema}.wait CASCADE")
    assert store.applied_seq == 1
    load_rest(store, [frame(2)])
    assert counted(store) == [(6, 6)]


def test_a_start_repairs_what_an_unheard_commit_left(
    store: LakeStore, cutter: CommitCutter, tmp_path: Path
) -> None:
    store.load([frame(1)])
    cutter.arm(late=False)
    with pytest.raises(StoreError):
        store.load([frame(2)])
    store.close()
    address, secrets = lake_for(tmp_path / "lake", in_bucket=ON_LAKE)
    with closing(LakeStore(address, secrets, tmp_path / "one", MEMORY, 1)) as again:
        assert again.applied_seq == 1
        again.load([frame(2)])
        assert counted(again) == [(6, 6)]


@pytest.mark.skipif(ON_LAKE, reason="an object store is no folder that can be mounted later")
def test_nothing_is_taken_back_while_the_data_is_not_mounted(tmp_path: Path) -> None:
    address, secrets = lake_for(tmp_path / "lake", in_bucket=False)
    data, elsewhere = Path(address.data), tmp_path / "elsewhere"
    with closing(LakeStore(address, secrets, tmp_path / "one", MEMORY, 1)) as store:
        store.load([frame(1)])
        store.load([frame(2)])
        data.rename(elsewhere)
        with pytest.raises(StoreError, match="check that it is mounted"):
            store.recover()
        elsewhere.rename(data)
        store.recover()
        assert store.applied_seq == 2
        assert counted(store) == [(6, 6)]


def test_an_unheard_roll_up_is_made_again(store: LakeStore, cutter: CommitCutter) -> None:
    store.load([frame(1)])
    cutter.arm(late=False)
    with pytest.raises(StoreError):
        store.roll_up(time.time_ns() // 1000)
    assert store.roll_up(time.time_ns() // 1000) == 1
    store.load([frame(2)])
    assert counted(store) == [(6, 6)]
    with closing(store.cursor()) as reader:
        [(points,)] = reader.execute("SELECT sum(count) FROM node_metric_parts").fetchall()
    assert points == 3


def test_an_unheard_deletion_is_made_again(store: LakeStore, cutter: CommitCutter) -> None:
    for _ in range(3):
        store.append_audit([[None] * 12])
    cutter.arm(late=False)
    with pytest.raises(StoreError):
        store.trim_audit(2)
    store.recover()
    assert store.audit_size()[0] == 3
    assert store.trim_audit(2) == 1
    assert store.audit_size()[0] == 2


def test_a_move_whose_commit_nobody_heard_of_is_made_again(
    cutter: CommitCutter, tmp_path: Path
) -> None:
    file = tmp_path / "echo.db"
    with closing(DuckDbStore(file, MEMORY, 1)) as own:
        own.load([frame(1)])
    address, secrets = lake_for(tmp_path / "lake", in_bucket=ON_LAKE)
    with closing(LakeStore(address, secrets, tmp_path / "other", MEMORY, 1)):
        pass  # the lake is there, so that the next COMMIT of a writer is that of the move
    cutter.arm(late=False)
    url = url_of(replace(address, port=cutter.port))
    first = subprocess.run(
        [sys.executable, "-c", MOVE, str(file), url], text=True, capture_output=True, check=False
    )
    assert "did not confirm" in first.stderr
    assert "run the same command again" in first.stderr
    move_to_lake(file, address, secrets)
    with closing(LakeStore(address, secrets, file, MEMORY, 1)) as moved:
        assert counted(moved) == [(3, 3)]


def test_a_writer_whose_lock_was_lost_writes_nothing_beside_its_successor(
    store: LakeStore, tmp_path: Path
) -> None:
    """Else both would number their rows alike, and each would skip what the other has loaded."""
    store.load([frame(1)])
    [(pid,)] = store._catalogue._execute("SELECT pg_backend_pid()")
    postgres().execute("echo", f"SELECT pg_terminate_backend({pid}, 5000)")
    shutil.copy(tmp_path / "one.writer", tmp_path / "copy.writer")
    address, secrets = lake_for(tmp_path / "lake", in_bucket=ON_LAKE)
    with closing(LakeStore(address, secrets, tmp_path / "copy", MEMORY, 1)) as successor:
        with pytest.raises(StoreError, match="writer 1"):
            store.load([frame(2)])
        with pytest.raises(StoreError, match="another Echo has become writer 1"):
            store.recover()
        successor.load([frame(2)])
        assert counted(successor) == [(6, 6)]
