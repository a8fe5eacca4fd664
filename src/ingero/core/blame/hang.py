"""Who a hang is waiting for: the wait graph of a stopped job, read from what each rank enqueued and completed.

A rank waits for the members that have not enqueued the operation it is stuck in, and for those whose GPU is still stuck
in an earlier one. Following the waits ends at ranks that wait for nobody: the host that stopped enqueueing although
everything it had asked for is done, or the GPU that does not complete what its peers completed long ago.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ingero.contract.verdict import CauseClass
from ingero.core.blame.answer import NEXT_STEPS, Answer, Culprit

NOT_STARTED = "enqueued it, but its GPU never started it"
BROADCASTS = frozenset(
    {"Broadcast", "Reduce", "Scatter", "Gather"}
)  # their root may leave before the others arrive
CLEAR_AGE = 1.5  # an operation pending this many times longer than any that completed is stuck


@dataclass(frozen=True, slots=True)
class Pending:
    """An operation that was enqueued and not seen to complete. `peer` is the other rank of a send or receive."""

    group: str
    seq: int
    op: str
    shape: str
    peer: int | None
    created_ns: int
    is_started: bool | None = None  # on the GPU; None where the dump cannot tell


@dataclass(frozen=True, slots=True)
class RankProgress:
    """How far one rank came, per process group: the last sequence numbers enqueued and completed."""

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
        ranks = ", ".join(str(r) for r in self.members[:8]) + (
            ", …" if len(self.members) > 8 else ""
        )
        return f"{self.desc or 'group ' + self.name} [{ranks}]"


@dataclass(frozen=True, slots=True)
class _Wait:
    waiter: int
    on: int
    op: Pending
    why: str


def blame_hang(
    ranks: Sequence[RankProgress], groups: Mapping[str, ProcessGroup], world: int, timed: bool
) -> Answer | None:
    """The ranks a stopped job waits for; None when nothing is stuck. `timed` says completed history is in the dumps."""
    by_rank = {r.rank: r for r in ranks}
    if not any(r.pending for r in ranks):
        return None
    waits = _waits(by_rank, groups)
    lagging = _gpu_lagging(by_rank, groups)
    mismatched = _mismatched(by_rank, groups)
    stale = _older_dumps(by_rank, groups)
    if timed and not _clearly_stuck(ranks):
        return None
    absent = _absent(by_rank, waits)
    culprits = _culprits(by_rank, groups, waits, lagging, mismatched, absent)
    evidence = _evidence(by_rank, groups, waits, culprits)
    not_sure = _not_sure(culprits, absent)
    if stale:
        evidence.append(
            f"the dumps of ranks {_list(stale)} are older than their peers': their state may have moved on"
        )
    return Answer(
        source="flight recorder (stopped job)",
        culprits=tuple(culprits),
        cause=CauseClass.HANG if culprits else CauseClass.NETWORK,
        not_sure=not_sure,
        evidence=tuple(evidence),
        notes=_notes(by_rank, world),
        gpus=world,
    )


def _waits(by_rank: Mapping[int, RankProgress], groups: Mapping[str, ProcessGroup]) -> list[_Wait]:
    waits = []
    for rank in by_rank.values():
        for op in _fronts(rank):
            members = (op.peer,) if op.peer is not None else groups[op.group].members
            for other in members:
                if other != rank.rank:
                    why = _why(by_rank.get(other), op)
                    if why:
                        waits.append(_Wait(rank.rank, other, op, why))
    return waits


def _fronts(rank: RankProgress) -> list[Pending]:
    """The first pending operation of each group: later ones only wait behind it."""
    fronts: dict[str, Pending] = {}
    for op in rank.pending:
        fronts.setdefault(op.group if op.peer is None else f"{op.group} {op.op} {op.peer}", op)
    return list(fronts.values())


def _why(other: RankProgress | None, op: Pending) -> str:
    if other is None:
        return "left no dump"
    if op.peer is not None:
        blocked = any(p.peer is None for p in other.pending) or not any(
            p.group == op.group for p in other.pending
        )
        return "has not answered" if blocked else ""
    if other.enqueued.get(op.group, -1) < op.seq:
        return "never enqueued it"
    own = [p for p in other.pending if p.peer is None]
    if (
        own
        and (own[0].group, own[0].seq) != (op.group, op.seq)
        and other.completed.get(op.group, -1) < op.seq
    ):
        earlier = own[0].created_ns < next(
            (p.created_ns for p in own if p.group == op.group and p.seq == op.seq), 0
        )
        return "is stuck before it" if earlier else ""
    same = next((p for p in own if (p.group, p.seq) == (op.group, op.seq)), None)
    return NOT_STARTED if same and op.is_started and same.is_started is False else ""


def _gpu_lagging(
    by_rank: Mapping[int, RankProgress], groups: Mapping[str, ProcessGroup]
) -> dict[int, Pending]:
    """Ranks that do not complete what peers completed: the kernel ran with them, yet their GPU reports nothing.

    The completion of a synchronising operation on a peer proves that this rank's part was done.
    """
    lagging: dict[int, Pending] = {}
    for rank in by_rank.values():
        for op in rank.pending:
            if op.peer is not None or op.op in BROADCASTS:
                continue
            peers = [
                by_rank[m] for m in groups[op.group].members if m in by_rank and m != rank.rank
            ]
            ahead = [p for p in peers if p.completed.get(op.group, -1) >= op.seq]
            if ahead and all(
                p.completed.get(op.group, -1) <= rank.enqueued.get(op.group, -1) for p in ahead
            ):
                lagging.setdefault(rank.rank, op)
    return lagging


def _mismatched(
    by_rank: Mapping[int, RankProgress], groups: Mapping[str, ProcessGroup]
) -> dict[int, str]:
    """Ranks that called another operation, or another size, than the others at the same sequence number."""
    calls: dict[tuple[str, int], dict[int, str]] = {}
    for rank in by_rank.values():
        for op in rank.pending:
            if op.peer is None:
                calls.setdefault((op.group, op.seq), {})[rank.rank] = f"{op.op} {op.shape}".strip()
    odd: dict[int, str] = {}
    for (group, seq), by in calls.items():
        common, count = Counter(by.values()).most_common(1)[0]
        if (
            len(by) > 1
            and count < len(by)
            and not common.startswith("AllToAll")
            and count * 2 > len(by)
        ):
            for caller, call in by.items():
                if call != common:
                    odd.setdefault(
                        caller,
                        f"called {call} where the others called {common} ({groups[group].label}, seq {seq})",
                    )
    return odd


def _older_dumps(
    by_rank: Mapping[int, RankProgress], groups: Mapping[str, ProcessGroup]
) -> list[int]:
    """Ranks whose peers completed operations that, by their dump, they had not even enqueued."""
    older = set()
    # sends have their own count
    mixed = {op.group for r in by_rank.values() for op in r.pending if op.peer is not None}
    for rank in by_rank.values():
        for group, last in rank.enqueued.items():
            members = groups[group].members if group in groups and group not in mixed else ()
            if any(
                by_rank[m].completed.get(group, -1) > last
                for m in members
                if m in by_rank and m != rank.rank
            ):
                older.add(rank.rank)
    return sorted(older)


def _clearly_stuck(ranks: Iterable[RankProgress]) -> bool:
    """With history at hand: something is pending for longer than anything that completed ever took."""
    for rank in ranks:
        for op in rank.pending:
            age = rank.last_ns - op.created_ns
            if rank.longest_completed_ns is None or age > CLEAR_AGE * rank.longest_completed_ns:
                return True
    return False


def _culprits(
    by_rank: Mapping[int, RankProgress],
    groups: Mapping[str, ProcessGroup],
    waits: Sequence[_Wait],
    lagging: Mapping[int, Pending],
    mismatched: Mapping[int, str],
    absent: Sequence[int],
) -> list[Culprit]:
    awaited = Counter(w.on for w in waits)
    found: list[Culprit] = []
    for rank, op in lagging.items():
        text = (
            f"GPU error: {_op(op, groups)} completed on its peers, not here, "
            f"while the host went on to enqueue {len(by_rank[rank].pending)} operations"
        )
        found.append(_culprit(rank, 0.95, text, "gpu_error", _op(op, groups)))
    for rank, text in mismatched.items():
        if rank not in lagging:
            found.append(_culprit(rank, 0.9, f"mismatched call: {text}", "mismatch", None))
    for rank in sorted(set(awaited) & set(by_rank)):
        missed = [w for w in waits if w.on == rank and w.why == "never enqueued it"]
        if missed and not by_rank[rank].pending:
            text = f"host stopped: all it enqueued is done, it never enqueued {_op(missed[0].op, groups)}"
            found.append(_culprit(rank, 0.95, text, "host_lock", _op(missed[0].op, groups)))
    named = {c.rank for c in found}
    for rank, op in _hosts_behind(by_rank, groups).items():
        if rank not in named:
            text = f"host stopped too: peers stuck in the same {_op(op, groups)} enqueued more, it did not"
            found.append(_culprit(rank, 0.75, text, "host_lock", _op(op, groups)))
    if not found:
        found = _end_of_chain(by_rank, groups, waits, absent)
    return sorted(found, key=lambda c: c.rank if c.rank is not None else -1)


def _hosts_behind(
    by_rank: Mapping[int, RankProgress], groups: Mapping[str, ProcessGroup]
) -> dict[int, Pending]:
    """Ranks that enqueued less than peers stuck in the very same operation: it did not hold those hosts up."""
    behind: dict[int, Pending] = {}
    for rank in by_rank.values():
        op = rank.pending[0] if rank.pending else None
        if op is None or op.peer is not None:
            continue
        here = [
            by_rank[m]
            for m in groups[op.group].members
            if m in by_rank and m != rank.rank and by_rank[m].pending
        ]
        same = [p for p in here if (p.pending[0].group, p.pending[0].seq) == (op.group, op.seq)]
        if len(same) >= 2 and all(_enqueued_more(peer, rank) for peer in same):
            behind[rank.rank] = op
    return behind


def _enqueued_more(peer: RankProgress, rank: RankProgress) -> bool:
    shared = [(peer.enqueued[g], last) for g, last in rank.enqueued.items() if g in peer.enqueued]
    return any(theirs > own for theirs, own in shared) and all(
        theirs >= own for theirs, own in shared
    )


def _end_of_chain(
    by_rank: Mapping[int, RankProgress],
    groups: Mapping[str, ProcessGroup],
    waits: Sequence[_Wait],
    absent: Sequence[int],
) -> list[Culprit]:
    """Nobody shows a signature: take the ranks that others wait for and that wait for nobody themselves."""
    waiting = {w.waiter for w in waits}
    found = []
    for rank in sorted(({w.on for w in waits} - waiting) & set(by_rank)):
        wait = next(w for w in waits if w.on == rank)
        is_stuck = wait.why == NOT_STARTED
        text = f"others wait for it in {_op(wait.op, groups)}" + (
            f", it {NOT_STARTED}" if is_stuck else ""
        )
        mechanism = "gpu_stuck" if is_stuck else "unknown"
        found.append(
            _culprit(rank, 0.9 if is_stuck else 0.7, text, mechanism, _op(wait.op, groups))
        )
    if found:
        return found
    for rank in absent:
        op = next(w.op for w in waits if w.on == rank)
        text = f"left no dump, and {_op(op, groups)} waits for it"
        found.append(_culprit(rank, round(0.8 / len(absent), 2), text, "no_dump", _op(op, groups)))
    return found


def _absent(by_rank: Mapping[int, RankProgress], waits: Sequence[_Wait]) -> list[int]:
    """Ranks without a dump that someone waits for in its oldest operation; later ones only queue behind that."""
    gone = {w.on for w in waits} - set(by_rank)
    return sorted({w.on for w in waits if w.on in gone and w.op == by_rank[w.waiter].pending[0]})


def _culprit(
    rank: int, confidence: float, text: str, mechanism: str, collective: str | None
) -> Culprit:
    return Culprit(
        worker=f"rank {rank}",
        rank=rank,
        cause=CauseClass.HANG,
        confidence=confidence,
        collective=collective,
        detail=f"{mechanism}: {text}",
        next_step=_NEXT.get(mechanism, NEXT_STEPS[CauseClass.HANG]),
    )


_NEXT = {
    "gpu_error": "read Xid and ECC errors of that GPU (dmesg, `nvidia-smi -q -d ECC`) and drain the node",
    "gpu_stuck": "see what that GPU is running (`nvidia-smi`, cuda-gdb) and read its Xid errors before killing the job",
    "host_lock": "get the stack of that process before it is killed (`py-spy dump --pid`): lock, GIL or I/O",
    "mismatch": "compare the code path of that rank at this call: a branch depends on the rank or its data",
    "no_dump": "look whether that process is alive and reachable; its kernel log says why it ended",
}


def _evidence(
    by_rank: Mapping[int, RankProgress],
    groups: Mapping[str, ProcessGroup],
    waits: Sequence[_Wait],
    culprits: Sequence[Culprit],
) -> list[str]:
    lines = [f"{c.worker}: {c.detail.split(': ', 1)[1]}" for c in culprits]
    named = {c.rank for c in culprits}
    direct: dict[str, set[int]] = {}
    told: set[tuple[int, int]] = set()
    for wait in waits:
        if wait.on in named and wait.waiter not in named and (wait.waiter, wait.on) not in told:
            told.add((wait.waiter, wait.on))
            direct.setdefault(
                f"{_op(wait.op, groups)} for rank {wait.on}, which {wait.why}", set()
            ).add(wait.waiter)
    widest = sorted(direct.items(), key=lambda item: -len(item[1]))[:4]
    lines += [f"{_ranks(sorted(by))} in {what}" for what, by in widest]
    victims = {w.waiter for w in waits} - named
    behind = victims - {r for by in direct.values() for r in by}
    if behind:
        lines.append(f"{_ranks(sorted(behind))} behind those")
    if not waits and not culprits:
        stuck = Counter(op.op for r in by_rank.values() for op in _fronts(r)[:1]).most_common(1)
        lines.append(
            f"every rank reached {stuck[0][0] if stuck else 'it'} and none completes it: the transfer is stuck"
        )
    return lines


def _not_sure(culprits: Sequence[Culprit], absent: Sequence[int]) -> str | None:
    if not culprits:
        return "every present rank has arrived and nobody moves: a dead link or a missing rank; NCCL_DEBUG=INFO would tell"
    if culprits[0].detail.startswith("no_dump") and len(absent) > 1:
        return f"ranks {_list(list(absent))} left no dump: their dumps would tell which of them stopped first"
    if absent and not culprits[0].detail.startswith("no_dump"):
        return f"ranks {_list(list(absent))} left no dump and are waited for too: their dumps would complete the picture"
    if culprits[0].detail.startswith("unknown"):
        return "no rank shows a clear signature; a second dump ten seconds later would show who still moves"
    return None


def _notes(by_rank: Mapping[int, RankProgress], world: int) -> tuple[str, ...]:
    missing = sorted(set(range(world)) - set(by_rank))
    return (
        (f"partial set: dumps of {len(by_rank)} of {world} ranks; missing {_list(missing)}",)
        if missing
        else ()
    )


def _op(op: Pending, groups: Mapping[str, ProcessGroup]) -> str:
    return f"{op.op} seq {op.seq} of {groups[op.group].label}"


def _ranks(ranks: Sequence[int]) -> str:
    return f"ranks {_list(ranks)} wait" if len(ranks) > 1 else f"rank {ranks[0]} waits"


def _list(ranks: Sequence[int]) -> str:
    return ", ".join(str(r) for r in ranks[:16]) + (
        f" and {len(ranks) - 16} more" if len(ranks) > 16 else ""
    )
