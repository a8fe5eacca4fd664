"""Steps that a job names (`ingero annotate step=…`) as own times of ranks without the plugin."""

import sqlite3
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

from ingero.agent.processes.info import ProcessCache
from ingero.agent.push.collective_feed import CollectiveFeed, RankBatch
from ingero.contract.collective import CollectiveSource
from ingero.core.collectives.columns import from_records
from ingero.core.collectives.marked_steps import MarkedSteps
from ingero.errors import IngeroError
from ingero.storage.trace.annotations import follow_steps

MAX_MARKS_PER_ROUND: Final = 20_000
MAX_PROCESSES: Final = 1024
# until the collectives of a step and the waits that end them are recorded
HOLD_NS: Final = 3_000_000_000
# then a job that no longer names steps is measured by its collectives again
FORGET_NS: Final = 60_000_000_000


class StepFeed:
    """Batches of `collectives`, with own times of named steps where a process names them."""

    def __init__(
        self,
        collectives: CollectiveFeed,
        path: Path,
        processes: ProcessCache | None = None,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.lost, self.problem = 0, ""
        self._collectives, self._path, self._now_ns = collectives, path, now_ns
        self._processes = processes or ProcessCache()
        self._after: int | None = None  # None: start with the next row
        # by process, with the time of its last mark
        self._marked: dict[int, tuple[MarkedSteps, int]] = {}

    def poll(self) -> list[RankBatch]:
        """Return new collectives and finished steps by rank."""
        batches = self._collectives.poll()
        self.lost, self.problem = self._collectives.lost, self._collectives.problem
        now_ns = self._now_ns()
        self._read_marks(now_ns)
        if not self._marked:
            return batches
        found = [self._with_steps(batch, now_ns) for batch in batches]
        seen = {batch.pid for batch in batches}
        others = [pid for pid in self._marked if pid not in seen]
        return [*found, *self._steps_alone(others, now_ns)]

    def close(self) -> None:
        """Close the collectives."""
        self._collectives.close()

    def _read_marks(self, now_ns: int) -> None:
        try:
            newest, marks = follow_steps(self._path, self._after, MAX_MARKS_PER_ROUND)
            # the file was moved aside: row numbers start again
            if self._after is not None and newest < self._after:
                newest, marks = follow_steps(self._path, 0, MAX_MARKS_PER_ROUND)
        except (IngeroError, sqlite3.Error):
            return  # the feed of collectives reads the same file and reports its problems
        self._after = newest
        for pid, step, from_ns, to_ns in marks:
            if pid in self._marked or len(self._marked) < MAX_PROCESSES:
                steps, _ = self._marked.get(pid, (MarkedSteps(), 0))
                steps.mark(step, from_ns, to_ns)
                self._marked[pid] = (steps, now_ns)
        self._marked = {
            pid: kept for pid, kept in self._marked.items() if now_ns - kept[1] <= FORGET_NS
        }

    def _with_steps(self, batch: RankBatch, now_ns: int) -> RankBatch:
        """Return the batch with the steps that its process names."""
        if batch.pid not in self._marked or batch.source is not CollectiveSource.EBPF:
            return batch
        steps, rows = self._marked[batch.pid][0], batch.collectives
        steps.enter(zip(rows.start_ns.tolist(), rows.end_ns.tolist(), strict=True))
        return replace(
            batch, key=(batch.pid, CollectiveSource.ANNOTATION), steps=steps.take(now_ns - HOLD_NS)
        )

    def _steps_alone(self, pids: Iterable[int], now_ns: int) -> list[RankBatch]:
        """Return steps of processes without new collectives.

        Their rank is read from their environment.
        """
        batches = []
        for pid in pids:
            steps = self._marked[pid][0].take(now_ns - HOLD_NS)
            if not len(steps):
                continue
            process = self._processes.get(pid)
            if process.rank is None:
                self.problem = (
                    f"process {pid} names steps but has no rank: set RANK in its environment"
                )
                continue
            batches.append(
                RankBatch(
                    key=(pid, CollectiveSource.ANNOTATION), pid=pid, job=process.job,
                    rank=process.rank, local_rank=process.local_rank,
                    world_size=process.world_size, collectives=from_records([]),
                    pick=lambda _: [], steps=steps,
                )
            )  # fmt: skip
        return batches
