"""Everything the engine remembers, one array per fact, one row per member or cohort.

A member is a rank (or a node, where nobody said which rank); a cohort is everybody it may be compared with: same
cluster, job, workload, GPU model and role.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ingero.core.verdict.own_times import Column, Index

HISTORY = 240  # samples the baseline is made of before it is frozen
RECENT = 5  # residuals whose median is the effect
FRAMES = 32  # steps kept for price and cause
ALARM_FRAMES = 4  # fewer than any alarm takes: all of them are of the slow time
ONSETS = 8  # stall onsets kept for the period
HEALTHY, SUSPECT, STRAGGLER, RECOVERING = range(4)
FAST, STALL, CHRONIC = range(3)  # the channel that raised an episode


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """Who is judged, and what an hour of it costs."""

    cluster: str
    node: str
    rank: int | None = None
    job: str | None = None
    workload: str = ""
    gpu_model: str = ""
    role: str = ""
    source: str = ""  # of its own times; those of another source measure something else
    gpus: int = 1
    usd_per_gpu_hour: float | None = None

    @property
    def cohort(self) -> tuple[str, ...]:
        """Whom it is compared with."""
        return (self.cluster, self.job or "", self.workload, self.gpu_model, self.role, self.source)

    @property
    def key(self) -> tuple[str, str, str, int]:
        """What makes it the same member tomorrow."""
        return (self.cluster, self.job or "", self.node, -1 if self.rank is None else self.rank)

    @property
    def seat(self) -> tuple[str, str, int]:
        """What only one member holds at a time."""
        return (self.cluster, self.job or "", -1 if self.rank is None else self.rank)


class Rows:
    """Arrays that grow together; fields are declared once, in `_new`."""

    def __init__(self) -> None:
        self.size = 0
        self._capacity = 0
        self._grow(64)

    def append(self) -> int:
        """The index of a new row, with every field at its initial value."""
        if self.size == self._capacity:
            self._grow(2 * self._capacity)
        self.size += 1
        return self.size - 1

    def reset(self, rows: Index | NDArray[np.bool_], keep: tuple[str, ...] = ()) -> None:
        """Back to the initial values, but for the fields to keep."""
        for name, fresh in self._new(1).items():
            if name not in keep:
                getattr(self, name)[rows] = fresh[0]

    def _new(self, capacity: int) -> dict[str, NDArray[np.generic]]:
        raise NotImplementedError

    def _grow(self, capacity: int) -> None:
        for name, fresh in self._new(capacity).items():
            if self._capacity:
                fresh[: self._capacity] = getattr(self, name)
            setattr(self, name, fresh)
        self._capacity = capacity


class MemberRows(Rows):
    """What is known about every member; the row of one that is over goes to the next that comes."""

    cohort: Index
    last_seen: Column
    sum: Column  # of residuals of the sample being made
    count: Column
    seen: NDArray[np.int64]  # samples so far
    settled: NDArray[np.int64]  # samples the baseline was made of
    history: NDArray[np.float32]
    bias: Column
    raw_bias: Column
    shift: Column  # of the bias since the history was full
    own_scale: Column
    is_uneven: NDArray[np.bool_]  # batches differ from rank to rank, all the time
    far_run: NDArray[np.int64]  # the last so many samples were far out
    far: Column  # samples that were, in runs that ended by themselves
    far_again: Column  # those right after another
    correlation: Column
    scale: Column
    k: Column
    bar: Column
    cusum: Column
    recent: Column
    above: NDArray[np.uint32]  # one bit per sample, newest lowest: did the channel rise?
    own: Column
    frames: NDArray[np.int64]
    raised_frame: NDArray[np.int64]  # when the episode began
    held: Column  # last log own time of an unnumbered member
    usual_own: Column  # log own time while nothing was wrong
    hidden: Column  # log: how much less of their own time its peers show since it is slow (see `episodes`)
    idle: Column
    usual_idle: (
        Column  # seconds above the peers' median while nothing was wrong: hosts differ by nature
    )
    late: Column
    span: Column
    is_stalled: NDArray[np.bool_]
    stall: Column
    stall_steps: Column  # watched so far
    stall_size: Column
    stalls: Column  # onsets lately, fading
    watched: Column  # steps lately, fading alike
    onsets: NDArray[np.int64]
    onset_count: NDArray[np.int64]
    state: NDArray[np.int8]
    channel: NDArray[np.int8]
    since: Column
    quiet: NDArray[np.int64]
    is_structural: NDArray[np.bool_]
    usd: Column  # per hour, all its GPUs
    job: Index

    def _new(self, capacity: int) -> dict[str, NDArray[np.generic]]:
        zeros = ["last_seen", "sum", "count", "bias", "raw_bias", "shift", "correlation", "cusum"]
        zeros += [
            "stall",
            "stall_steps",
            "stall_size",
            "stalls",
            "watched",
            "since",
            "far",
            "far_again",
            "hidden",
        ]
        unknown = [
            "own_scale",
            "scale",
            "k",
            "bar",
            "held",
            "late",
            "span",
            "usd",
            "usual_idle",
            "usual_own",
        ]
        counters = ("seen", "settled", "far_run", "frames", "raised_frame", "onset_count", "quiet")
        fresh: dict[str, NDArray[np.generic]] = {name: np.zeros(capacity) for name in zeros}
        fresh |= {name: np.full(capacity, np.nan) for name in unknown}
        fresh |= {name: np.zeros(capacity, np.int64) for name in counters}
        fresh |= {name: np.zeros(capacity, np.int8) for name in ("state", "channel")}
        fresh |= {
            name: np.zeros(capacity, bool) for name in ("is_stalled", "is_structural", "is_uneven")
        }
        fresh |= {name: np.zeros(capacity, np.intp) for name in ("cohort", "job")}
        fresh["history"] = np.full((capacity, HISTORY), np.nan, np.float32)
        fresh["above"] = np.zeros(capacity, np.uint32)
        fresh["recent"] = np.full((capacity, RECENT), np.nan)
        fresh |= {name: np.full((capacity, FRAMES), np.nan) for name in ("own", "idle")}
        fresh["onsets"] = np.zeros((capacity, ONSETS), np.int64)
        return fresh

    def forget(self, members: Index | NDArray[np.bool_]) -> None:
        """Start over: baselines, channels and state, but not identity."""
        self.reset(members, keep=("cohort", "last_seen", "is_structural", "usd", "job"))


class CohortRows(Rows):
    """What is known about every cohort."""

    first_seen: Column
    heard_s: Column  # of any member, last; never, where the row is free
    frames: NDArray[np.int64]
    first_frame_s: Column
    per_sample: NDArray[
        np.int64
    ]  # frames averaged into one sample of about a second; 0 until the pace is known
    sample_s: Column  # seconds one sample stands for
    gap_s: Column  # between two arrivals of one member
    level: Column  # log of the own time of its members but the slowest, now
    usual: Column  # and when it was learnt
    high_since: Column
    expected: Column  # members that should report
    is_alone: NDArray[np.bool_]  # fewer than three members: compared with their own past
    is_split: NDArray[np.bool_]
    guard: NDArray[np.int8]
    guard_since: Column
    guard_until: Column
    reason_since: Column
    transfer: Column  # seconds a step of the member that waits least, now
    waiting: Column  # seconds the others wait more, on average
    usual_transfer: Column
    usual_waiting: Column
    away_since: Column  # the transfer left its usual range
    job: Index

    def _new(self, capacity: int) -> dict[str, NDArray[np.generic]]:
        zeros = ("first_seen", "expected", "guard_since", "guard_until")
        unknown = ["first_frame_s", "level", "usual", "high_since", "reason_since"]
        unknown += ["transfer", "waiting", "usual_transfer", "usual_waiting", "away_since"]
        fresh: dict[str, NDArray[np.generic]] = {name: np.zeros(capacity) for name in zeros}
        fresh |= {name: np.full(capacity, np.nan) for name in unknown}
        fresh |= {name: np.zeros(capacity, np.int64) for name in ("frames", "per_sample")}
        fresh |= {name: np.zeros(capacity, bool) for name in ("is_alone", "is_split")}
        fresh["heard_s"] = np.full(capacity, np.inf)
        fresh["guard"] = np.zeros(capacity, np.int8)
        fresh["job"] = np.zeros(capacity, np.intp)
        fresh |= {name: np.ones(capacity) for name in ("sample_s", "gap_s")}
        return fresh


class State:
    """Members, cohorts and their rows: what intake writes and decisions read."""

    def __init__(self) -> None:
        self.members: list[Member] = []
        self.rows = MemberRows()
        self.cohorts = CohortRows()
        self.cohorts.append()  # the first row, and the first job, are those of free rows
        self.cohort_keys: list[tuple[str, ...]] = [()]
        self._cohort_index: dict[tuple[str, ...], int] = {}
        self._member_index: dict[tuple[str, str, str, int], int] = {}
        self._job_index: dict[tuple[str, str], int] = {}
        self._seats: dict[tuple[str, str, int], int] = {}
        self._free: list[int] = []  # rows of members that are over; likewise below
        self._free_cohorts: list[int] = []
        self._free_jobs: list[int] = []

    @property
    def known(self) -> int:
        """How many members there are."""
        return len(self._member_index)

    def find(self, member: Member) -> int | None:
        """Its index, if it was put in and is not over."""
        return self._member_index.get(member.key)

    def find_named(self, job: str, node: str, rank: int) -> int | None:
        """The index of a member known by the rest of its key."""
        return next(
            (at for key, at in self._member_index.items() if key[1:] == (job, node, rank)), None
        )

    def put(self, member: Member, now_s: float) -> int:
        """Add a member, or take its new labels; another cohort means a new start."""
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
        self.cohorts.heard_s[self.rows.cohort[index]] = now_s
        return index

    def take_seat(self, index: int, over_s: float) -> None:
        """A rank of a job is in one place: whoever held it under another node is over, last heard of at `over_s`."""
        seat = self.members[index].seat
        before = self._seats.get(seat, index)
        self._seats[seat] = index
        if before != index and self.members[before].seat == seat:
            self.rows.last_seen[before] = min(self.rows.last_seen[before], over_s)

    def let_go(self, now_s: float, after_s: float) -> list[int]:
        """Free the rows of healthy members not heard of for `after_s`, those of jobs that go on too."""
        rows = self.rows
        over = (rows.state[: rows.size] == HEALTHY) & (
            now_s - rows.last_seen[: rows.size] > after_s
        )
        over &= rows.last_seen[: rows.size] > 0
        return self._release(np.flatnonzero(over))

    def end_cohorts(
        self, now_s: float, after_s: float, told: Iterable[int]
    ) -> tuple[list[int], int]:
        """Free cohorts not heard of for `after_s`, and those whose members all have other labels now.

        Returns the members that went with them, and how many cohorts.

        Those with an open episode, and those something is `told` about, stay until that is over.
        """
        rows, cohorts = self.rows, self.cohorts
        left = np.bincount(rows.cohort[: rows.size], minlength=cohorts.size) == 0
        over = now_s - cohorts.heard_s[: cohorts.size] > np.where(left, 0.0, after_s)
        if not over.any():
            return [], 0
        over[rows.cohort[: rows.size][rows.state[: rows.size] != HEALTHY]] = False
        over[list(told)] = False
        members = self._release(np.flatnonzero(over[rows.cohort[: rows.size]]))
        ended = np.flatnonzero(over)
        for cohort in ended.tolist():
            del self._cohort_index[self.cohort_keys[cohort]]
        self._free_cohorts += ended.tolist()
        cohorts.reset(ended)
        going_on = set(cohorts.job[: cohorts.size].tolist())
        for key in [key for key, job in self._job_index.items() if job not in going_on]:
            self._free_jobs.append(self._job_index.pop(key))
        return members, len(ended)

    def peers_of(self, index: int, within_s: float) -> Index:
        """Who else is in its cohort and was heard of `within_s` before it or later: not those who left."""
        rows, size = self.rows, self.rows.size
        peers = (rows.cohort[:size] == rows.cohort[index]) & (rows.last_seen[:size] > 0)
        peers &= rows.last_seen[:size] >= rows.last_seen[index] - within_s
        peers[index] = False
        return np.flatnonzero(peers)

    def _release(self, members: Index) -> list[int]:
        """Their rows are nobody's from now on."""
        gone: list[int] = members.tolist()
        for index in gone:
            member = self.members[index]
            del self._member_index[member.key]
            if self._seats.get(member.seat) == index:
                del self._seats[member.seat]
        self._free += gone
        self.rows.reset(members)
        return gone

    def _place(self, index: int, member: Member, now_s: float) -> None:
        cohort = self._cohort_index.get(member.cohort)
        if cohort is None:
            cohort = self._new_cohort(member.cohort)
            self.cohorts.first_seen[cohort] = now_s
        rows = self.rows
        rows.cohort[index] = cohort
        rows.is_structural[index] = member.rank == 0
        rows.usd[index] = (
            np.nan if member.usd_per_gpu_hour is None else member.gpus * member.usd_per_gpu_hour
        )
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
