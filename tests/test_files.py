"""Atomic and private writes."""

import errno
import stat
from pathlib import Path

import pytest

from ingero.errors import StoreError
from ingero.files import create_private, replace_file, replacing


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


def test_a_missing_folder_is_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot write .*: No such file or directory"):
        replace_file(tmp_path / "gone" / "file", b"")


def test_a_write_that_fails_leaves_the_old_content_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    path.write_bytes(b"old")

    def fail_half_way() -> None:
        with replacing(path, mode=0o644) as file:
            file.write(b"new")
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        fail_half_way()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_private_file_is_created_once_and_never_through_a_link(tmp_path: Path) -> None:
    create_private(tmp_path / "token", b"secret")
    assert ((tmp_path / "token").read_bytes(), mode(tmp_path / "token")) == (b"secret", 0o600)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name in ("token", "link"):
        with pytest.raises(FileExistsError):
            create_private(tmp_path / name)
    assert not (tmp_path / "elsewhere").exists()
