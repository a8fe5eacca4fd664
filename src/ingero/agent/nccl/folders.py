"""Where rings are: shared-memory folders of this machine and of its containers."""

import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ingero.agent.processes.discover import process_ids, running_since
from ingero.contract.names import RING_FOLDER
from ingero.contract.nccl_ring import NAME_PATTERN

RUN_FOLDERS = "ingero-run-"  # made by `ingero run --keep-rings`
MAX_RUN_FOLDERS = 64  # per user
_NAME = re.compile(NAME_PATTERN)


def ring_files(folders: tuple[Path, ...]) -> Iterator[Path]:
    """Yield the files that are named like rings, in no order."""
    for folder in folders:
        with suppress(OSError), os.scandir(folder) as entries:
            yield from (Path(entry.path) for entry in entries if _NAME.fullmatch(entry.name))


def ring_folders() -> tuple[Path, ...]:
    """Return the shared-memory folders of this machine and, where readable, of containers."""
    found: dict[tuple[int, int], Path] = {}
    for folder in (Path(RING_FOLDER), *_container_folders()):
        with suppress(OSError):
            status = folder.stat()
            found.setdefault((status.st_dev, status.st_ino), folder)
    return tuple(found.values()) + tuple(
        sub for folder in found.values() for sub in _run_folders(folder)
    )


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
            namespace = str(Path(f"/proc/{pid}/ns/mnt").readlink())
            if namespace not in seen:
                seen.add(namespace)
                yield Path(f"/proc/{pid}/root{RING_FOLDER}")


def is_kept(path: Path) -> bool:
    """Return whether a ring is in a folder whose owner wants to keep it."""
    return path.parent.name.startswith(RUN_FOLDERS)


def remove_same(path: Path, key: tuple[int, int]) -> None:
    """Remove a ring if it still is the file with this device and inode.

    The folder is opened first: a container may exchange its folder for a link to ours between the
    look and the removal, and would remove a ring of somebody else.
    """
    with suppress(OSError):  # already removed, or not ours to remove
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            status = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
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
