"""Jobs in which no repeating step is recognised: their ranks cannot be judged, which is said.

An agent that knows the steps of a rank sends own times, and numbers its collectives by them.
Collectives without either, for minutes, come from a rank whose steps nobody knows.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec
import numpy as np

from ingero.contract.collective import CollectiveRecord
from ingero.contract.verdict import Verdict, VerdictState
from ingero.core.collectives.columns import Floats, Ints
from ingero.core.collectives.step_search import LEARN_AFTER
from ingero.core.counted import counted
from ingero.core.verdict.verdicts import short_hash

# Steps are recognised when they have come four or five times, and some take a minute. Of those with
# few collectives, more must come, since nothing is looked for in fewer than `LEARN_AFTER`.
SAID_AFTER_S: Final = 300.0
SAID_AFTER: Final = 4 * LEARN_AFTER  # collectives
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
    """Fed with who sends collectives and who sends own times; `jobs` and `ranks` have no steps.

    What is said is found anew only where somebody came or left: of 80,000 ranks it takes 30 ms.
    """

    jobs: dict[str | None, SteplessJob] = field(default_factory=dict)
    ranks: int = 0  # of all these jobs
    # By member: when it sent collectives first and last, NaN where its steps are known.
    _first_s: Floats = field(default_factory=lambda: np.empty(0))
    _last_s: Floats = field(default_factory=lambda: np.empty(0))
    _calls: Floats = field(default_factory=lambda: np.empty(0))  # collectives since then
    _listed: Ints = field(default_factory=lambda: np.empty(0, np.int64))  # who has no steps
    _listed_of: int = 0  # members, at that time
    _found: set[str | None] = field(default_factory=set)  # their jobs
    _has_left: bool = False  # a member, since then

    def sent(self, taken: Mapping[int, Sequence[CollectiveRecord]], now_s: float) -> None:
        """Note members that sent collectives which belong to no step."""
        counts = {m: len(each) for m, each in taken.items() if each and each[0].step is None}
        if not counts:
            return
        who, calls = (np.fromiter(each, np.int64) for each in (counts.keys(), counts.values()))
        if (missing := int(who.max()) + 1 - len(self._first_s)) > 0:
            room = np.full(max(missing, len(self._first_s)), np.nan)
            self._first_s = np.append(self._first_s, room)
            self._last_s = np.append(self._last_s, room)
            self._calls = np.append(self._calls, room)
        self._calls[who] = np.where(np.isnan(self._first_s[who]), 0, self._calls[who]) + calls
        self._first_s[who] = np.fmin(self._first_s[who], now_s)
        self._last_s[who] = now_s

    def timed(self, members: Ints) -> None:
        """Note members whose own times are known."""
        self._first_s[members[members < len(self._first_s)]] = np.nan

    def forget(self, member: int) -> None:
        """Forget a member that has left; another one may get its number."""
        self._has_left = True
        self._first_s[member : member + 1] = np.nan

    def advance(self, keys: Mapping[int, RankKey], now_s: float) -> None:
        """Find the jobs of which ranks have had no steps for long; `keys` are of all members."""
        self._first_s[now_s - self._last_s >= SILENT_S] = np.nan
        is_listed = (now_s - self._first_s >= SAID_AFTER_S) & (self._calls >= SAID_AFTER)
        listed = np.flatnonzero(is_listed)
        is_same = len(keys) == self._listed_of and not self._has_left
        if not is_same or not np.array_equal(listed, self._listed):
            self._listed, self._listed_of, self._has_left = listed, len(keys), False
            self._describe_all(keys)
        for job in self.jobs.keys() - self._found:
            self._end(job, now_s)

    def _describe_all(self, keys: Mapping[int, RankKey]) -> None:
        found: defaultdict[str | None, list[int]] = defaultdict(list)
        for member in self._listed.tolist():
            if member in keys:
                found[keys[member][1]].append(member)
        ranks = Counter(job for _, job, _ in keys.values()) if found else Counter()
        for job, members in found.items():
            before = self.jobs.get(job)
            since_s = float(self._first_s[members].min())
            if before is not None and before.until_s is None:
                since_s = before.verdict.since
            said = _describe(job, len(members), ranks[job], since_s)
            self.jobs[job] = SteplessJob(said, frozenset(keys[member][0] for member in members))
        self.ranks, self._found = sum(map(len, found.values())), set(found)

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
