"""Members and cohorts: who is compared with whom, and which row of the tables is whose.

A member is a rank, or a node where the rank is unknown. A cohort is everybody a member may be
compared with: same cluster, job, workload, GPU model, role and source of own times.
"""

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ingero.core.robust import Index
from ingero.core.verdict.policy import VerdictPolicy
from ingero.core.verdict.table import HEALTHY, SHARED, CohortRows, MemberRows


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A rank or node whose own times are judged, and what an hour of it costs."""

    cluster: str
    node: str
    rank: int | None = None
    job: str | None = None
    workload: str = ""
    gpu_model: str = ""
    role: str = ""
    source: str = ""  # of its own times; each source measures something else
    gpus: int = 1
    usd_per_gpu_hour: float | None = None
    gpu_uuid: str = ""  # told to others, and never compared
    pod: str = ""
    labels: tuple[tuple[str, str], ...] = ()  # such as ("rack", "r7")

    @property
    def shared(self) -> tuple[tuple[str, str], ...]:
        """What this member may have in common with others, as (kind, value)."""
        known = (("node", self.node), ("GPU model", self.gpu_model), ("stage", self.role))
        return (*((kind, value) for kind, value in known if value), *self.labels)[:SHARED]

    @property
    def cohort(self) -> tuple[str, ...]:
        """The key of the cohort this member is compared with."""
        return (self.cluster, self.job or "", self.workload, self.gpu_model, self.role, self.source)

    @property
    def key(self) -> tuple[str, str, str, int]:
        """The identity of this member, whatever its labels become."""
        return (self.cluster, self.job or "", self.node, -1 if self.rank is None else self.rank)

    @property
    def rank_key(self) -> tuple[str, str, int]:
        """The rank in its job, which only one member can be at a time."""
        return (self.cluster, self.job or "", -1 if self.rank is None else self.rank)


def digest_of(kind: str, value: str) -> int:
    """Return a positive number for something that members share."""
    digest = hashlib.blake2b(f"{kind}\x1f{value}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1 | 1


class MemberRegistry:
    """Gives rows to members and cohorts, and frees them; holds the two tables of those rows."""

    def __init__(self, policy: VerdictPolicy | None = None) -> None:
        self.policy = policy or VerdictPolicy()
        self.members: list[Member] = []
        self.changes = 0  # of rows given to members, of their labels, and of rows freed
        self.rows = MemberRows()
        self.cohorts = CohortRows()
        self.cohorts.append()  # cohort 0 and job 0 belong to free rows
        self.cohort_keys: list[tuple[str, ...]] = [()]
        self._cohort_index: dict[tuple[str, ...], int] = {}
        self._member_index: dict[tuple[str, str, str, int], int] = {}
        self._job_index: dict[tuple[str, str], int] = {}
        self._rank_index: dict[tuple[str, str, int], int] = {}
        self._free: list[int] = []
        self._free_cohorts: list[int] = []
        self._free_jobs: list[int] = []

    @property
    def member_count(self) -> int:
        """How many members have a row."""
        return len(self._member_index)

    def find(self, member: Member) -> int | None:
        """Return the row of a member, or None when it has none."""
        return self._member_index.get(member.key)

    def find_named(self, job: str, node: str, rank: int) -> int | None:
        """Return the row of a member of any cluster, or None when it has none."""
        return next(
            (at for key, at in self._member_index.items() if key[1:] == (job, node, rank)), None
        )

    def put(self, member: Member, now_s: float) -> int:
        """Add a member or update its labels; a member in another cohort starts over."""
        index = self._member_index.get(member.key)
        if index is None:
            if self._free:
                index = self._free.pop()
                self.members[index] = member
            else:
                index = self.rows.append()
                self.members.append(member)
            self._member_index[member.key] = index
            self._place(index, member, now_s)
        elif self.members[index] != member:
            if self.members[index].cohort != member.cohort:
                self.rows.forget(np.array([index]))
            self.members[index] = member
            self._place(index, member, now_s)
        self.cohorts.last_report_s[self.rows.cohort[index]] = now_s
        return index

    def claim_rank(self, index: int, gone_s: float) -> None:
        """Make a member the holder of its rank; a holder on another node was last seen `gone_s`."""
        key = self.members[index].rank_key
        before = self._rank_index.get(key, index)
        self._rank_index[key] = index
        if before != index and self.members[before].rank_key == key:
            self.rows.last_seen_s[before] = min(self.rows.last_seen_s[before], gone_s)

    def free_silent_members(self, now_s: float, after_s: float) -> list[int]:
        """Free the rows of healthy members without own times for `after_s`, and return them."""
        rows = self.rows
        gone = (rows.state[: rows.size] == HEALTHY) & (
            now_s - rows.last_seen_s[: rows.size] > after_s
        )
        gone &= rows.last_seen_s[: rows.size] > 0
        return self._release(np.flatnonzero(gone))

    def free_ended_cohorts(
        self, now_s: float, after_s: float, with_event: Iterable[int]
    ) -> tuple[list[int], int]:
        """Free cohorts without reports for `after_s`, and those that all members have left.

        Cohorts with an open episode, and cohorts `with_event`, stay until that ends. Returns the
        rows of the members freed with their cohorts, and the number of cohorts.
        """
        rows, cohorts = self.rows, self.cohorts
        is_empty = np.bincount(rows.cohort[: rows.size], minlength=cohorts.size) == 0
        over = now_s - cohorts.last_report_s[: cohorts.size] > np.where(is_empty, 0.0, after_s)
        if not over.any():
            return [], 0
        over[rows.cohort[: rows.size][rows.state[: rows.size] != HEALTHY]] = False
        over[list(with_event)] = False
        members = self._release(np.flatnonzero(over[rows.cohort[: rows.size]]))
        ended = np.flatnonzero(over)
        for cohort in ended.tolist():
            del self._cohort_index[self.cohort_keys[cohort]]
        self._free_cohorts += ended.tolist()
        cohorts.reset(ended)
        running = set(cohorts.job[: cohorts.size].tolist())
        for key in [key for key, job in self._job_index.items() if job not in running]:
            self._free_jobs.append(self._job_index.pop(key))
        return members, len(ended)

    def peers_of(self, index: int, within_s: float) -> Index:
        """Return the other members of a cohort that were seen `within_s` before this one or later.

        Where steps are long, that is longer. Members that left the job are not among them.
        """
        rows, size = self.rows, self.rows.size
        peers = (rows.cohort[:size] == rows.cohort[index]) & (rows.last_seen_s[:size] > 0)
        within_s = max(within_s, float(self.cohorts.patience_s[rows.cohort[index]]))
        peers &= rows.last_seen_s[:size] >= rows.last_seen_s[index] - within_s
        peers[index] = False
        return np.flatnonzero(peers)

    def role_of(self, cohort: int) -> str:
        """Return the role that the members of a cohort have in common."""
        return self.cohort_keys[cohort][4]

    def usual_step_s(self, cohort: int) -> float:
        """Return the median length of the last steps of a cohort; 0 where it is unknown."""
        lengths = self.cohorts.step_log[cohort]
        known = lengths[~np.isnan(lengths)]
        return float(np.exp(np.median(known))) if len(known) else 0.0

    def slowest_model_s(self, index: int) -> float:
        """Return the usual own time of the slowest other GPU model in a member's job and role.

        It is 0 where all GPUs of the job are alike.
        """
        mine = self.cohort_keys[self.rows.cohort[index]]
        levels = [
            float(self.cohorts.level[cohort])
            for cohort in self.models_beside(int(self.rows.cohort[index]))
            if self.cohort_keys[cohort] != mine
        ]
        return max((math.exp(level) for level in levels if not math.isnan(level)), default=0.0)

    def models_beside(self, cohort: int) -> list[int]:
        """Return the cohorts that differ from one in nothing but the GPU model, itself included."""
        key = self.cohort_keys[cohort]
        same_job = np.flatnonzero(self.cohorts.job[: self.cohorts.size] == self.cohorts.job[cohort])
        return [
            other
            for other in same_job.tolist()
            if (*self.cohort_keys[other][:3], *self.cohort_keys[other][4:]) == (*key[:3], *key[4:])
        ]

    def _release(self, members: Index) -> list[int]:
        freed: list[int] = members.tolist()
        self.changes += len(freed)
        for index in freed:
            member = self.members[index]
            del self._member_index[member.key]
            if self._rank_index.get(member.rank_key) == index:
                del self._rank_index[member.rank_key]
        self._free += freed
        self.rows.reset(members)
        return freed

    def _place(self, index: int, member: Member, now_s: float) -> None:
        """Write what the labels of a member say into its row."""
        self.changes += 1
        cohort = self._cohort_index.get(member.cohort)
        if cohort is None:
            cohort = self._new_cohort(member.cohort)
            self.cohorts.first_seen_s[cohort] = now_s
        rows = self.rows
        rows.cohort[index] = cohort
        rows.is_structural[index] = member.rank == 0
        rows.usd_per_hour[index] = (
            np.nan if member.usd_per_gpu_hour is None else member.gpus * member.usd_per_gpu_hour
        )
        rows.shares[index] = 0
        digests = [digest_of(kind, value) for kind, value in member.shared]
        rows.shares[index, : len(digests)] = digests
        rows.job[index] = self.cohorts.job[cohort] = self._job_of(member)

    def _new_cohort(self, key: tuple[str, ...]) -> int:
        if self._free_cohorts:
            cohort = self._free_cohorts.pop()
            self.cohort_keys[cohort] = key
        else:
            cohort = self.cohorts.append()
            self.cohort_keys.append(key)
        self._cohort_index[key] = cohort
        return cohort

    def _job_of(self, member: Member) -> int:
        key = (member.cluster, member.job or "")
        job = self._job_index.get(key)
        if job is None:
            job = self._free_jobs.pop() if self._free_jobs else len(self._job_index) + 1
            self._job_index[key] = job
        return job
