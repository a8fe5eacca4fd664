"""Sources of live collectives: the rings of the NCCL plugin, or the trace database of a recorder.

Reading a ring does not disturb its writer, so `ingero trace` and `ingero fleet-push` may read the
same one. The recorder removes the rings of ended processes; this reader waits a minute before it
does so itself.
"""

import math
import os
import sqlite3
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from ingero.agent.nccl.rings import RingBatch, Rings
from ingero.contract.collective import CollectiveRecord, CollectiveSource
from ingero.contract.names import RING_FOLDER_VARIABLE
from ingero.core.collectives.barrier import barrier_waits
from ingero.core.collectives.columns import SOURCES, Collectives, concat, from_records
from ingero.core.collectives.live_steps import FinishedSteps, StepTimes
from ingero.core.collectives.pairs.live_exchanges import EXCHANGES, after_anchors
from ingero.core.collectives.plugin_records import to_records
from ingero.errors import IngeroError
from ingero.storage.trace.collectives import follow_collectives, read_waits

REMOVE_AFTER_S: Final = 60.0
MAX_ROWS_PER_ROUND: Final = 10_000
MAX_BEHIND: Final = 100_000  # rows; older ones are too old for a verdict about the present
MAX_WAITS: Final = 50_000  # per round
MAX_NS: Final = 2**63 - 1
RankKey = tuple[str | None, int | None, int, CollectiveSource]  # job, global rank, process, source
Rows = NDArray[np.intp]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBatch:
    """New collectives of one rank.

    `key` stays the same while its process lives; `pick` turns row numbers into records.
    """

    key: Hashable
    pid: int = 0
    job: str | None
    rank: int | None
    local_rank: int | None = None
    world_size: int | None = None
    collectives: Collectives
    pick: Callable[[Rows], list[CollectiveRecord]]
    # by operation: how often the host waited for its stream
    barriers: Mapping[str, int] = field(default_factory=dict)
    steps: StepTimes | None = None  # finished steps, where the job names its steps

    @property
    def source(self) -> CollectiveSource:
        """The source of own times; one per rank."""
        return (
            SOURCES[int(self.collectives.source[0])]
            if self.steps is None
            else CollectiveSource.ANNOTATION
        )


def with_exchanges(batch: RankBatch, joined: Collectives, row: Rows) -> RankBatch:
    """Return the batch with `joined` collectives; `row` is which of the batch each was."""
    is_joined = joined.has_op(EXCHANGES)

    def pick(rows: Rows) -> list[CollectiveRecord]:
        plain = batch.pick(row[rows])
        return [
            _joined(record, joined, at) if is_joined[at] else record
            for record, at in zip(plain, rows.tolist(), strict=True)
        ]

    return replace(batch, collectives=joined, pick=pick)


def _joined(record: CollectiveRecord, rows: Collectives, at: int) -> CollectiveRecord:
    return replace(
        record,
        op=rows.ops[rows.op[at]],
        peer=None,
        size_bytes=int(rows.size_bytes[at]),
        start_ns=int(rows.start_ns[at]),
        end_ns=int(rows.end_ns[at]),
        gpu_duration_ns=int(rows.gpu_duration_ns[at]),
    )


class RecentBatches:
    """The last batches of one rank; its collectives are counted from 0 over all batches."""

    def __init__(self) -> None:
        # with the number of the first row, and the kinds of all rows
        self._batches: deque[tuple[int, RankBatch, Rows]] = deque()
        self._taken = 0
        self.newest_kinds: Rows = np.zeros(0, np.int64)

    def add(self, batch: RankBatch, kinds: Rows) -> None:
        """Add a batch with the kind of each of its collectives."""
        self._batches.append((self._taken, batch, kinds))
        self._taken += len(batch.collectives)
        self.newest_kinds = kinds

    def kinds(self, rows: NDArray[np.int64]) -> Rows:
        """Return the kinds of these rows."""
        found = np.zeros(len(rows), np.int64)
        for first, _, kinds in self._batches:
            own = (rows >= first) & (rows < first + len(kinds))
            found[own] = kinds[rows[own] - first]
        return found

    def pick(self, rows: NDArray[np.int64]) -> list[CollectiveRecord]:
        """Return the records of these rows, in the order given."""
        found: dict[int, CollectiveRecord] = {}
        for first, batch, _ in self._batches:
            own = rows[(rows >= first) & (rows < first + len(batch.collectives))]
            found |= zip(own.tolist(), batch.pick((own - first).astype(np.intp)), strict=True)
        return [found[row] for row in rows.tolist()]

    def after_anchors(self, finished: FinishedSteps) -> NDArray[np.int64]:
        """Return of each collective how long after place 0 of its step it began; -1 if unknown."""
        rows = finished.row
        if not any(EXCHANGES & {*batch.collectives.ops} for _, batch, _ in self._batches):
            return np.full(len(rows), -1, np.int64)
        order = np.argsort(rows, kind="stable")
        parts = []
        for first, batch, _ in self._batches:
            own = rows[order] - first
            own = own[(own >= 0) & (own < len(batch.collectives))]
            parts.append(batch.collectives.take(own.astype(np.intp)))
        result = np.empty(len(rows), np.int64)
        result[order] = after_anchors(concat(parts), finished.step[order], finished.place[order])
        return result

    def drop_before(self, row: int) -> None:
        """Drop the batches of which no row is needed any more."""
        while self._batches and self._batches[0][0] + len(self._batches[0][1].collectives) <= row:
            self._batches.popleft()


class CollectiveFeed(Protocol):
    """One source of collectives.

    `lost` grows when some were missed; `problem` states why some are missing.
    """

    lost: int
    problem: str

    def poll(self) -> list[RankBatch]: ...

    def close(self) -> None: ...


class RingFeed:
    """The rings of the plugin on this node.

    They are in the folder that the variable names, or wherever processes have one.
    """

    def __init__(self, node: str) -> None:
        folder = os.environ.get(RING_FOLDER_VARIABLE)
        self.rings = (
            # a folder chosen by the user is theirs to clean
            Rings((Path(folder),), node, remove_after_s=math.inf)
            if folder
            else Rings(None, node, remove_after_s=REMOVE_AFTER_S)
        )
        self.lost = 0
        self.problem = ""

    def poll(self) -> list[RankBatch]:
        """Return everything new in all rings."""
        batches = [
            rank_batch(batch) for batch in self.rings.poll(time.monotonic()) if len(batch.records)
        ]
        self.lost = self.rings.counts.missed + self.rings.counts.torn + self.rings.counts.dropped
        self.problem = next(reversed(self.rings.notes()), "")
        return batches

    def close(self) -> None:
        """Close the rings."""
        self.rings.close()


def rank_batch(batch: RingBatch) -> RankBatch:
    """Return what one poll read from a ring as a batch of its rank."""
    header = batch.header
    return RankBatch(
        key=(header.pid_namespace, header.pid, header.start_ticks),
        pid=batch.pid or 0,
        job=header.job,
        rank=header.global_rank,
        local_rank=header.local_rank,
        world_size=header.world_size,
        collectives=batch.collectives,
        pick=lambda rows: to_records(batch.records[rows], batch.collectives.take(rows)),
    )


class TableFeed:
    """The table `collectives` of a trace database that a recorder fills.

    Rows from before the first poll are skipped. Probes see when a collective is enqueued, not when
    it ends. It ended with the first wait for the GPU that the process began afterwards, if that
    wait ended before the next collective. Records are held back for one round, so that these waits
    are recorded.
    """

    def __init__(self, path: Path, *, with_plugin: bool, max_behind: int = MAX_BEHIND) -> None:
        self.lost = 0
        self.problem = ""
        self._path, self._with_plugin, self._max_behind = path, with_plugin, max_behind
        self._after: int | None = None  # None: start with the next row
        self._held: list[tuple[int, CollectiveRecord]] = []

    def poll(self) -> list[RankBatch]:
        """Return new rows by rank; those of the plugin only if the rings are not read here."""
        if not self._path.exists():
            self.problem = f"waiting for {self._path}; record it with `ingero trace`"
            return []
        try:
            newest, rows = follow_collectives(
                self._path, self._after, MAX_ROWS_PER_ROUND, self._max_behind
            )
        except (IngeroError, sqlite3.Error) as error:
            self.problem = str(error)
            return []
        self.problem = ""
        # the file was moved aside or pruned: row numbers start again
        if self._after is None or newest < self._after:
            self._after = newest if self._after is None else 0
            return []
        if rows:
            self.lost += max(rows[0][0] - self._after - 1, 0)
            self._after = rows[-1][0]
        timed = [
            (pid, record) for _, pid, record in rows if record.source is not CollectiveSource.EBPF
        ]
        if not self._with_plugin:
            timed = [
                (pid, record)
                for pid, record in timed
                if record.source is not CollectiveSource.PLUGIN
            ]
        seen = [(pid, record) for _, pid, record in rows if record.source is CollectiveSource.EBPF]
        ready, self._held = self._held, seen
        by_rank: dict[RankKey, list[CollectiveRecord]] = {}
        for pid, record in [*timed, *self._ended(ready, seen)]:
            by_rank.setdefault((record.job, record.global_rank, pid, record.source), []).append(
                record
            )
        return [_batch_of(key, records) for key, records in by_rank.items()]

    def _ended(
        self, ready: list[tuple[int, CollectiveRecord]], later: list[tuple[int, CollectiveRecord]]
    ) -> list[tuple[int, CollectiveRecord]]:
        """Return the records of probes with the ends that the waits of their process show."""
        if not ready:
            return []
        since_ns = min(record.start_ns for _, record in ready)
        try:
            waits = read_waits(self._path, {pid for pid, _ in ready}, since_ns, MAX_WAITS)
        except (IngeroError, sqlite3.Error) as error:
            self.problem = str(error)
            return ready
        return [
            (pid, record)
            for pid in sorted(waits)
            for record in end_by_waits(
                [record for owner, record in ready if owner == pid],
                [record for owner, record in later if owner == pid],
                waits[pid],
            )
        ]

    def close(self) -> None:
        """Do nothing: no file stays open between polls."""


def end_by_waits(
    records: Sequence[CollectiveRecord],
    later: Sequence[CollectiveRecord],
    waits: Sequence[tuple[int, int, int]],
) -> list[CollectiveRecord]:
    """Set the end of each record of one process.

    A record ends with the first wait begun after it, if that wait ended before the next record.
    `later` are newer records that only serve as limits. Records whose stream was waited for get the
    time until that wait.
    """
    ordered = sorted(records, key=lambda record: record.start_ns)
    following = [*ordered[1:], *sorted(later, key=lambda record: record.start_ns)]
    starts = [start for start, _, _ in waits]
    barriers = barrier_waits(
        [(record.start_ns, record.stream) for record in (*ordered[:1], *following)],
        [(start, stream) for start, _, stream in waits],
    )
    found = []
    for index, record in enumerate(ordered):
        limit = following[index].start_ns if index < len(following) else MAX_NS
        at = bisect_left(starts, record.start_ns)
        ended = at < len(waits) and record.end_ns < waits[at][1] <= limit
        end_ns = waits[at][1] if ended else record.end_ns
        found.append(replace(record, end_ns=end_ns, barrier_wait_ns=barriers[index]))
    return found


def _batch_of(key: RankKey, records: Sequence[CollectiveRecord]) -> RankBatch:
    return RankBatch(
        key=key,
        pid=key[2],
        job=key[0],
        rank=key[1],
        collectives=from_records(records),
        pick=lambda rows: [records[row] for row in rows.tolist()],
        barriers=Counter(record.op for record in records if record.barrier_wait_ns is not None),
    )
