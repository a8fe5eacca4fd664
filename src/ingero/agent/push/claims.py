"""Two processes that say they are the same rank: two jobs on a node, and neither has an id.

Fleet cannot tell their steps apart, so it is said where it is seen.
"""

from typing import Final

from ingero.agent.push.collective_feed import RankBatch
from ingero.contract.collective import CollectiveSource

CHANGES: Final = 10  # a process that took the place of another one changes once
MAX_RANKS: Final = 1024


class RankClaims:
    """The process that each rank was last, and how often that changed."""

    def __init__(self) -> None:
        self._last: dict[tuple[str | None, int, CollectiveSource], tuple[int, int]] = {}

    def problem_with(self, batch: RankBatch) -> str:
        """Return what is wrong where two processes go on to be the same rank, or nothing."""
        if batch.rank is None or not (len(batch.collectives) or batch.steps is not None):
            return ""
        if len(self._last) >= MAX_RANKS:
            self._last.clear()
        who = (batch.job, batch.rank, batch.source)
        pid, changes = self._last.get(who, (batch.pid, 0))
        changes += pid != batch.pid
        self._last[who] = batch.pid, changes
        if changes < CHANGES:
            return ""
        job = f"job {batch.job}" if batch.job else "a job without an id"
        return (
            f"two processes on this node are rank {batch.rank} of {job}, and Fleet mixes their "
            "steps: set INGERO_JOB_ID to another value for each job"
        )
