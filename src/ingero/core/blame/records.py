"""Blame and price of recorded collectives: own time names the rank, idle time tells host from GPU, replay the cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ingero.contract.collective import encode_comm
from ingero.contract.verdict import CauseClass
from ingero.core.blame.answer import NEXT_STEPS, Answer, Culprit, Fix, Heat
from ingero.core.blame.host_or_gpu import classify
from ingero.core.blame.record_fixes import Fixer, pace_of
from ingero.core.blame.record_steps import RecordSteps, measure_steps
from ingero.core.blame.suspects import (
    MIN_STEPS_TO_DROP,
    WARM_UP_STEPS,
    Findings,
    Suspect,
    WorkerSteps,
    judge,
)
from ingero.core.blame.transfer import SlowLink, find_slow_links
from ingero.core.collectives.columns import Collectives, distinct
from ingero.core.collectives.lag import measure_lag
from ingero.core.collectives.matching import match_collectives
from ingero.core.collectives.point_to_point import number_point_to_point
from ingero.core.robust import nan_median

LOSS_FLOOR = 0.03
DATA_FLOOR = (
    0.05  # of a step lost to whoever is slowest in it before uneven data is called the cause
)
OVERLAP_SHARE = 0.1  # of a slow GPU's gaps at which its peers have none
EVEN = 0.6  # how evenly the slowest place must rotate, 1 being perfectly


@dataclass(frozen=True, slots=True)
class _Job:
    collectives: Collectives
    measured: RecordSteps
    findings: Findings
    step_s: float
    world: int
    exact_ends: bool
    labels: Mapping[int, str]

    def comm_name(self, comm: int) -> str:
        """As the framework calls it, else its hash; with the ranks in it."""
        c = self.collectives
        codes = np.unique(c.who[c.comm == np.uint64(comm)])
        ranks = [str(c.recorders[w].global_rank) for w in codes]
        shown = ", ".join(ranks[:8]) + (", …" if len(ranks) > 8 else "")
        return f"{self.labels.get(comm) or 'communicator ' + encode_comm(comm)} (ranks {shown})"

    def name(self, worker: int) -> str:
        recorder = self.collectives.recorders[self.measured.ranks[worker]]
        return (
            f"rank {recorder.global_rank}"
            if recorder.global_rank is not None
            else recorder.node or f"recorder {worker}"
        )


def blame_records(
    collectives: Collectives,
    exact_ends: bool,
    source: str,
    world: int | None = None,
    labels: Mapping[int, str] | None = None,
) -> Answer:
    """Name the slow ranks of a recorded job, or what else its time is lost to. `labels` names communicators."""
    given = len(collectives)
    collectives = number_point_to_point(distinct(collectives))
    measured = measure_steps(collectives, exact_ends)
    workers = measured.workers
    present = len(measured.ranks)
    world = max(world or 0, present)
    step_s = _mean_period(workers) if workers.own_s.size else 0.0
    if not step_s or present < 2:  # also where all times are the same
        return _too_little(source, present, world, len(workers.steps))
    findings = judge(workers)
    job = _Job(collectives, measured, findings, step_s, world, exact_ends, labels or {})
    fixer = Fixer(collectives, measured, exact_ends)
    suspects = sorted(
        fixer.needed(findings.suspects), key=lambda s: -_loss_of(s, len(workers.steps))
    )
    culprits = tuple(_culprit(job, suspect) for suspect in suspects)
    saved_s = fixer.saved(suspects)
    links = (
        []
        if culprits
        else find_slow_links(collectives, measured.row_step, len(workers.steps), job.step_s)
    )
    stages_s = _structural_loss(workers, {s.worker for s in suspects})
    cause, loss_s = _cause(job, culprits, links, saved_s, stages_s)
    if cause is CauseClass.NETWORK:
        culprits = tuple(_link_culprits(job, links))
    fixes = [
        Fix(job.name(s.worker), job.step_s - t, t) for s in suspects for t in [fixer.saved([s])]
    ]
    if len(suspects) > 1:
        fixes.append(Fix("all of them", job.step_s - saved_s, saved_s))
    if cause in (CauseClass.NETWORK, CauseClass.STRUCTURAL, CauseClass.DATA_IMBALANCE):
        fixes.append(Fix(_FIX_NAMES[cause], job.step_s - loss_s, loss_s))
    return Answer(
        source=source,
        culprits=culprits,
        cause=cause,
        not_sure=_not_sure(job, suspects, culprits, links if cause is CauseClass.NETWORK else []),
        evidence=tuple(_evidence(job, suspects, links, stages_s)),
        notes=(*_notes(job, given - len(collectives)), *_overlap_note(fixer, suspects, culprits)),
        step_time_s=job.step_s,
        ideal_step_time_s=job.step_s - loss_s,
        loss_s=loss_s,
        gpus=world,
        steps=len(workers.steps),
        fixes=tuple(sorted(fixes, key=lambda fix: -fix.saved_s)),
        heat=_heat(job),
    )


def _loss_of(suspect: Suspect, steps: int) -> float:
    """Seconds per step on average: a stall counts in its own steps only."""
    return suspect.excess_s * (len(suspect.stalls) / max(1, steps) if suspect.stalls else 1.0)


_FIX_NAMES = {
    CauseClass.NETWORK: "link as fast as the others",
    CauseClass.STRUCTURAL: "stages balanced",
    CauseClass.DATA_IMBALANCE: "equal work for every rank",
}


def _culprit(job: _Job, suspect: Suspect) -> Culprit:
    recorder = job.collectives.recorders[job.measured.ranks[suspect.worker]]
    cause = classify(job.collectives, job.measured, suspect, job.exact_ends)
    often = (
        f"every {suspect.stall_period} steps"
        if suspect.stall_period
        else (
            f"in {len(suspect.stalls)} steps"
            if suspect.stalls
            else f"in {suspect.named_share:.0%} of the steps"
        )
    )
    return Culprit(
        worker=job.name(suspect.worker),
        rank=recorder.global_rank,
        node=recorder.node,
        cause=cause,
        excess=suspect.excess,
        error=suspect.error,
        excess_s=suspect.excess_s,
        confidence=suspect.confidence,
        period=suspect.stall_period,
        collective=_awaited_collective(job, suspect),
        detail=f"own time over {suspect.peers} peers {often}{_BUSY.get(cause, '')}",
        next_step=NEXT_STEPS.get(
            cause, "record with the NCCL plugin to tell host from GPU (`ingero run --print-env`)"
        ),
    )


_BUSY = {
    CauseClass.COMPUTE: "; its collectives were enqueued in time, the GPU came late",
    CauseClass.HOST: "; the GPU was idle until the host enqueued",
}


def _awaited_collective(job: _Job, suspect: Suspect) -> str | None:
    """The collective in which the others lose most time to this rank."""
    c = job.collectives
    rows = np.flatnonzero(c.who == job.measured.ranks[suspect.worker])
    groups = match_collectives(c)
    lateness = np.nan_to_num(measure_lag(c, groups).lateness_ms)[rows]
    if not len(rows) or lateness.max() <= 0:
        return None
    key = np.stack([c.comm[rows].view(np.int64), c.op[rows]], 1)
    found, inverse = np.unique(key, axis=0, return_inverse=True)
    worst = int(np.bincount(inverse.reshape(-1), lateness).argmax())
    return f"{c.ops[found[worst, 1]]} of {job.comm_name(int(found[worst, 0]) & 0xFFFFFFFFFFFFFFFF)}"


def _structural_loss(workers: WorkerSteps, named: set[int]) -> float:
    """Seconds by which the slowest role exceeds the mean of the roles; nothing with a single role."""
    levels = []
    for code in np.unique(workers.cohort):
        members = [w for w in np.flatnonzero(workers.cohort == code) if w not in named]
        if members and np.isfinite(workers.own_s[members]).any():
            levels.append(float(np.nanmedian(workers.own_s[members])))
    return max(levels) - float(np.mean(levels)) if len(levels) > 1 else 0.0


def _cause(
    job: _Job,
    culprits: Sequence[Culprit],
    links: Sequence[SlowLink],
    saved_s: float,
    stages_s: float,
) -> tuple[CauseClass | None, float]:
    if culprits:
        return culprits[0].cause, saved_s
    findings = job.findings
    data_s = findings.rotating_loss * job.step_s if findings.rotation >= EVEN else 0.0
    options = [
        (CauseClass.NETWORK, _links_loss(links), LOSS_FLOOR),
        (CauseClass.STRUCTURAL, stages_s, LOSS_FLOOR),
        (CauseClass.DATA_IMBALANCE, data_s, DATA_FLOOR),
    ]
    likely = [
        (cause, loss)
        for cause, loss, floor in options
        if loss >= floor * job.step_s and not findings.split
    ]
    return max(likely, key=lambda c: c[1]) if likely else (None, 0.0)


def _links_loss(links: Sequence[SlowLink]) -> float:
    """Seconds per step: slow communicators of one rank follow one another, others may run side by side."""
    if not links:
        return 0.0
    shared = set.intersection(*(set(link.members) for link in links))
    return sum(link.loss_s for link in links) if shared else links[0].loss_s


def _link_culprits(job: _Job, links: Sequence[SlowLink]) -> list[Culprit]:
    """The one rank that all slow communicators share, or both ends of a slow pair; else nobody is named."""
    suspects = set.intersection(*(set(link.members) for link in links)) - {
        m for link in links for m in link.fast_members
    }
    suspects = suspects or set.intersection(*(set(link.members) for link in links))
    if not 0 < len(suspects) <= 2:
        return []
    found = []
    for who in sorted(suspects):
        recorder = job.collectives.recorders[who]
        found.append(
            Culprit(
                worker=f"rank {recorder.global_rank}",
                rank=recorder.global_rank,
                node=recorder.node,
                cause=CauseClass.NETWORK,
                excess=links[0].ratio - 1,
                error=links[0].error,
                excess_s=links[0].loss_s,
                confidence=0.9 if len(suspects) == 1 else 0.5,
                collective=job.comm_name(links[0].comm),
                detail=f"everyone arrives together, yet the transfer takes {links[0].ratio:.1f}x that of its like",
                next_step=NEXT_STEPS[CauseClass.NETWORK],
            )
        )
    return found


def _not_sure(
    job: _Job, suspects: Sequence[Suspect], culprits: Sequence[Culprit], links: Sequence[SlowLink]
) -> str | None:
    findings = job.findings
    if findings.split:
        names = ", ".join(job.name(w) for w in findings.split)
        return f"too many ranks of one role are slow together to blame single ones ({names}): compare GPU models"
    if links and len(culprits) != 1:
        ranks = ", ".join(str(job.collectives.recorders[m].global_rank) for m in links[0].members)
        return f"the slow link is one of ranks {ranks}: NIC counters, or a pairwise transfer test, would tell which"
    if findings.rivals and suspects:
        names = " and ".join(job.name(w) for w in (suspects[-1].worker, *findings.rivals))
        return f"{names} lie within one error bar of each other: more steps, or their GPU clocks, would separate them"
    if not culprits and not links and _unexplained_wait(job) >= LOSS_FLOOR:
        return "everyone waits, and the ranks without records are not compared: one of them may be the slow one"
    roles = np.bincount(job.measured.workers.cohort)
    if not culprits and roles.max() == 1:
        return "every role has one rank only: a slow stage may be the partition or its rank; a second replica would tell"
    if culprits and culprits[0].cause is CauseClass.UNKNOWN:
        return "the rank is clear, its class is not: only the NCCL plugin sees enqueue and GPU start on one clock"
    return None


def _unexplained_wait(job: _Job) -> float:
    """Share of the step that even the rank which waits least spends waiting, when some ranks left no records."""
    if not _missing(job):
        return 0.0
    c = job.collectives
    groups = match_collectives(c)
    size = int(groups.max(initial=-1)) + 1
    whole = np.bincount(groups, minlength=size)[groups] >= c.nranks
    shortest = np.full(size, np.inf)
    np.minimum.at(shortest, groups, c.duration_ns / 1e9)
    kind = np.unique(np.stack([c.op, c.size_bytes, c.nranks], 1), axis=0, return_inverse=True)[
        1
    ].reshape(-1)
    usual = np.full(int(kind.max()) + 1, np.nan)
    for code in np.unique(kind[whole]):
        usual[code] = np.median(shortest[groups[whole & (kind == code)]])
    waited = np.maximum(0.0, c.duration_ns / 1e9 - usual[kind])
    waited = np.where(job.measured.row_step >= 0, np.nan_to_num(waited), 0.0)
    per_rank = [waited[c.who == code].sum() for code in job.measured.ranks]
    return float(min(per_rank) / max(1, len(job.measured.workers.steps)) / job.step_s)


def _missing(job: _Job) -> list[int]:
    known = {r.global_rank for r in job.collectives.recorders if r.global_rank is not None}
    return sorted(set(range(job.world)) - known) if known else []


def _mean_period(workers: WorkerSteps) -> float:
    period = (
        workers.period_s[WARM_UP_STEPS:]
        if len(workers.period_s) >= MIN_STEPS_TO_DROP
        else workers.period_s
    )
    return float(np.nanmean(period))


def _evidence(
    job: _Job, suspects: Sequence[Suspect], links: Sequence[SlowLink], stages_s: float
) -> list[str]:
    workers, findings = job.measured.workers, job.findings
    lines = []
    for s in suspects:
        lines.append(
            f"{job.name(s.worker)}: own time {np.nanmedian(workers.own_s[s.worker]) * 1e3:.2f} ms a step, "
            f"{s.excess:+.1%} ±{s.error:.1%} over {s.peers} peers"
        )
        waits = nan_median(job.measured.waiting_s, 1) * 1e3
        lines.append(
            f"time inside collectives a step: {waits[s.worker]:.2f} ms here, "
            f"{np.nanmedian(np.delete(waits, s.worker)):.2f} ms at the others, who wait"
        )
    named = {s.worker for s in suspects}
    others = [
        w for w in range(len(workers.own_s)) if w not in named and np.isfinite(findings.excess[w])
    ]
    side = [w for w in others if w in {s.worker for s in findings.suspects}]
    if side:
        lines.append(
            f"{', '.join(job.name(w) for w in side)} also over its peers, but fixing that saves next to nothing now"
        )
    elif others:
        lines.append(
            f"the other {len(others)} ranks are within {np.max(np.abs(findings.excess[others])):.1%} of their role"
        )
    lines += [link.describe(job.collectives.recorders) for link in links[:2]]
    if stages_s > LOSS_FLOOR * job.step_s:
        lines.append(
            f"the slowest role takes {stages_s * 1e3:.2f} ms more than the mean of the roles"
        )
    if not suspects and findings.rotating_loss >= DATA_FLOOR:
        lines.append(
            f"the slowest rank changes from step to step and costs {findings.rotating_loss:.1%} of the step"
        )
    return lines


def _notes(job: _Job, repeated: int) -> tuple[str, ...]:
    missing, notes = _missing(job), []
    if missing:
        shown = ", ".join(map(str, missing[:16]))
        notes.append(
            f"partial set: {job.world - len(missing)} of {job.world} ranks; missing {shown}"
        )
    if repeated:
        notes.append(
            f"{repeated} records were there before, in this file or another, and count once"
        )
    return tuple(notes)


def _overlap_note(
    fixer: Fixer, suspects: Sequence[Suspect], culprits: Sequence[Culprit]
) -> list[str]:
    """Said where it is plain: no rank alone has GPU work between two collectives."""
    slow = [s for s, c in zip(suspects, culprits, strict=False) if c.cause is CauseClass.COMPUTE]
    if not any(fixer.hidden_share(suspect) > OVERLAP_SHARE for suspect in slow):
        return []
    return [
        "collectives overlap compute: peers work while they wait, so the loss is less than excess and price say"
    ]


def _heat(job: _Job) -> Heat:
    workers = job.measured.workers
    rows = tuple(job.name(w) for w in range(len(workers.own_s)))
    ratio = np.empty_like(workers.own_s)
    for code in np.unique(workers.cohort):
        members = np.flatnonzero(workers.cohort == code)
        ratio[members] = workers.own_s[members] / pace_of(workers, int(members[0]), set())
    return Heat(rows, workers.steps, ratio)


def _too_little(source: str, present: int, world: int, steps: int) -> Answer:
    why = f"{present} rank recorded" if present < 2 else "no step was recorded whole"
    return Answer(
        source=source,
        not_sure=f"{why}: a comparison needs records of at least two ranks over some steps",
        gpus=world,
        steps=steps,
    )
