"""Databases in folders that others may write to: no link of a stranger is written through."""

import os
import sqlite3
from pathlib import Path

import pytest
from tests.support.small_disk import mounted

from ingero.cli.dispatch import run
from ingero.errors import StoreError
from ingero.storage.events.file_store import DuckDbStore
from ingero.storage.lock import DatabaseLock
from ingero.storage.place import SQLITE_SUFFIXES, claim_names, make_own_folder
from ingero.storage.trace.database import TraceDb
from ingero.storage.trace.reading import connect_readonly

STRANGER = 12345
MEMORY = 64 << 20
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of others")


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """Return a folder like /tmp."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """Return a database that somebody else would like to be written to."""
    path = tmp_path / "victim.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE precious (a)")
    connection.close()
    return path


def test_a_recording_in_a_shared_folder_is_ours_alone(shared: Path) -> None:
    path = shared / "trace.db"
    with TraceDb(path, "n1"):
        names = {each.name for each in shared.iterdir()}
        assert {"trace.db", "trace.db-wal", "trace.db-shm"} <= names
        assert {each.stat().st_mode & 0o777 for each in shared.iterdir()} == {0o600}
    connect_readonly(path).close()
    with TraceDb(path, "n1"):
        pass


@needs_root
@pytest.mark.parametrize("suffix", SQLITE_SUFFIXES)
def test_no_link_of_a_stranger_is_written_through(shared: Path, victim: Path, suffix: str) -> None:
    before = victim.read_bytes()
    link = shared / f"trace.db{suffix}"
    link.symlink_to(victim)
    os.lchown(link, STRANGER, STRANGER)
    with pytest.raises(StoreError, match=r"link or a file of another user.*another place with --x"):
        TraceDb(shared / "trace.db", "n1", flag="--x")
    assert victim.read_bytes() == before
    left = {each.name for each in shared.iterdir()} - {"trace.db.lock"}
    assert left == {link.name}, "nothing is written beside it"


@needs_root
@pytest.mark.parametrize("suffix", SQLITE_SUFFIXES)
def test_files_that_a_stranger_has_put_there_are_not_used(shared: Path, suffix: str) -> None:
    """The log or journal of a stranger would be rolled into our database."""
    planted = shared / f"trace.db{suffix}"
    planted.write_bytes(b"")
    os.chown(planted, STRANGER, STRANGER)
    with pytest.raises(StoreError, match="file of another user"):
        TraceDb(shared / "trace.db", "n1")


@pytest.mark.parametrize("suffix", SQLITE_SUFFIXES)
def test_a_second_name_of_another_file_is_not_used(shared: Path, victim: Path, suffix: str) -> None:
    before = victim.read_bytes()
    os.link(victim, shared / f"trace.db{suffix}")
    with pytest.raises(StoreError, match="cannot be written"):
        TraceDb(shared / "trace.db", "n1")
    assert victim.read_bytes() == before


def test_the_lock_is_no_second_name_of_another_file(tmp_path: Path, victim: Path) -> None:
    before = victim.read_bytes()
    os.link(victim, tmp_path / "trace.db.lock")
    with pytest.raises(StoreError, match="is another file as well"):
        DatabaseLock(tmp_path / "trace.db")
    assert victim.read_bytes() == before


def test_where_everybody_may_exchange_files_nothing_is_recorded(shared: Path) -> None:
    shared.chmod(0o777)
    with pytest.raises(StoreError, match=r"everybody may exchange files in .*shared; name another"):
        TraceDb(shared / "trace.db", "n1")
    assert not (shared / "trace.db").exists()


def test_own_links_and_own_folders_are_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "elsewhere" / "real.db"
    target.parent.mkdir()
    (tmp_path / "trace.db").symlink_to(target)
    claim_names(tmp_path / "trace.db")
    assert not target.exists()
    TraceDb(target, "n1").close()
    TraceDb(tmp_path / "trace.db", "n1").close()
    assert (tmp_path / "trace.db").is_symlink()


@pytest.mark.parametrize("mode", [0o1777, 0o777, 0o702, 0o1770])
def test_echo_keeps_no_database_where_everybody_may_make_links(tmp_path: Path, mode: int) -> None:
    """DuckDB removes and makes its log as it goes, and follows a link of that name."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(StoreError, match=r"everybody may make links in .*shared; name a path"):
        DuckDbStore(folder / "echo.duckdb", MEMORY, 1)
    assert not list(folder.iterdir())
    (tmp_path / "echo.duckdb").symlink_to(folder / "echo.duckdb")
    with pytest.raises(StoreError, match="everybody may make links in"):
        DuckDbStore(tmp_path / "echo.duckdb", MEMORY, 1)
    assert not list(folder.iterdir())


def test_echo_keeps_its_database_in_a_folder_of_its_own(tmp_path: Path) -> None:
    DuckDbStore(tmp_path / "echo.duckdb", MEMORY, 1)._connection.close()
    assert (tmp_path / "echo.duckdb").exists()


@pytest.mark.parametrize("mode", ["0777", "2775"])
def test_volumes_of_containers_are_folders_of_their_own(tmp_path: Path, mode: str) -> None:
    with mounted(tmp_path, "32m", mode) as volume:
        DuckDbStore(volume / "echo.duckdb", MEMORY, 1)._connection.close()
        TraceDb(volume / "trace.db", "n1").close()
        for name in ("other.duckdb.wal", "other.duckdb"):
            (volume / name).symlink_to(tmp_path.parent / "victim")
            os.lchown(volume / name, STRANGER, STRANGER)
            with pytest.raises(StoreError, match="link or a file of another user"):
                DuckDbStore(volume / "other.duckdb", MEMORY, 1)
            (volume / name).unlink()


def test_secrets_get_a_folder_of_their_own(tmp_path: Path) -> None:
    make_own_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    make_own_folder(tmp_path / "a" / "b")
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="File exists; name another path"):
        make_own_folder(tmp_path / "file")
    for mode in (0o777, 0o1777, 0o770, 0o702):
        (tmp_path / "a" / "b").chmod(mode)
        with pytest.raises(StoreError, match=r"others may write to it; name a new folder"):
            make_own_folder(tmp_path / "a" / "b")


@needs_root
def test_a_folder_or_link_of_a_stranger_holds_no_secrets(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o700)
    own = tmp_path / "own"
    own.mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(own)
    make_own_folder(tmp_path / "link")
    os.chown(theirs, STRANGER, STRANGER)
    os.lchown(tmp_path / "link", STRANGER, STRANGER)
    for name in ("theirs", "link"):
        with pytest.raises(StoreError, match="belongs to another user"):
            make_own_folder(tmp_path / name)


@needs_root
@pytest.mark.parametrize("squatted", ["", "tokens", "state", "tls"])
def test_fleet_init_trusts_no_folder_that_somebody_has_prepared(
    tmp_path: Path, squatted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """As another user may do in /tmp, to exchange tokens or configuration later."""
    prepared = tmp_path / "fleet" / squatted
    prepared.mkdir(parents=True)
    os.chown(prepared, STRANGER, STRANGER)
    assert run(["fleet", "init", str(tmp_path / "fleet"), "--name", "localhost"]) != 0
    assert "belongs to another user" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.key"))
