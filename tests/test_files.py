"""Replacing a small file as a whole."""

import stat
from pathlib import Path

import pytest

from ingero.errors import StoreError
from ingero.files import replace_file


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_file_is_its_owners_alone_and_an_old_one_keeps_its_permissions(
    tmp_path: Path,
) -> None:
    path = tmp_path / "silences.json"
    replace_file(path, b"one")
    assert (path.read_bytes(), mode(path)) == (b"one", 0o600)
    path.chmod(0o640)
    replace_file(path, b"two", new_mode=0o644)
    assert (path.read_bytes(), mode(path)) == (b"two", 0o640)
    assert [each.name for each in tmp_path.iterdir()] == ["silences.json"]


def test_a_place_that_does_not_exist_is_said(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot write .*: No such file or directory"):
        replace_file(tmp_path / "gone" / "file", b"")
