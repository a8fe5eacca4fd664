"""All rings of this machine: found, checked, drained, and removed when their process ended.

Anybody on the machine may make files that look like rings. An error ends the reading of one ring
only, and each user has a number of rings, records per second and CPU time per second.
"""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from ingero.agent.nccl.folders import (
    remove_abandoned,
    remove_same,
    ring_files,
    ring_folders,
)
from ingero.agent.nccl.owners import Process, ProcessIndex
from ingero.agent.nccl.reader import RingReader
from ingero.agent.processes.budget import UserBudget
from ingero.agent.processes.discover import running_since
from ingero.contract.nccl_ring import Records, RingHeader
from ingero.core.collectives.columns import Collectives
from ingero.errors import AuthError, ForeignFile, IngeroError, Unavailable

SCAN_INTERVAL_S = 1.0
SCAN_SHARE = 0.05  # of one CPU: a folder with very many files is listed less often
SCAN_SLICE_S = 0.02  # of CPU time at once; the rest of the files is listed by later polls
FILES_AT_ONCE = 64  # between looks at the clock
IDLE_SCAN_SHARE = 0.002  # while there is no ring
LONGEST_IDLE_PAUSE_S = 5.0
LIVENESS_INTERVAL_S = 0.05  # between checks whether a process still runs
MAX_RINGS = 1024
MAX_RINGS_PER_USER = 256
OPENED_PER_SCAN = 64  # per user
MAX_REFUSED_PER_USER = 64  # reasons kept
# of one user; the busiest job we know writes 40,000 records a second per node
RECORDS_PER_S, RECORDS_BURST = 200_000, 400_000
CPU_PER_S, CPU_BURST_S = 0.2, 0.4


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

    @property
    def uid(self) -> int:
        return self.reader.file.st_uid

    def is_over(self, now_s: float, processes: ProcessIndex) -> bool:
        """Return whether the process has ended.

        This is checked only now and then, because a check costs as much as a poll.
        """
        if self.checked_s is not None and now_s - self.checked_s < LIVENESS_INTERVAL_S:
            return False
        self.checked_s = now_s
        header = self.reader.header
        return (
            processes.is_gone(header, now_s)
            if self.process is None
            else running_since(self.process.pid) != header.start_ticks
        )


class Rings:
    """The rings in some folders; one owner polls it.

    `refused` holds the files that are not trusted, with the reason, for as long as they exist.
    `left_out` is the number of rings that are not read because their users have too many. `cpu`
    and `records` are what the rings of each user may cost.
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
        self.left_out = 0
        self.cpu = UserBudget(CPU_PER_S, CPU_BURST_S)
        self.records = UserBudget(RECORDS_PER_S, RECORDS_BURST)
        self._folders = folders
        self._node = node
        self._open: dict[tuple[int, int], _Open] = {}
        self._users: Counter[int] = Counter()  # open rings
        self._refused_users: Counter[int] = Counter()
        self._processes = ProcessIndex()
        # drained rings, and when they may be removed
        self._finished: dict[tuple[int, int], tuple[Path, float]] = {}
        self._remove_after_s = remove_after_s
        self._scan_at_s: float | None = None
        self._listing: Iterator[None] | None = None  # of files, unfinished
        self._now_s = 0.0
        self._still_refused: set[Path] = set()

    def poll(self, now_s: float) -> list[RingBatch]:
        """Return everything new in all rings.

        Rings of ended processes are drained a last time and removed. Rings whose user has used up
        a budget wait for a later poll, and are then the first.
        """
        if self._scan_at_s is None or now_s >= self._scan_at_s:
            self._scan_at_s = now_s + self._scan_slice(now_s)
        batches, waiting = [], {}
        for key, ring in list(self._open.items()):
            if self.cpu.allows(ring.uid, now_s) and self.records.allows(ring.uid, now_s):
                before_s = time.thread_time()
                batch = self._drain(key, ring, now_s)
                self.cpu.spend(ring.uid, time.thread_time() - before_s, now_s)
                if ring.reader.copied:
                    self.records.spend(ring.uid, ring.reader.copied, now_s)
                if batch is not None:
                    batches.append(batch)
            else:
                waiting[key] = ring
        if waiting:
            self._open = waiting | self._open
        return batches

    def states(self) -> dict[str, int]:
        """Return how many rings are read, refused, and left out because of a limit."""
        return {"open": len(self._open), "refused": len(self.refused), "left_out": self.left_out}

    def notes(self) -> list[str]:
        """Return which files are not read, and why."""
        notes = list(self.refused.values())
        if self.left_out:
            notes.append(
                f"{self.left_out} rings are not read: up to {MAX_RINGS_PER_USER} of each user and "
                f"{MAX_RINGS} of all are"
            )
        return notes

    def pids(self) -> set[int]:
        """Return the processes with open rings, by their pids here, not those inside containers."""
        return {
            ring.process.pid if ring.process else ring.reader.header.pid
            for ring in self._open.values()
        }

    def close(self) -> None:
        """Close all files; nothing is removed."""
        for key in list(self._open):
            self._close(key)

    def _scan_slice(self, now_s: float) -> float:
        """List files for a while; return after how many seconds to go on or to begin anew."""
        before_s, listing = time.thread_time(), self._listing or self._scan()
        self._now_s, self._listing = now_s, listing
        is_unfinished = True
        while is_unfinished:
            is_unfinished = sum(1 for _ in islice(listing, FILES_AT_ONCE)) == FILES_AT_ONCE
            if time.thread_time() - before_s >= SCAN_SLICE_S:
                break
        if not is_unfinished:
            self._listing = None
            self._remove_finished(now_s)
        cost_s = time.thread_time() - before_s
        if self._listing is not None:
            return cost_s / SCAN_SHARE
        if not self._open and not self._finished and not self.left_out:
            return max(SCAN_INTERVAL_S, min(cost_s / IDLE_SCAN_SHARE, LONGEST_IDLE_PAUSE_S))
        return max(SCAN_INTERVAL_S, cost_s / SCAN_SHARE)

    def _scan(self) -> Iterator[None]:
        """Look at all files, one each time."""
        present: set[tuple[int, int]] = set()
        opened: Counter[int] = Counter()
        finished, left_out = set(self._finished), 0
        self._still_refused.clear()
        self._refused_users.clear()
        for path in ring_files(ring_folders() if self._folders is None else self._folders):
            yield
            if path is None:
                continue
            with suppress(OSError):  # removed between listing and opening
                status = path.lstat()
                key = (status.st_dev, status.st_ino)
                if key in self._finished:
                    present.add(key)
                elif path in self.refused:
                    self._refuse(path, status.st_uid, self.refused[path])
                elif key not in self._open:
                    opened[status.st_uid] += 1
                    if opened[status.st_uid] <= OPENED_PER_SCAN and self._has_room(status.st_uid):
                        self._open_ring(path, status.st_uid, self._now_s)
                    else:
                        left_out += 1
        self.left_out = left_out
        for gone in self.refused.keys() - self._still_refused:
            del self.refused[gone]
        for key in finished - present:
            self._finished.pop(key, None)

    def _has_room(self, uid: int) -> bool:
        """Return whether one more ring of a user may be opened.

        When all places are taken, the user with the most rings gives one up to those with fewer.
        """
        if self._users[uid] >= MAX_RINGS_PER_USER:
            return False
        if len(self._open) < MAX_RINGS:
            return True
        largest, most = self._users.most_common(1)[0]
        if self._users[uid] + 1 >= most:
            return False
        self._close(next(key for key, ring in self._open.items() if ring.uid == largest))
        return True

    def _open_ring(self, path: Path, uid: int, now_s: float) -> None:
        """Open a ring; `uid` is the user who owns the file."""
        try:
            reader = RingReader(path)
        except Unavailable:
            remove_abandoned(path)  # if still in use, it is opened by a later scan
            return
        except (ForeignFile, AuthError) as error:
            self._refuse(path, uid, str(error))
            return
        process = self._processes.find(reader.header, now_s)
        if process is not None and reader.file.st_uid not in process.uids:
            reader.close()
            reason = f"belongs to user {uid}, but its process {process.pid} does not"
            self._refuse(path, uid, f"{path} {reason}")
            return
        self._open[(reader.file.st_dev, reader.file.st_ino)] = _Open(reader, process)
        self._users[reader.file.st_uid] += 1

    def _close(self, key: tuple[int, int]) -> None:
        ring = self._open.pop(key)
        ring.reader.close()
        self._users[ring.uid] -= 1

    def _refuse(self, path: Path, uid: int, reason: str) -> None:
        self._refused_users[uid] += 1
        if self._refused_users[uid] <= MAX_REFUSED_PER_USER:
            self.refused[path] = reason
            self._still_refused.add(path)

    def _drain(self, key: tuple[int, int], ring: _Open, now_s: float) -> RingBatch | None:
        # checked first, so that the last poll has everything written before
        is_over = ring.is_over(now_s, self._processes)
        reader = ring.reader
        try:
            records = reader.poll(now_s, is_final=is_over)
            self._count(ring)
            if not is_over and not len(records):
                return None
            collectives = reader.collectives(records, self._node)
        # whatever is wrong with a ring must end the reading of this ring only
        except (IngeroError, OSError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            self._close(key)
            self._refuse(reader.path, ring.uid, str(error))
            return None
        if is_over:
            self._finish(key, reader, now_s)
        pid = ring.process.pid if ring.process else None
        return RingBatch(reader.header, pid, records, collectives, is_over)

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
        self._close(key)
        self._remove_finished(now_s)

    def _remove_finished(self, now_s: float) -> None:
        for key, (path, due_s) in self._finished.items():
            if due_s <= now_s:
                remove_same(path, key)
