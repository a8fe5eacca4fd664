"""What a lake says when its engines refuse, vanish or are busy, and that nothing is lost by it."""

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest
from tests.support.echo_samples import metrics_body
from tests.support.lakes import LOCKED, PASSWORD, READER, lake_for, url_of
from tests.support.waiting import until

from ingero.contract.otlp.rows import Signal
from ingero.echo.maintenance import move_to_lake
from ingero.errors import StoreError
from ingero.storage.events.file_store import DuckDbStore
from ingero.storage.events.lake import catalogue as lake_catalogue
from ingero.storage.events.lake import moving
from ingero.storage.events.lake.address import LakeAddress, LakeSecrets
from ingero.storage.events.lake.catalogue import Catalogue
from ingero.storage.events.lake.connection import describe_failure
from ingero.storage.events.lake.identity import is_in_lake, mark_moved
from ingero.storage.events.lake.store import LakeStore
from ingero.storage.events.opening import open_store
from ingero.storage.journal.frames import Frame

MEMORY = 512 << 20
START_US = 1_763_168_400_000_000
HOUR_S = 3600


def frame(seq: int, first: int, received_us: int = START_US) -> Frame:
    return Frame(seq, 0, received_us, Signal.METRICS, metrics_body(points=3, first=first))


@pytest.fixture
def lake(tmp_path: Path) -> tuple[LakeAddress, LakeSecrets]:
    return lake_for(tmp_path / "lake", in_bucket=False)


@pytest.fixture
def store(lake: tuple[LakeAddress, LakeSecrets], tmp_path: Path) -> Iterator[LakeStore]:
    opened = LakeStore(*lake, tmp_path / "one", MEMORY, 1)
    yield opened
    opened.close()


REFUSED = [
    ({"database": "nowhere"}, {}, 'refuses the connection: database "nowhere" does not exist'),
    ({"user": "nobody"}, {}, 'refuses the connection: role "nobody" does not exist'),
    ({"user": LOCKED}, {"password": "x" * 20}, "password authentication failed"),
    ({"user": READER}, {}, "permission denied for database echo; docs/how-to/share-echo.md"),
    ({}, {"reader_user": "nobody"}, "create that role, or leave reader_user out"),
    ({"ssl_mode": "require"}, {}, "cannot reach the catalogue on .* does not support SSL"),
    ({"port": 1}, {}, "cannot reach the catalogue on 127.0.0.1:1: .* refused"),
]


@pytest.mark.parametrize(("where", "secrets", "said"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_postgresql_refuses_is_told_with_what_to_do(
    lake: tuple[LakeAddress, LakeSecrets],
    where: dict[str, object],
    secrets: dict[str, str],
    said: str,
) -> None:
    address, own = lake
    catalogue = Catalogue(replace(address, **where), replace(own, **secrets))
    with closing(catalogue), pytest.raises(StoreError, match=said) as refused:
        catalogue.prepare()
    assert len(str(refused.value).splitlines()) == 1
    assert "x" * 20 not in str(refused.value)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            'Failed to get files: Failed to prepare COPY "COPY (SELECT "a"\nFROM "b") TO STDOUT": '
            "server closed the connection",
            "the lake does not answer: Failed to get files: Failed to prepare COPY: "
            "server closed the connection",
        ),
        (
            "HTTP Error: Unable to connect to URL s3://b/f: Forbidden (HTTP code 403)",
            "the object storage refuses a request: HTTP Error: Unable to connect to URL s3://b/f: "
            "Forbidden (HTTP code 403); the bucket is in the address of the lake, its keys are in "
            "store_secrets_file",
        ),
        (
            "HTTP Error: Request returned HTTP 500 for HTTP PUT to 'http://h/f'",
            "the object storage fails, it may be full: HTTP Error: Request returned HTTP 500 for "
            "HTTP PUT to 'http://h/f'",
        ),
    ],
)
def test_what_failed_of_a_lake_is_told_in_one_sentence(error: str, said: str) -> None:
    assert describe_failure(duckdb.Error(error)) == said


def test_a_wrong_password_of_readers_is_told_without_the_password(
    lake: tuple[LakeAddress, LakeSecrets], tmp_path: Path
) -> None:
    address, secrets = lake
    wrong = replace(secrets, reader_user=LOCKED, reader_password="x" * 20)
    with pytest.raises(StoreError, match="password authentication failed") as refused:
        LakeStore(address, wrong, tmp_path / "one", MEMORY, 1)
    assert "x" * 20 not in str(refused.value)
    right = replace(secrets, reader_user=LOCKED, reader_password=PASSWORD)
    LakeStore(address, right, tmp_path / "one", MEMORY, 1).close()


def test_a_start_that_waits_too_long_for_another_one_says_so(
    lake: tuple[LakeAddress, LakeSecrets], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_catalogue, "_LOCK_WAIT_MS", 50)
    refused = pytest.raises(StoreError, match="another Echo starts or upgrades this lake")
    with (
        closing(Catalogue(*lake)) as first,
        closing(Catalogue(*lake)) as second,
        first.alone(),
        refused,
        second.alone(),
    ):
        pass


def test_either_side_notices_that_the_host_of_the_other_one_is_gone(store: LakeStore) -> None:
    """Else a lock of an Echo that vanished would last for two hours, and so would its loads."""
    catalogue = store._catalogue
    asked = "SELECT current_setting($$tcp_keepalives_idle$$)"
    assert catalogue._execute(asked) == [("10",)]
    on = "SELECT * FROM postgres_query('__ducklake_metadata_lake', '{}')"
    assert store.scalar(on.format(asked)) == "10"
    connection = catalogue._connection
    assert connection is not None
    with socket.socket(fileno=os.dup(connection.fileno())) as own:
        assert own.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
        assert own.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 10


def test_a_load_that_postgresql_still_works_on_ends_before_it_is_loaded_again(
    lake: tuple[LakeAddress, LakeSecrets], store: LakeStore, tmp_path: Path
) -> None:
    """Its connection broke or its process was killed, but it may be committing."""
    psycopg = pytest.importorskip("psycopg")
    address = store._catalogue._address
    where = address.catalogue(store._catalogue.session)

    def check_ended(by: Callable[[], object]) -> None:
        with closing(psycopg.connect(**where, user=address.user)) as left_over:
            left_over.execute("SELECT 1")
            by()
            with pytest.raises(psycopg.OperationalError):
                left_over.execute("SELECT 1")

    check_ended(store.recover)
    assert store.load([frame(1, 0)]).events == 3
    store.close()
    check_ended(lambda: LakeStore(*lake, tmp_path / "one", MEMORY, 1).close())


def old_file(address: LakeAddress) -> Path:
    """Return a file that no commit names, of two hours ago."""
    file = Path(address.data, "main", "events", "left.parquet")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"")
    os.utime(file, (time.time() - 2 * HOUR_S,) * 2)
    return file


def test_files_of_a_move_that_takes_hours_are_no_orphans(
    lake: tuple[LakeAddress, LakeSecrets], store: LakeStore
) -> None:
    store.load([frame(1, 0)])
    now_us = time.time_ns() // 1000
    file = old_file(lake[0])
    with closing(Catalogue(*lake)) as move:
        move.keep_files()
        store._tidied_s = -HOUR_S
        store.upkeep(now_us)
        assert file.exists()
        move.check_kept()

    def is_removed() -> bool:  # PostgreSQL ends the lock soon after the connection
        store._tidied_s = -HOUR_S
        store.upkeep(now_us)
        return not file.exists()

    until(is_removed)


def test_an_owner_of_upkeep_whose_clock_is_ahead_deletes_nothing_of_others(
    lake: tuple[LakeAddress, LakeSecrets], store: LakeStore
) -> None:
    now_us = time.time_ns() // 1000
    store.load([frame(1, 0, now_us)])
    file = old_file(lake[0])
    os.utime(file)
    store._tidied_s = -HOUR_S
    store.upkeep(now_us + 48 * HOUR_S * 1_000_000)
    assert file.exists()
    assert store.scalar("SELECT count(*) FROM applied_requests") == 1


def test_a_move_that_nobody_confirmed_is_found_out_by_the_next_one(
    lake: tuple[LakeAddress, LakeSecrets], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "echo.db"
    own = DuckDbStore(file, MEMORY, 1)
    own.load([frame(1, 0)])
    own.close()

    class Unconfirmed:
        """Commits, and hears nothing of it."""

        def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
            self._connection = connection

        def execute(self, statement: str) -> None:
            self._connection.execute(statement)
            raise duckdb.IOException("IO Error: server closed the connection")

    commit = moving._commit
    monkeypatch.setattr(moving, "_commit", lambda on, file: commit(Unconfirmed(on), file))  # type: ignore[arg-type]
    with pytest.raises(StoreError, match=r"did not confirm .* run the same command again"):
        move_to_lake(file, *lake)
    assert not is_in_lake(file)
    with pytest.raises(StoreError, match="was moved into the lake before"):
        move_to_lake(file, *lake)
    assert is_in_lake(file)
    with closing(open_store(file, url_of(lake[0]), lake[1], MEMORY, 1)) as moved:
        assert moved.scalar("SELECT count(*) FROM events") == 3


def test_an_echo_whose_events_are_in_a_lake_does_not_go_on_in_its_file(tmp_path: Path) -> None:
    file = tmp_path / "echo.db"
    DuckDbStore(file, MEMORY, 1).close()
    mark_moved(file)
    with pytest.raises(StoreError, match="are in a lake; start Echo with --store"):
        open_store(file, "", LakeSecrets(), MEMORY, 1)
