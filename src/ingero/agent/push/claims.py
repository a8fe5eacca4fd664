"""Detects two processes that claim the same rank: two jobs on a node, both without an id.

Fleet cannot tell their steps apart, so the agent reports them.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from ingero.agent.push.collective_feed import RankBatch
from ingero.contract.collective import CollectiveSource

RETURNS: Final = 5  # a process that was replaced never comes back, unless its number is used again
MAX_EARLIER: Final = 8
MAX_RANKS: Final = 1024


@dataclass(slots=True)
class _Claim:
    """The last process with a rank, the ones before it, and how often one of these came back."""

    pid: int
    earlier: deque[int] = field(default_factory=lambda: deque(maxlen=MAX_EARLIER))
    returns: int = 0

    def follow(self, pid: int) -> None:
        if pid == self.pid:
            return
        if pid in self.earlier:
            self.earlier.remove(pid)
            self.returns += 1
        self.earlier.append(self.pid)
        self.pid = pid


class RankClaims:
    """The processes that have claimed each rank; normally only the last one is still alive."""

    def __init__(self) -> None:
        self._claims: dict[tuple[str | None, int, CollectiveSource], _Claim] = {}

    def problem_with(self, batch: RankBatch) -> str:
        """Return what is wrong if two living processes claim the same rank; else empty."""
        if batch.rank is None or not (len(batch.collectives) or batch.steps is not None):
            return ""
        who = (batch.job, batch.rank, batch.source)
        if who not in self._claims and len(self._claims) >= MAX_RANKS:
            self._claims.clear()
        claim = self._claims.setdefault(who, _Claim(batch.pid))
        claim.follow(batch.pid)
        if claim.returns < RETURNS:
            return ""
        job = f"job {batch.job}" if batch.job else "a job without an id"
        return (
            f"two processes on this node are rank {batch.rank} of {job}, and Fleet mixes their "
            "steps: set INGERO_JOB_ID to another value for each job"
        )
