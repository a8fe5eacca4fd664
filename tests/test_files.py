"""Atomic and private writes."""

import errno
import os
import re
import stat
from pathlib import Path

import pytest

from ingero.errors import StoreError
from ingero.files import (
    copy_file,
    create_private,
    open_own,
    replace_file,
    replacing,
    replacing_output,
)

SOURCE = Path(__file__).parents[1] / "src" / "ingero"


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


def test_a_link_pipe_or_second_name_is_not_written_through(tmp_path: Path) -> None:
    """As somebody else may have made them in a folder that everybody may write to."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / "link").symlink_to(victim)
    (tmp_path / "dangling").symlink_to(tmp_path / "made")
    os.mkfifo(tmp_path / "pipe")
    os.link(victim, tmp_path / "second")
    for name in ("link", "dangling", "pipe", "second"):
        for append in (False, True):
            with pytest.raises(OSError, match=name):
                open_own(tmp_path / name, append=append)
    assert victim.read_bytes() == b"precious"
    assert not (tmp_path / "made").exists()


def test_an_own_file_is_emptied_or_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for content, append in ((b"one", False), (b"two", True), (b"three", False)):
        with open_own(path, append=append) as file:
            file.write(content)
        assert path.read_bytes() == {b"two": b"onetwo"}.get(content, content)
    assert mode(path) == 0o600


def test_copies_replace_a_link_instead_of_following_it(tmp_path: Path) -> None:
    victim, source = tmp_path / "victim", tmp_path / "source"
    victim.write_bytes(b"precious")
    source.write_bytes(b"log")
    (tmp_path / "log.1").symlink_to(victim)
    copy_file(source, tmp_path / "log.1")
    assert (victim.read_bytes(), (tmp_path / "log.1").read_bytes()) == (b"precious", b"log")
    assert not (tmp_path / "log.1").is_symlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a link of another user")
def test_output_follows_own_links_but_no_strangers_ones_in_a_shared_folder(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"old")
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    link = shared / "out.json"
    link.symlink_to(target)
    with replacing_output(link) as file:
        file.write(b"own link")
    assert (link.is_symlink(), target.read_bytes()) == (True, b"own link")
    os.lchown(link, 12345, 12345)
    with pytest.raises(OSError, match="link of another user"), replacing_output(link) as file:
        file.write(b"stranger")
    assert target.read_bytes() == b"own link"


# Writes that need none of this: into private folders that the same process has just made, files of
# this repository, a pipe or device that the user named, and the name of a process in /proc.
OTHER_WRITES = {
    "agent/ebpf/probes/build.py", "children/copies.py", "cli/commands/export.py",
    "cli/reference.py", "files.py",
    "sim/cluster.py", "sim/hurry.py", "sim/inference/replicas.py", "storage/merge/source.py",
    "storage/trace/reading.py",
}  # fmt: skip
_OPENING = re.compile(
    r"(?<!def )(?<!super\(\)\.)write_text\(|write_bytes\(|O_CREAT|O_TRUNC"
    r"|shutil\.(copy|copy2|copyfile|move)\("
    r"|open\([^)\n]*[\"'][wax]b?\+?[\"']"
)


def test_files_are_written_by_one_module() -> None:
    """Anything else would have to think of links, pipes and power cuts again.

    Locks are opened without following links and hold nothing.
    """
    found = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if any(
            _OPENING.search(line) and "O_NOFOLLOW" not in line
            for line in path.read_text().splitlines()
        )
    }
    assert found == OTHER_WRITES
