"""How many ranks each node has, and ranks and nodes of each job; counted now and then."""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

COUNT_EVERY: Final = 30  # times that it is asked for
Member = tuple[str, str | None, int | None]  # node, job and rank


@dataclass(slots=True)
class JobCount:
    """Members of one job."""

    ranks: int = 0
    nodes: set[str] = field(default_factory=set)


class Census:
    """Counts of the last time that members were counted."""

    def __init__(self) -> None:
        self.ranks = Counter[str]()  # of each node
        self.jobs: dict[str, JobCount] = {}
        self.job_of: dict[str, str] = {}  # of each node whose ranks are in one job
        self._counted, self._again = -1, 0

    def follow(self, members: Collection[Member]) -> None:
        """Count again where members came or went, and every half minute."""
        self._again -= 1
        if len(members) == self._counted and self._again > 0:
            return
        self._counted, self._again = len(members), COUNT_EVERY
        self.ranks, self.jobs = Counter(), {}
        jobs_of: dict[str, set[str]] = {}
        for node, job, rank in members:
            self.ranks[node] += rank is not None
            if job is not None:
                count = self.jobs.setdefault(job, JobCount())
                count.ranks += 1
                count.nodes.add(node)
                jobs_of.setdefault(node, set()).add(job)
        self.job_of = {node: min(jobs) for node, jobs in jobs_of.items() if len(jobs) == 1}
