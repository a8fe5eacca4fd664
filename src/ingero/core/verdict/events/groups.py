"""Ranks that become slow together and share something: one event that names what they share.

A rack with a power cap or a node with a full disk slows several ranks at once. Each of them alone
would be a true alarm, but one event that names the rack says more than sixteen.
"""

from dataclasses import dataclass, field

import numpy as np

from ingero.core.robust import Index
from ingero.core.verdict.decision import RELEASE, Mask
from ingero.core.verdict.members import Member, MemberRegistry, digest_of
from ingero.core.verdict.table import FAST, STRAGGLER

RISEN = 0.5  # of the decision limit: members on their way to it count
TOGETHER_S = 30.0  # ranks that became slow within this time did so together
MOST_OF_IT = 0.6  # of those who share something must be slow
MOST_OF_THEM = 0.75  # of the slow ones must share it
CONFIRM_S = 6.0  # a group must last this long; its members are not blamed meanwhile
HOLD_S = 10.0  # a group outlives its reason by this much
# Two ranks of a node or of a stage are a group; of other things, which are many, three are.
PAIRS = ("node", "stage")


@dataclass(slots=True)
class Group:
    """Ranks of one job that are slow together, and what they share."""

    kind: str
    value: str
    began_s: float
    held_until_s: float
    members: list[int] = field(default_factory=list)
    of: int = 0  # how many share it
    is_open: bool = False

    @property
    def shared(self) -> str:
        return f"{self.kind} {self.value}"


class Groups:
    """The groups of all jobs, by the row of the job."""

    def __init__(self, registry: MemberRegistry) -> None:
        self.of_job: dict[int, Group] = {}
        self._registry = registry

    def advance(self, judged: Mask, effect_is_real: Mask, now_s: float) -> Mask:
        """Find groups, begin and end them; return the members that are in one."""
        rows, size = self._registry.rows, self._registry.rows.size
        rising = judged & effect_is_real & (rows.cusum[:size] > RISEN * rows.limit[:size])
        is_old = (rows.state[:size] == STRAGGLER) & (now_s - rows.since_s[:size] > TOGETHER_S)
        rising &= ~is_old | self._mask()
        jobs, counts = np.unique(rows.job[:size][rising], return_counts=True)
        for job in jobs[counts >= 2].tolist():
            self._find(job, np.flatnonzero(rising & (rows.job[:size] == job)), now_s)
        for job, group in list(self.of_job.items()):
            self._follow(job, group, now_s)
        return self._mask()

    def _find(self, job: int, slow: Index, now_s: float) -> None:
        rows, size = self._registry.rows, self._registry.rows.size
        everyone = np.flatnonzero((rows.job[:size] == job) & (rows.last_seen_s[:size] > 0))
        shared = self.find_shared(slow, everyone)
        if shared is None:
            return
        kind, value = shared
        alike = everyone[(rows.shares[everyone] == digest_of(kind, value)).any(axis=1)]
        group = self.of_job.get(job)
        if group is None or (group.kind, group.value) != shared:
            if group is not None and group.is_open:
                return  # what was said stands until it ends
            group = self.of_job[job] = Group(kind, value, now_s, now_s)
        group.members = sorted({*group.members, *np.intersect1d(slow, alike).tolist()})
        group.of, group.held_until_s = len(alike), now_s + HOLD_S
        group.is_open |= now_s - group.began_s >= CONFIRM_S

    def find_shared(self, slow: Index, everyone: Index) -> tuple[str, str] | None:
        """Return what most of the slow ranks share and hardly anybody else, if there is such."""
        rows = self._registry.rows
        codes, hit = np.unique(rows.shares[slow], return_counts=True)
        is_common = (codes != 0) & (hit >= max(2, MOST_OF_THEM * len(slow)))
        best: tuple[int, str, str] | None = None
        for code, count in zip(codes[is_common].tolist(), hit[is_common].tolist(), strict=True):
            owners = int((rows.shares[everyone] == code).any(axis=1).sum())
            if count < MOST_OF_IT * owners or len(everyone) - owners < 2:
                continue
            kind, value = _name_of(code, [self._registry.members[i] for i in slow.tolist()])
            if count < 3 and kind not in PAIRS:
                continue
            if best is None or owners < best[0]:
                best = (owners, kind, value)
        return None if best is None else best[1:]

    def _follow(self, job: int, group: Group, now_s: float) -> None:
        """Keep a group while half of its members are slow, and end it when they are not."""
        rows = self._registry.rows
        members = np.array(group.members)
        holds = (rows.cusum[members] > RELEASE * rows.limit[members]) & (rows.job[members] == job)
        if group.is_open and holds.mean() >= 0.5:
            group.held_until_s = now_s + HOLD_S
        if now_s >= group.held_until_s or (not group.is_open and not holds.any()):
            del self.of_job[job]

    def _mask(self) -> Mask:
        """Tell who is in a group, or shares what an open group shares."""
        rows, size = self._registry.rows, self._registry.rows.size
        inside = np.zeros(size, bool)
        for job, group in self.of_job.items():
            digest = digest_of(group.kind, group.value)
            alike = (rows.job[:size] == job) & (rows.shares[:size] == digest).any(axis=1)
            inside |= alike & (rows.channel[:size] == FAST)
        return inside


def _name_of(code: int, members: list[Member]) -> tuple[str, str]:
    return next(
        (kind, value)
        for member in members
        for kind, value in member.shared
        if digest_of(kind, value) == code
    )
