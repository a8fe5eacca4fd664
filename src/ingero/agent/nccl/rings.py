"""All rings of this machine: found, checked, drained, and removed when their process ended."""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ingero.agent.nccl.reader import RingReader
from ingero.agent.processes.discover import process_ids, running_since
from ingero.contract.names import RING_FOLDER
from ingero.contract.nccl_ring import NAME_PATTERN, Records, RingHeader
from ingero.core.collectives.columns import Collectives
from ingero.errors import AuthError, ForeignFile, IngeroError, Unavailable

SCAN_INTERVAL_S = 1.0
LIVENESS_INTERVAL_S = 0.05  # between checks whether a process still runs
MAX_RINGS = 1024
MAX_REFUSED = 1024  # reasons kept
RUN_FOLDERS = "ingero-run-*"  # made by `ingero run --keep-rings`
INITIAL_PID_NAMESPACE = 0xEFFFFFFC
_NAME = re.compile(NAME_PATTERN)


@dataclass(frozen=True, slots=True)
class Process:
    """A running process as seen from here."""

    pid: int
    uids: frozenset[int]


@dataclass(frozen=True, slots=True)
class RingBatch:
    """What one poll read from one ring."""

    header: RingHeader
    pid: int | None
    records: Records
    collectives: Collectives
    is_last: bool


@dataclass(slots=True)
class RingCounts:
    """Totals over all rings, removed ones included."""

    records: int = 0
    missed: int = 0
    torn: int = 0
    dropped: int = 0


@dataclass(slots=True)
class _Open:
    reader: RingReader
    process: Process | None
    seen: RingCounts = field(default_factory=RingCounts)
    checked_s: float | None = None

    def is_over(self, now_s: float) -> bool:
        """Return whether the process has ended.

        This is checked only now and then, because a check costs as much as a poll.
        """
        if self.checked_s is not None and now_s - self.checked_s < LIVENESS_INTERVAL_S:
            return False
        self.checked_s = now_s
        header = self.reader.header
        return (
            is_gone(header)
            if self.process is None
            else running_since(self.process.pid) != header.start_ticks
        )


class Rings:
    """The rings in some folders; one owner polls it.

    `refused` holds the files that are not trusted, with the reason, for as long as they exist.
    """

    def __init__(
        self,
        folders: tuple[Path, ...] | None = None,
        node: str | None = None,
        *,
        remove_after_s: float = 0.0,
    ) -> None:
        """Read the rings in `folders`, or those of all processes.

        A second reader of the same rings gives the first one `remove_after_s` to read and remove
        the rings of ended processes.
        """
        self.counts = RingCounts()
        self.refused: dict[Path, str] = {}
        self._folders = folders
        self._node = node
        self._open: dict[tuple[int, int], _Open] = {}
        # drained rings, and when they may be removed
        self._finished: dict[tuple[int, int], tuple[Path, float]] = {}
        self._remove_after_s = remove_after_s
        self._scanned_s: float | None = None

    def poll(self, now_s: float) -> list[RingBatch]:
        """Return everything new in all rings.

        Rings of ended processes are drained a last time and removed.
        """
        if self._scanned_s is None or now_s - self._scanned_s >= SCAN_INTERVAL_S:
            self._scanned_s = now_s
            self._scan()
            self._remove_finished(now_s)
        batches = (self._drain(key, ring, now_s) for key, ring in list(self._open.items()))
        return [batch for batch in batches if batch is not None]

    def pids(self) -> set[int]:
        """Return the processes with open rings, by their pids here, not those inside containers."""
        return {
            ring.process.pid if ring.process else ring.reader.header.pid
            for ring in self._open.values()
        }

    def close(self) -> None:
        """Close all files; nothing is removed."""
        for ring in self._open.values():
            ring.reader.close()
        self._open.clear()

    def _scan(self) -> None:
        present = set()
        paths = list(ring_files(ring_folders() if self._folders is None else self._folders))
        self.refused = {path: self.refused[path] for path in paths if path in self.refused}
        for path in paths:
            with suppress(OSError):  # removed between listing and opening
                status = path.lstat()
                key = (status.st_dev, status.st_ino)
                present.add(key)
                is_new = (
                    key not in self._open and key not in self._finished and path not in self.refused
                )
                if is_new and len(self._open) < MAX_RINGS:
                    self._open_ring(path)
        self._finished = {key: value for key, value in self._finished.items() if key in present}

    def _open_ring(self, path: Path) -> None:
        try:
            reader = RingReader(path)
        except Unavailable:
            _remove_abandoned(path)  # if still in use, it is opened by a later scan
            return
        except (ForeignFile, AuthError) as error:
            self._refuse(path, error)
            return
        process = find_process(reader.header)
        if process is not None and reader.file.st_uid not in process.uids:
            reader.close()
            self._refuse(
                path,
                AuthError(
                    f"{path} belongs to user {reader.file.st_uid}, "
                    f"but its process {process.pid} does not"
                ),
            )
            return
        self._open[(reader.file.st_dev, reader.file.st_ino)] = _Open(reader, process)

    def _refuse(self, path: Path, error: IngeroError) -> None:
        if len(self.refused) < MAX_REFUSED:
            self.refused[path] = str(error)

    def _drain(self, key: tuple[int, int], ring: _Open, now_s: float) -> RingBatch | None:
        is_over = ring.is_over(
            now_s
        )  # checked first, so that the last poll has everything written before
        reader = ring.reader
        try:
            records = reader.poll(now_s, is_final=is_over)
        except ForeignFile as error:
            reader.close()
            del self._open[key]
            self._refuse(reader.path, error)
            return None
        self._count(ring)
        if is_over:
            self._finish(key, reader, now_s)
        elif not len(records):
            return None
        pid = ring.process.pid if ring.process else None
        return RingBatch(
            reader.header, pid, records, reader.collectives(records, self._node), is_over
        )

    def _count(self, ring: _Open) -> None:
        reader, seen = ring.reader, ring.seen
        now = RingCounts(reader.read, reader.missed, reader.torn, reader.counters()["dropped"])
        self.counts.records += now.records - seen.records
        self.counts.missed += now.missed - seen.missed
        self.counts.torn += now.torn - seen.torn
        self.counts.dropped += now.dropped - seen.dropped
        ring.seen = now

    def _finish(self, key: tuple[int, int], reader: RingReader, now_s: float) -> None:
        """Close a drained ring.

        It is removed when it is due, and not read again where it has to stay.
        """
        self._finished[key] = (reader.path, now_s + self._remove_after_s)
        reader.close()
        del self._open[key]
        self._remove_finished(now_s)

    def _remove_finished(self, now_s: float) -> None:
        for key, (path, due_s) in self._finished.items():
            if due_s <= now_s and not path.parent.match(RUN_FOLDERS):
                with suppress(OSError):  # already removed, or not ours to remove
                    status = path.lstat()
                    if (status.st_dev, status.st_ino) == key:
                        path.unlink()


def ring_files(folders: tuple[Path, ...]) -> Iterator[Path]:
    """Yield the files that are named like rings."""
    for folder in folders:
        with suppress(OSError), os.scandir(folder) as entries:
            yield from sorted(Path(entry.path) for entry in entries if _NAME.fullmatch(entry.name))


def ring_folders() -> tuple[Path, ...]:
    """Return the shared-memory folders of this machine and, where readable, of containers."""
    found: dict[tuple[int, int], Path] = {}
    for folder in (Path(RING_FOLDER), *_container_folders()):
        with suppress(OSError):
            status = folder.stat()
            found.setdefault((status.st_dev, status.st_ino), folder)
    return tuple(found.values()) + tuple(
        sub for folder in found.values() for sub in sorted(folder.glob(RUN_FOLDERS))
    )


def _container_folders() -> Iterator[Path]:
    seen: set[str] = set()
    for pid in sorted(process_ids()):
        with suppress(OSError):
            namespace = str(Path(f"/proc/{pid}/ns/mnt").readlink())
            if namespace not in seen:
                seen.add(namespace)
                yield Path(f"/proc/{pid}/root{RING_FOLDER}")


def find_process(header: RingHeader) -> Process | None:
    """Find the process that made a ring, also in a container with its own pids."""
    candidates = [header.pid] if header.pid_namespace == _pid_namespace() else sorted(process_ids())
    for pid in candidates:
        if running_since(pid) == header.start_ticks:
            fields = _status(pid)
            if fields.get("NSpid", [str(pid)])[-1] == str(header.pid):
                return Process(pid, frozenset(int(uid) for uid in fields.get("Uid", [])))
    return None


def is_gone(header: RingHeader) -> bool:
    """Return whether the process of a ring has certainly ended; False where it is not visible."""
    if header.pid_namespace == _pid_namespace():
        return running_since(header.pid) != header.start_ticks
    return _pid_namespace() == INITIAL_PID_NAMESPACE and find_process(header) is None


def _remove_abandoned(path: Path) -> None:
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


def _status(pid: int) -> dict[str, list[str]]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    except OSError:
        return {}
    return {name: rest.split() for name, _, rest in (line.partition(":") for line in lines)}


def _pid_namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino
