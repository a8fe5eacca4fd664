"""Several writers share one lake: PostgreSQL holds its catalogue, a folder its files."""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import duckdb
import pytest
from tests.support.echo_samples import metrics_body
from tests.support.lakes import READER, lake_for, postgres, url_of
from tests.support.stores import MEMORY_BYTES, OpenWriter, lake_writers, writing
from tests.support.two_tenants import SEED

from ingero.contract.otlp.rows import Signal
from ingero.echo.maintenance import move_to_lake, verify
from ingero.echo.store.api import QueryFailed, QueryLimits
from ingero.echo.store.sql import run_user_sql
from ingero.errors import StoreError
from ingero.storage.events.file_store import DuckDbStore
from ingero.storage.events.lake import connection as lake_connection
from ingero.storage.events.lake import moving
from ingero.storage.events.lake.address import LakeSecrets, parse_lake_address
from ingero.storage.events.lake.catalogue import Catalogue
from ingero.storage.events.lake.identity import writer_identity
from ingero.storage.events.lake.store import DAY_US, LakeStore, is_trouble, tidy_statements
from ingero.storage.events.opening import open_store
from ingero.storage.events.schema import TABLES
from ingero.storage.journal.frames import Frame

START_US = 1_763_168_400_000_000


def frame(seq: int, first: int, received_us: int = START_US, points: int = 3) -> Frame:
    return Frame(seq, 0, received_us, Signal.METRICS, metrics_body(points=points, first=first))


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[OpenWriter]:
    with lake_writers(tmp_path, in_bucket=False) as open_writer:
        yield open_writer


def test_writers_share_rows_and_never_apply_a_request_twice(opened: OpenWriter) -> None:
    one, two = opened("one"), opened("two")
    one.load([frame(1, 0), frame(2, 10)])
    retried = two.load([frame(1, 0), frame(2, 20)])
    assert (retried.duplicates, retried.events) == (1, 3)
    assert (one.applied_seq, two.applied_seq) == (2, 2)
    for store in (one, two):
        with closing(store.cursor()) as cursor:
            assert cursor.execute("SELECT count(*) FROM events").fetchall() == [(9,)]
            assert cursor.execute("SELECT count(DISTINCT seq) FROM events").fetchall() == [(3,)]
    assert one.roll_up(START_US) == two.roll_up(START_US) == 2
    assert one.scalar("SELECT sum(count) FROM node_metrics") == 9


def test_a_writer_goes_on_where_it_was_and_nobody_takes_its_place(opened: OpenWriter) -> None:
    first = opened("one")
    first.load([frame(7, 0)])
    first.skip(8, is_dropped=True)
    with pytest.raises(StoreError, match="could not set lock on writer"):
        opened("one")
    first.close()
    again = opened("one")
    assert (again.applied_seq, again.requests_dropped) == (8, 1)
    assert again.load([frame(9, 0)]).duplicates == 1


def test_one_writer_maintains_the_lake_and_another_follows(opened: OpenWriter) -> None:
    one, two = opened("one"), opened("two")
    assert (one.owns_upkeep(), two.owns_upkeep(), one.owns_upkeep()) == (True, False, True)
    one.load([frame(1, 0)])
    one.load([frame(2, 10)])
    one.upkeep(START_US + 3_600_000_000)
    assert one.scalar("SELECT count(*) FROM applied_requests") == 0
    assert one.scalar("SELECT count(*) FROM meta WHERE key LIKE 'applied_seq/%'") == 1
    assert one._meta("applied_seq") == 2
    with closing(two.cursor()) as reader:
        assert reader.execute("SELECT count(*) FROM events").fetchall() == [(6,)]
        for statement in tidy_statements(START_US):
            one._execute(statement)
        for table in TABLES:  # files that were merged and rows that moved do not trouble readers
            reader.execute(f"SELECT count(*) FROM {table.name}").fetchall()
        assert reader.execute("SELECT count(*) FROM events").fetchall() == [(6,)]
    one.close()
    assert two.owns_upkeep()


def test_old_days_go_whole(opened: OpenWriter) -> None:
    store = opened("one")
    days = [frame(n + 1, 10 * n, START_US + n * DAY_US) for n in range(3)]
    store.load(days)
    assert store.delete_step("events", START_US + 2 * DAY_US, 1) == 6
    assert store.delete_step("events", None, 1) == 3
    assert store.delete_step("events", None, 1) == 0
    assert store._meta("rows_deleted") == 9


DOORS = [
    "SELECT * FROM postgres_query('__ducklake_metadata_lake', 'SELECT current_user')",
    "SELECT * FROM __ducklake_metadata_lake.ducklake_snapshot",
    "SELECT * FROM ducklake_snapshots('lake')",
    "SELECT * FROM ducklake_table_info('lake')",
    "SELECT * FROM read_parquet('{data}main/events/**/*.parquet')",
    "SELECT name FROM duckdb_secrets()",
    "SELECT * FROM lake.main.audit_log",
    "SELECT * FROM lake.main.events",
    "SELECT * FROM events AT (VERSION => 1)",
    "CALL ducklake_expire_snapshots('lake')",
]


@pytest.mark.parametrize("scope", [None, ["ours"]])
def test_no_door_of_the_lake_is_open_to_user_sql(
    opened: OpenWriter, scope: list[str] | None, tmp_path: Path
) -> None:
    store = opened("one")
    with writing(store) as connection:
        connection.execute(SEED)
    address, _ = lake_for(tmp_path / "lake", in_bucket=False)
    for door in DOORS:
        with (
            closing(store.cursor()) as cursor,
            pytest.raises(QueryFailed, match=r".") as refused,
        ):
            run_user_sql(cursor, door.format(data=address.data), scope, QueryLimits())
        assert refused.value.code in ("sql_refused", "bad_sql"), door
    with closing(store.cursor()) as cursor:
        found = run_user_sql(cursor, "SELECT DISTINCT cluster_id FROM events", scope, QueryLimits())
    assert [row[0] for row in found.rows] == ["ours"] if scope else len(found.rows) == 2


def test_the_role_of_readers_can_only_read(opened: OpenWriter) -> None:
    """The guard is not alone: PostgreSQL refuses what would get past it."""
    store = opened("one")
    with closing(store.cursor()) as cursor:
        with pytest.raises(duckdb.Error, match="read-only"):
            cursor.execute("INSERT INTO meta VALUES ('x', 1)")
        who = "SELECT * FROM postgres_query('__ducklake_metadata_lake', 'SELECT current_user')"
        assert cursor.execute(who).fetchall() == [(READER,)]
        for statement in ("DELETE FROM meta_x", "DROP TABLE IF EXISTS echo_writers", "SELECT 1; x"):
            with pytest.raises(duckdb.Error):
                cursor.execute(f"CALL postgres_execute('__ducklake_metadata_lake', '{statement}')")
    for (right,) in postgres().execute(
        "echo",
        f"SELECT privilege_type FROM information_schema.table_privileges WHERE "
        f"grantee = '{READER}'",
    ):
        assert right == "SELECT"


def test_trouble_with_the_engines_is_not_blamed_on_a_request() -> None:
    assert is_trouble(duckdb.IOException("IO Error: server closed the connection"))
    assert is_trouble(duckdb.TransactionException("conflict"))
    assert is_trouble(duckdb.Error("Failed to execute query BEGIN"))
    assert not is_trouble(duckdb.ConversionException("Could not convert 'postgres' to INT32"))
    assert not is_trouble(duckdb.OutOfMemoryException("failed to allocate"))


def test_a_missing_extension_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lake_connection.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(StoreError, match=r"pip install 'ingero\[lake\]'"):
        lake_connection.extension_file("ducklake")


def test_a_database_moves_whole_and_its_echo_continues(tmp_path: Path, opened: OpenWriter) -> None:
    opened("other").load([frame(1, 500)])
    file = tmp_path / "echo.db"
    store = DuckDbStore(file, MEMORY_BYTES, 1)
    store.load([frame(seq, 10 * seq) for seq in range(1, 6)])
    store.append_audit([[None] * 12])
    store.close()
    address, secrets = lake_for(tmp_path / "lake", in_bucket=False)
    with pytest.raises(StoreError, match="holds events of its own; `ingero-echo migrate"):
        open_store(file, url_of(address), secrets, MEMORY_BYTES, 1)
    assert verify(file).problems == [], "a start that was refused leaves the file in use"
    moved = {table.table: table for table in move_to_lake(file, address, secrets)}
    assert (moved["events"].rows, moved["audit_log"].rows) == (15, 1)
    again = open_store(file, url_of(address), secrets, MEMORY_BYTES, 1)
    try:
        assert again.applied_seq == 5
        assert again.scalar("SELECT count(*) FROM events") == 18
        assert again.load([frame(6, 10)]).duplicates == 1
    finally:
        again.close()
    with pytest.raises(StoreError, match="moved into the lake before"):
        move_to_lake(file, address, secrets)
    with pytest.raises(StoreError, match="lies in a lake"):
        verify(file)


def test_a_question_while_the_catalogue_is_away_says_so(opened: OpenWriter) -> None:
    store = opened("one")
    with closing(store.cursor()) as cursor:
        postgres().child.kill()
        try:
            with pytest.raises(QueryFailed) as failed:
                run_user_sql(cursor, "SELECT count(*) FROM events", None, QueryLimits())
        finally:
            postgres().start()
        assert failed.value.code == "unavailable"
    with closing(store.cursor()) as cursor:
        assert run_user_sql(cursor, "SELECT count(*) FROM events", None, QueryLimits()).rows == [
            [0]
        ]


def test_writers_that_start_together_create_the_lake_once(tmp_path: Path) -> None:
    address, secrets = lake_for(tmp_path / "lake", in_bucket=False)
    with ThreadPoolExecutor(3) as threads:
        stores = list(
            threads.map(
                lambda name: LakeStore(address, secrets, tmp_path / name, MEMORY_BYTES, 1), "abc"
            )
        )
    assert len({store.first_seq for store in stores}) == 3
    for store in stores:
        store.close()


def test_a_move_that_fails_leaves_the_file_in_use(
    tmp_path: Path, opened: OpenWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = opened("other")
    file = tmp_path / "echo.db"
    store = DuckDbStore(file, MEMORY_BYTES, 1)
    store.load([frame(1, 0)])
    store.close()
    address, secrets = lake_for(tmp_path / "lake", in_bucket=False)
    counts = iter([(3, 1), (0, 0), (2, 1)])  # one of three rows did not arrive
    monkeypatch.setattr(moving, "_counted", lambda *_: next(counts))
    with pytest.raises(StoreError, match="2 rows arrived of 3"):
        move_to_lake(file, address, secrets)
    monkeypatch.undo()
    assert verify(file).problems == []
    assert other.scalar("SELECT count(*) FROM events") == 0
    assert {table.table: table.rows for table in move_to_lake(file, address, secrets)}[
        "events"
    ] == 3


def test_an_identity_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    (tmp_path / "echo.db.writer").write_text("0123")
    with pytest.raises(StoreError, match="does not name a writer of a lake"):
        writer_identity(tmp_path / "echo.db")


def test_a_missing_client_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    address = parse_lake_address("ducklake:postgres://e@127.0.0.1:1/echo?data=/nowhere")
    with pytest.raises(StoreError, match=r"pip install 'ingero\[lake\]'"):
        Catalogue(address, LakeSecrets()).prepare()


def test_a_catalogue_that_nobody_serves_is_named(tmp_path: Path) -> None:
    address = parse_lake_address(f"ducklake:postgres://e@127.0.0.1:1/echo?data={tmp_path}")
    with pytest.raises(StoreError, match=r"cannot reach the catalogue on 127\.0\.0\.1:1"):
        LakeStore(address, LakeSecrets(), tmp_path / "echo.db", MEMORY_BYTES, 1)


def test_a_lake_of_the_version_before_gets_the_new_tables(opened: OpenWriter) -> None:
    """What arrived before is read from events, and what arrives after it from minutes."""
    before = opened("one")
    before.load([frame(1, 0), frame(2, 10)])
    before.roll_up(START_US)
    with writing(before) as connection:
        for table in ("arrivals", "straggler_events"):
            connection.execute(f"DROP TABLE {table}")
        connection.execute("DELETE FROM meta WHERE key LIKE 'arriv%' OR key = 'schema_version'")
        connection.execute("INSERT INTO meta VALUES ('schema_version', 7)")
    before.close()
    again = opened("one")
    again.load([frame(3, 20)])
    assert again.roll_up(START_US) == 1
    assert again.scalar("SELECT sum(events)::INT FROM arrivals") == 3
    assert again.scalar("SELECT max(value) FROM meta WHERE key = 'arrivals_from_us'") > START_US
    with closing(again.cursor()) as cursor:
        assert cursor.execute("SELECT count(*) FROM straggler_events").fetchall() == [(0,)]


_CLOSING = """
import sys
from pathlib import Path
from ingero.storage.events.lake.address import LakeSecrets, parse_lake_address
from ingero.storage.events.lake.store import LakeStore
url, beside, reader = sys.argv[1:]
secrets = LakeSecrets(reader_user=reader)
store = LakeStore(parse_lake_address(url), secrets, Path(beside), 1 << 29, 1)
for connection in (store._readers, store._connection):
    connection.execute("BEGIN")
    connection.execute("SELECT count(*) FROM lake.events").fetchall()
print("ready", flush=True)
sys.stdin.readline()
store.close()
print("closed", flush=True)
"""


def test_a_store_closes_while_postgresql_is_gone(tmp_path: Path) -> None:
    """DuckDB rolls an open transaction back in a destructor, and aborted the process."""
    address, _ = lake_for(tmp_path / "lake", in_bucket=False)
    command = [sys.executable, "-c", _CLOSING, url_of(address), str(tmp_path / "a"), READER]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, text=True, **pipes) as child:  # type: ignore[call-overload]
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        gone = postgres().execute(
            "echo",
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE "
            f"'%{address.schema}%' AND pid <> pg_backend_pid()",
        )
        assert gone
        said, _ = child.communicate("\n", timeout=60)
    assert (said, child.returncode) == ("closed\n", 0)
