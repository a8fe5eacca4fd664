"""Where rings are: shared-memory folders of this machine and of its containers."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from ingero.agent.processes.discover import process_ids, running_since
from ingero.contract.names import RING_FOLDER
from ingero.contract.nccl_ring import NAME_PATTERN

RUN_FOLDERS = "ingero-run-"  # made by `ingero run --keep-rings`
MAX_RUN_FOLDERS = 64  # per user
_NAME = re.compile(NAME_PATTERN)


def ring_files(folders: Iterable[Path]) -> Iterator[Path | None]:
    """Yield the files that are named like rings, in no order, and None for other files.

    Anybody may make millions of either, so that the caller may have to stop in between.
    """
    for folder in folders:
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                yield Path(entry.path) if _NAME.fullmatch(entry.name) else None
        yield None


def ring_folders() -> Iterator[Path]:
    """Yield the shared-memory folders of this machine and, where readable, of containers."""
    found: dict[tuple[int, int], Path] = {}
    for folder in (Path(RING_FOLDER), *_container_folders()):
        with suppress(OSError):
            status = folder.stat()
            if found.setdefault((status.st_dev, status.st_ino), folder) is folder:
                yield folder
    for folder in found.values():
        yield from _run_folders(folder)


def _run_folders(folder: Path) -> Iterator[Path]:
    """Yield folders of kept rings, not links to folders, and a limited number for each user."""
    users: Counter[int] = Counter()
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(RUN_FOLDERS) and entry.is_dir(follow_symlinks=False):
                uid = entry.stat(follow_symlinks=False).st_uid
                users[uid] += 1
                if users[uid] <= MAX_RUN_FOLDERS:
                    yield Path(entry.path)


def _container_folders() -> Iterator[Path]:
    seen: set[str] = set()
    for pid in sorted(process_ids()):
        with suppress(OSError):
            namespace = os.readlink(f"/proc/{pid}/ns/mnt")  # noqa: PTH115 - for every process
            if namespace not in seen:
                seen.add(namespace)
                folder = Path(f"/proc/{pid}/root{RING_FOLDER}")
                # a process may have changed its root to a folder of its own, with links to others
                if not any(each.is_symlink() for each in (folder.parent, folder)):
                    yield folder


def remove_same(path: Path, key: tuple[int, int]) -> None:
    """Remove a ring if it still is the file with this device and inode, and need not be kept.

    The folder is opened first: a container may exchange its folder for a link to ours between the
    look and the removal, and would remove a ring of somebody else. What the kernel calls the opened
    folder decides whether its owner wants to keep rings, not the path that led there.
    """
    with suppress(OSError):  # already removed, or not ours to remove
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            status = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
            opened = os.readlink(f"/proc/self/fd/{folder}")  # noqa: PTH115 - one call
            if opened.rpartition("/")[2].startswith(RUN_FOLDERS):
                return
            if (status.st_dev, status.st_ino) == key:
                os.unlink(path.name, dir_fd=folder)
        finally:
            os.close(folder)


def remove_abandoned(path: Path) -> None:
    """Remove a ring whose process died while creating it.

    Only in our own folder, where the pid in its name is valid.
    """
    named = _NAME.fullmatch(path.name)
    if (
        named
        and path.parent == Path(RING_FOLDER)
        and running_since(int(named["pid"])) != int(named["ticks"])
    ):
        with suppress(OSError):
            path.unlink()
