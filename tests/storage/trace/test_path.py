"""The trace database belongs to the caller, also under sudo."""

import os
import pwd
from pathlib import Path

import pytest

from ingero.storage import caller as storage_caller
from ingero.storage.caller import caller, give_to_caller
from ingero.storage.trace.database import TraceDb
from ingero.storage.trace.path import default_path


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("SUDO_UID", "SUDO_GID", "INGERO_DB"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def as_sudo(monkeypatch: pytest.MonkeyPatch, home: Path) -> pwd.struct_passwd:
    """Pretend that a user with this home called us through sudo."""
    if os.geteuid() != 0:
        pytest.skip("needs root to act for somebody else")
    person = pwd.struct_passwd(("ana", "x", 54321, 54321, "", str(home), "/bin/sh"))
    monkeypatch.setenv("SUDO_UID", "54321")
    monkeypatch.setattr(
        storage_caller.pwd, "getpwuid", lambda uid: person if uid == 54321 else pwd.getpwnam("root")
    )
    return person


def test_default_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_path() == tmp_path / ".ingero" / "ingero.db"
    monkeypatch.setenv("INGERO_DB", "/somewhere/else.db")
    assert default_path() == Path("/somewhere/else.db")


def test_under_sudo_the_file_lies_in_the_home_of_the_caller_and_is_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    person = as_sudo(monkeypatch, tmp_path / "ana")
    (tmp_path / "ana").mkdir()
    assert caller() == person
    path = default_path()
    assert path == tmp_path / "ana" / ".ingero" / "ingero.db"
    db = TraceDb(path, "n")
    db.execute("INSERT INTO schema_info VALUES ('x', 'y')")
    for file in path.parent.iterdir():
        assert (file.stat().st_uid, file.stat().st_gid) == (54321, 54321), file
    db.close()
    assert path.parent.stat().st_uid == 54321
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_link_is_not_followed_when_files_are_handed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_sudo(monkeypatch, tmp_path)
    (tmp_path / "target").write_text("root's")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    give_to_caller(tmp_path / "link")
    assert (tmp_path / "target").stat().st_uid == 0
    assert (tmp_path / "link").lstat().st_uid == 54321


def test_sudo_variables_mean_nothing_without_root(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SUDO_UID", "54321")
    monkeypatch.setattr(storage_caller.os, "geteuid", lambda: 1000)
    assert default_path() == tmp_path / ".ingero" / "ingero.db"
