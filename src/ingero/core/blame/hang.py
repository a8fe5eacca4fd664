"""Blame of a stopped job: the ranks that everybody else waits for.

Following the wait graph ends at ranks that wait for nobody: a host that stopped enqueueing although
everything it had enqueued is done, or a GPU that does not complete what its peers completed.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from ingero.contract.verdict import CauseClass
from ingero.core.blame.answer import NEXT_STEPS, Answer, Culprit
from ingero.core.blame.wait_graph import (
    NEVER_ENQUEUED,
    NOT_STARTED,
    ProcessGroup,
    RankProgress,
    StoppedJob,
    Wait,
    find_absent,
    find_circle,
    find_hosts_behind,
    find_lagging_gpus,
    find_mismatched,
    find_older_dumps,
    find_waits,
    first_pending,
    is_clearly_stuck,
)

# Each culprit's detail begins with one of these mechanisms.
GPU_ERROR, GPU_STUCK, HOST_LOCK = "gpu_error", "gpu_stuck", "host_lock"
MISMATCH, NO_DUMP, UNKNOWN = "mismatch", "no_dump", "unknown"
NEXT_STEP: Final = {
    GPU_ERROR: "read Xid and ECC errors of that GPU (dmesg, `nvidia-smi -q -d ECC`) "
    "and drain the node",
    GPU_STUCK: "see what that GPU is running (`nvidia-smi`, cuda-gdb) "
    "and read its Xid errors before killing the job",
    HOST_LOCK: "get the stack of that process before it is killed (`py-spy dump --pid PID`): "
    "lock, GIL or I/O",
    MISMATCH: "compare the code path of that rank at this call: "
    "a branch depends on the rank or its data",
    NO_DUMP: "check whether that process is alive and reachable; "
    "the kernel log of its node shows why it ended",
}
MOST_LISTED = 16


def blame_hang(
    ranks: Sequence[RankProgress], groups: Mapping[str, ProcessGroup], world: int, timed: bool
) -> Answer | None:
    """Name the ranks a stopped job waits for; None when nothing is stuck.

    `timed` says that the dumps contain completed operations with their times.
    """
    if not any(r.pending for r in ranks) or (timed and not is_clearly_stuck(ranks)):
        return None
    job = StoppedJob({r.rank: r for r in ranks}, groups)
    waits = find_waits(job)
    absent = find_absent(job, waits)
    culprits = _culprits(job, waits, absent)
    circle = [] if culprits else find_circle(job, waits)
    return Answer(
        source="flight recorder (stopped job)",
        culprits=tuple(culprits),
        cause=CauseClass.HANG if culprits or circle else CauseClass.NETWORK,
        not_sure=_not_sure(culprits, absent, circle),
        evidence=tuple(_evidence(job, waits, culprits) if not circle else _circle(job, waits)),
        notes=_notes(job, world),
        gpus=world,
    )


def _culprits(job: StoppedJob, waits: Sequence[Wait], absent: Sequence[int]) -> list[Culprit]:
    """Return the ranks with a clear signature, else those at the end of the chain of waits."""
    found: list[Culprit] = []
    lagging = find_lagging_gpus(job)
    for rank, op in lagging.items():
        text = (
            f"GPU error: {job.describe(op)} completed on its peers, not here, while the host "
            f"went on to enqueue {len(job.by_rank[rank].pending)} operations"
        )
        found.append(_culprit(rank, 0.95, GPU_ERROR, text, job.describe(op)))
    for rank, text in find_mismatched(job).items():
        if rank not in lagging:
            found.append(_culprit(rank, 0.9, MISMATCH, f"mismatched call: {text}"))
    for rank in sorted({w.on for w in waits} & set(job.by_rank)):
        missed = [w.op for w in waits if w.on == rank and w.why == NEVER_ENQUEUED]
        if missed and not job.by_rank[rank].pending:
            what = job.describe(missed[0])
            text = f"host stopped: all it enqueued is done, it never enqueued {what}"
            found.append(_culprit(rank, 0.95, HOST_LOCK, text, what))
    named = {c.rank for c in found}
    for rank, op in find_hosts_behind(job).items():
        if rank not in named:
            what = job.describe(op)
            text = f"host stopped too: peers stuck in the same {what} enqueued more, it did not"
            found.append(_culprit(rank, 0.75, HOST_LOCK, text, what))
    found = found or _end_of_chain(job, waits) or _absent_culprits(job, waits, absent)
    return sorted(found, key=lambda c: c.rank if c.rank is not None else -1)


def _end_of_chain(job: StoppedJob, waits: Sequence[Wait]) -> list[Culprit]:
    """Return the ranks that others wait for and that wait for nobody themselves."""
    waiting = {w.waiter for w in waits}
    found = []
    for rank in sorted(({w.on for w in waits} - waiting) & set(job.by_rank)):
        wait = next(w for w in waits if w.on == rank)
        what = job.describe(wait.op)
        text = f"others wait for it in {what}"
        if wait.why == NOT_STARTED:
            found.append(_culprit(rank, 0.9, GPU_STUCK, f"{text}, it {NOT_STARTED}", what))
        else:
            found.append(_culprit(rank, 0.7, UNKNOWN, text, what))
    return found


def _absent_culprits(
    job: StoppedJob, waits: Sequence[Wait], absent: Sequence[int]
) -> list[Culprit]:
    found = []
    for rank in absent:
        what = job.describe(next(w.op for w in waits if w.on == rank))
        text = f"left no dump, and {what} waits for it"
        found.append(_culprit(rank, round(0.8 / len(absent), 2), NO_DUMP, text, what))
    return found


def _culprit(
    rank: int, confidence: float, mechanism: str, text: str, collective: str | None = None
) -> Culprit:
    return Culprit(
        worker=f"rank {rank}",
        rank=rank,
        cause=CauseClass.HANG,
        confidence=confidence,
        collective=collective,
        detail=f"{mechanism}: {text}",
        next_step=NEXT_STEP.get(mechanism, NEXT_STEPS[CauseClass.HANG]),
    )


def _evidence(job: StoppedJob, waits: Sequence[Wait], culprits: Sequence[Culprit]) -> list[str]:
    lines = [f"{c.worker}: {c.detail.split(': ', 1)[1]}" for c in culprits]
    named = {c.rank for c in culprits}
    waiters: dict[str, set[int]] = {}  # by what they wait for
    counted: set[tuple[int, int]] = set()
    for wait in waits:
        edge = (wait.waiter, wait.on)
        if wait.on in named and wait.waiter not in named and edge not in counted:
            counted.add(edge)
            what = f"{job.describe(wait.op)} for rank {wait.on}, which {wait.why}"
            waiters.setdefault(what, set()).add(wait.waiter)
    most = sorted(waiters.items(), key=lambda item: -len(item[1]))[:4]
    lines += [f"{_ranks_wait(sorted(ranks))} in {what}" for what, ranks in most]
    behind = {w.waiter for w in waits} - named - {r for ranks in waiters.values() for r in ranks}
    if behind:
        lines.append(f"{_ranks_wait(sorted(behind))} behind those")
    if not waits and not culprits:
        stuck = [ops[0].op for r in job.by_rank.values() if (ops := first_pending(r))]
        what = Counter(stuck).most_common(1)[0][0] if stuck else "it"
        lines.append(f"every rank reached {what} and none completes it: the transfer is stuck")
    older = find_older_dumps(job)
    if older:
        lines.append(
            f"the dumps of ranks {_list(older)} are older than their peers': "
            "these ranks may have moved on since"
        )
    return lines


def _circle(job: StoppedJob, waits: Sequence[Wait]) -> list[str]:
    """Return the first wait of each rank that waits for another one with a dump."""
    first: dict[int, Wait] = {}
    for wait in waits:
        if wait.on in job.by_rank:
            first.setdefault(wait.waiter, wait)
    return [
        f"rank {w.waiter} waits in {job.describe(w.op)} for rank {w.on}, which {w.why}"
        for w in list(first.values())[:MOST_LISTED]
    ]


def _not_sure(
    culprits: Sequence[Culprit], absent: Sequence[int], circle: Sequence[int]
) -> str | None:
    if circle:
        return (
            f"ranks {_list(circle)} wait for each other: "
            "compare the order in which they call collectives of different groups"
        )
    if not culprits:
        return (
            "every present rank has arrived and none continues: a dead link or a missing rank; "
            "NCCL_DEBUG=INFO would show which"
        )
    mechanism = culprits[0].detail.partition(":")[0]
    if mechanism == NO_DUMP and len(absent) > 1:
        return (
            f"ranks {_list(absent)} left no dump: "
            "their dumps would show which of them stopped first"
        )
    if absent and mechanism != NO_DUMP:
        return (
            f"ranks {_list(absent)} left no dump and others wait for them, too: "
            "their dumps would complete the picture"
        )
    if mechanism == UNKNOWN:
        return (
            "no rank shows a clear signature; "
            "a second dump ten seconds later would show which ranks still progress"
        )
    return None


def _notes(job: StoppedJob, world: int) -> tuple[str, ...]:
    missing = sorted(set(range(world)) - set(job.by_rank))
    if not missing:
        return ()
    present = len(job.by_rank)
    return (f"partial set: dumps of {present} of {world} ranks; missing {_list(missing)}",)


def _ranks_wait(ranks: Sequence[int]) -> str:
    return f"ranks {_list(ranks)} wait" if len(ranks) > 1 else f"rank {ranks[0]} waits"


def _list(ranks: Sequence[int]) -> str:
    more = f" and {len(ranks) - MOST_LISTED} more" if len(ranks) > MOST_LISTED else ""
    return ", ".join(str(r) for r in ranks[:MOST_LISTED]) + more
