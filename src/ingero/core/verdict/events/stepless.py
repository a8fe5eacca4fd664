"""Jobs in which no repeating step is recognised: their ranks cannot be judged, which is said.

An agent that knows the steps of a rank sends own times with its collectives. Collectives without
own times, for a minute, come from a rank whose steps nobody knows.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec
import numpy as np

from ingero.contract.verdict import Verdict, VerdictState
from ingero.core.collectives.columns import Ints
from ingero.core.counted import counted
from ingero.core.verdict.verdicts import short_hash

SAID_AFTER_S: Final = 60.0  # steps of ordinary jobs are recognised within seconds
SILENT_S: Final = 60.0  # a rank that sent nothing for so long is no such rank
OVER_S: Final = 60.0  # how long it is served that a job has steps now: an agent may push so seldom
NEXT_STEP: Final = "let the job mark its steps: `ingero annotate step=N`"
RankKey = tuple[str, str | None, int | None]  # node, job, rank


@dataclass(frozen=True, slots=True)
class SteplessJob:
    """What is said about a job, on which nodes, and until when if it has steps now."""

    verdict: Verdict
    nodes: frozenset[str]
    until_s: float | None = None


@dataclass(slots=True)
class SteplessJobs:
    """Fed with who sends collectives and who sends own times; `jobs` and `ranks` have no steps."""

    jobs: dict[str | None, SteplessJob] = field(default_factory=dict)
    ranks: int = 0  # of all these jobs
    _sent_s: dict[int, tuple[float, float]] = field(default_factory=dict)  # first and last time

    def sent(self, members: Iterable[int], now_s: float) -> None:
        """Note members that sent collectives."""
        for member in members:
            self._sent_s[member] = (self._sent_s.get(member, (now_s,))[0], now_s)

    def timed(self, members: Ints) -> None:
        """Note members whose own times are known."""
        for member in np.unique(members).tolist() if self._sent_s else ():
            self._sent_s.pop(member, None)

    def advance(self, keys: Mapping[int, RankKey], now_s: float) -> None:
        """Find the jobs of which ranks have had no steps for long."""
        self._sent_s = {
            member: (first_s, last_s)
            for member, (first_s, last_s) in self._sent_s.items()
            if now_s - last_s < SILENT_S and member in keys
        }
        found: defaultdict[str | None, list[int]] = defaultdict(list)
        for member, (first_s, _) in self._sent_s.items():
            if now_s - first_s >= SAID_AFTER_S:
                found[keys[member][1]].append(member)
        ranks = Counter(job for _, job, _ in keys.values()) if found else Counter()
        for job, members in found.items():
            since_s = min(self._sent_s[member][0] for member in members)
            nodes = frozenset(keys[member][0] for member in members)
            before = self.jobs.get(job)
            if before is not None and before.until_s is None:
                since_s = before.verdict.since
            said = _describe(job, len(members), ranks[job], since_s)
            self.jobs[job] = SteplessJob(said, nodes)
        self.ranks = sum(map(len, found.values()))
        for job in self.jobs.keys() - found.keys():
            self._end(job, now_s)

    def _end(self, job: str | None, now_s: float) -> None:
        """Say for a while that a job has steps now."""
        known = self.jobs[job]
        if known.until_s is None:
            over = msgspec.structs.replace(known.verdict, state=VerdictState.RESOLVED)
            self.jobs[job] = replace(known, verdict=over, until_s=now_s + OVER_S)
        elif now_s >= known.until_s:
            del self.jobs[job]


def _describe(job: str | None, stepless: int, ranks: int, since_s: float) -> Verdict:
    who = f"its {counted(ranks, 'rank')}"
    if stepless < ranks:
        who = f"{stepless} of {who}"
    name = f"job {job}" if job else "a job without a name"
    return Verdict(
        episode=short_hash(("steps", job or "", f"{since_s:.3f}")),
        state=VerdictState.NOT_SURE,
        node="",
        job=job,
        since=round(since_s, 3),
        evidence=f"no repeating step is recognised in {name}, {who} cannot be judged",
        next_step=NEXT_STEP,
    )
