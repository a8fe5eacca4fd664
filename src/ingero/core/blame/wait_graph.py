"""The wait graph of a stopped job, read from what each rank enqueued and completed.

A rank waits for the members that have not enqueued the operation it is stuck in, and for those
whose GPU is still stuck in an earlier one.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

NEVER_ENQUEUED = "never enqueued it"
NOT_STARTED = "enqueued it, but its GPU never started it"
# The root of these may complete before the others arrive.
ROOTED_OPS = frozenset({"Broadcast", "Reduce", "Scatter", "Gather"})
CLEAR_AGE = 1.5  # an operation pending this many times longer than any that completed is stuck


@dataclass(frozen=True, slots=True)
class Pending:
    """An operation that was enqueued and did not complete; `peer` is set for sends and receives."""

    group: str
    seq: int
    op: str
    shape: str
    peer: int | None
    created_ns: int
    is_started: bool | None = None  # on the GPU; None where the dump does not contain it


@dataclass(frozen=True, slots=True)
class RankProgress:
    """The progress of one rank: the last sequence numbers enqueued and completed per group."""

    rank: int
    enqueued: Mapping[str, int]
    completed: Mapping[str, int]
    pending: tuple[Pending, ...]
    last_ns: int
    longest_completed_ns: int | None


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """A communicator as the framework knows it; `members` are global ranks."""

    name: str
    desc: str
    members: tuple[int, ...]

    @property
    def label(self) -> str:
        """The description of the group, and its first eight ranks."""
        ranks = ", ".join(str(r) for r in self.members[:8])
        more = ", …" if len(self.members) > 8 else ""
        return f"{self.desc or 'group ' + self.name} [{ranks}{more}]"


@dataclass(frozen=True, slots=True)
class Wait:
    """One edge of the graph: rank `waiter` is stuck in `op` because of what rank `on` did."""

    waiter: int
    on: int
    op: Pending
    why: str


@dataclass(frozen=True, slots=True)
class StoppedJob:
    """The dumps of a stopped job: progress by rank, and process groups by name."""

    by_rank: Mapping[int, RankProgress]
    groups: Mapping[str, ProcessGroup]

    def peers(self, rank: RankProgress, group: str) -> list[RankProgress]:
        """Return the other members of a group that left a dump."""
        members = self.groups[group].members
        return [self.by_rank[m] for m in members if m in self.by_rank and m != rank.rank]

    def describe(self, op: Pending) -> str:
        """Return the operation as text, with its group."""
        return f"{op.op} seq {op.seq} of {self.groups[op.group].label}"


def find_waits(job: StoppedJob) -> list[Wait]:
    """Return all edges of the wait graph."""
    waits = []
    for rank in job.by_rank.values():
        for op in first_pending(rank):
            members = (op.peer,) if op.peer is not None else job.groups[op.group].members
            for other in members:
                if other != rank.rank:
                    why = _why(job.by_rank.get(other), op)
                    if why:
                        waits.append(Wait(rank.rank, other, op, why))
    return waits


def first_pending(rank: RankProgress) -> list[Pending]:
    """Return the first pending operation of each group; later ones only wait behind it."""
    first: dict[str, Pending] = {}
    for op in rank.pending:
        first.setdefault(op.group if op.peer is None else f"{op.group} {op.op} {op.peer}", op)
    return list(first.values())


def _why(other: RankProgress | None, op: Pending) -> str:
    """Return why a rank stuck in `op` waits for another one; empty when it does not."""
    if other is None:
        return "left no dump"
    if op.peer is not None:
        is_blocked = any(p.peer is None for p in other.pending) or not any(
            p.group == op.group for p in other.pending
        )
        return "has not answered" if is_blocked else ""
    if other.enqueued.get(op.group, -1) < op.seq:
        return NEVER_ENQUEUED
    own = [p for p in other.pending if p.peer is None]
    same = next((p for p in own if (p.group, p.seq) == (op.group, op.seq)), None)
    is_elsewhere = bool(own) and (own[0].group, own[0].seq) != (op.group, op.seq)
    if is_elsewhere and other.completed.get(op.group, -1) < op.seq:
        is_earlier = own[0].created_ns < (same.created_ns if same else 0)
        return "is stuck before it" if is_earlier else ""
    return NOT_STARTED if same and op.is_started and same.is_started is False else ""


def find_lagging_gpus(job: StoppedJob) -> dict[int, Pending]:
    """Return ranks whose GPU does not complete what peers completed.

    The completion of a synchronising operation on a peer proves that this rank took part in it,
    yet its GPU reports nothing.
    """
    lagging: dict[int, Pending] = {}
    for rank in job.by_rank.values():
        last = rank.enqueued
        for op in rank.pending:
            if op.peer is not None or op.op in ROOTED_OPS:
                continue
            done = [p.completed.get(op.group, -1) for p in job.peers(rank, op.group)]
            ahead = [seq for seq in done if seq >= op.seq]
            if ahead and all(seq <= last.get(op.group, -1) for seq in ahead):
                lagging.setdefault(rank.rank, op)
    return lagging


def find_mismatched(job: StoppedJob) -> dict[int, str]:
    """Return ranks whose operation or size differs from the others' at one sequence number."""
    calls: dict[tuple[str, int], dict[int, str]] = {}
    for rank in job.by_rank.values():
        for op in rank.pending:
            if op.peer is None:
                calls.setdefault((op.group, op.seq), {})[rank.rank] = f"{op.op} {op.shape}".strip()
    odd: dict[int, str] = {}
    for (group, seq), by_caller in calls.items():
        common, count = Counter(by_caller.values()).most_common(1)[0]
        is_majority = count < len(by_caller) < 2 * count
        if not is_majority or common.startswith("AllToAll"):
            continue
        for caller, call in by_caller.items():
            if call != common:
                where = f"{job.groups[group].label}, seq {seq}"
                odd.setdefault(caller, f"called {call} where the others called {common} ({where})")
    return odd


def find_older_dumps(job: StoppedJob) -> list[int]:
    """Return ranks whose peers completed operations that their dump does not even contain."""
    older = set()
    # Sends and receives have sequence numbers of their own, so their groups are left out.
    mixed = {op.group for r in job.by_rank.values() for op in r.pending if op.peer is not None}
    for rank in job.by_rank.values():
        for group, last in rank.enqueued.items():
            if group not in job.groups or group in mixed:
                continue
            if any(p.completed.get(group, -1) > last for p in job.peers(rank, group)):
                older.add(rank.rank)
    return sorted(older)


def find_hosts_behind(job: StoppedJob) -> dict[int, Pending]:
    """Return ranks that enqueued less than at least two peers stuck in the same operation.

    That operation did not stop the hosts of those peers, so something else stopped this one.
    """
    behind: dict[int, Pending] = {}
    for rank in job.by_rank.values():
        op = rank.pending[0] if rank.pending else None
        if op is None or op.peer is not None:
            continue
        stuck = [(p, p.pending[0]) for p in job.peers(rank, op.group) if p.pending]
        same = [p for p, first in stuck if (first.group, first.seq) == (op.group, op.seq)]
        if len(same) >= 2 and all(_enqueued_more(peer, rank) for peer in same):
            behind[rank.rank] = op
    return behind


def _enqueued_more(peer: RankProgress, rank: RankProgress) -> bool:
    shared = [(peer.enqueued[g], last) for g, last in rank.enqueued.items() if g in peer.enqueued]
    is_ahead = any(theirs > own for theirs, own in shared)
    return is_ahead and all(theirs >= own for theirs, own in shared)


def find_absent(job: StoppedJob, waits: Sequence[Wait]) -> list[int]:
    """Return ranks without a dump that another rank waits for in its oldest operation.

    Later operations only queue behind the oldest one.
    """
    gone = {w.on for w in waits} - set(job.by_rank)
    oldest = {rank: progress.pending[:1] for rank, progress in job.by_rank.items()}
    return sorted({w.on for w in waits if w.on in gone and (w.op,) == oldest[w.waiter]})


def find_circle(job: StoppedJob, waits: Sequence[Wait]) -> list[int]:
    """Return ranks with dumps that wait for each other in a circle, or stand between circles."""
    circle = set(job.by_rank)
    while True:
        edges = [(w.waiter, w.on) for w in waits if w.waiter in circle and w.on in circle]
        kept = {waiter for waiter, _ in edges} & {on for _, on in edges}
        if kept == circle:
            return sorted(circle)
        circle = kept


def is_clearly_stuck(ranks: Iterable[RankProgress]) -> bool:
    """Tell whether an operation is pending for longer than any completed one ever took."""
    for rank in ranks:
        for op in rank.pending:
            age = rank.last_ns - op.created_ns
            if rank.longest_completed_ns is None or age > CLEAR_AGE * rank.longest_completed_ns:
                return True
    return False
