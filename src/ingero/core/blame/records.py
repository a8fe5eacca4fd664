"""Blame of recorded collectives: who is slow, why, and what it costs.

Lateness or own time names the rank, the enqueue distinguishes host from GPU, and calm steps of the
same recording give the cost.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from ingero.contract.verdict import CauseClass
from ingero.core.blame.answer import LATER, NEXT_STEPS, Answer, Culprit, Fix
from ingero.core.blame.record_steps import measure_steps
from ingero.core.blame.record_text import (
    DATA_FLOOR,
    LOSS_FLOOR,
    describe_doubt,
    describe_evidence,
    describe_notes,
)
from ingero.core.blame.recorded.blamed import Blamed, find_blamed, total_loss
from ingero.core.blame.recorded.compared import compare_ranks
from ingero.core.blame.recorded.lateness import measure_places
from ingero.core.blame.recorded.link_spells import LinkSpell, find_link_spell, links_loss
from ingero.core.blame.recorded.uneven import measure_last
from ingero.core.blame.recorded_job import (
    RecordedJob,
    is_connected,
    mean_period,
    structural_loss,
    unexplained_wait,
)
from ingero.core.blame.suspects import Suspect
from ingero.core.blame.transfer import SlowLink
from ingero.core.collectives.arrivals import measure_arrivals
from ingero.core.collectives.columns import Collectives, distinct
from ingero.core.collectives.lag import measure_lag
from ingero.core.collectives.matching import match_collectives
from ingero.core.collectives.pairs.exchanges import join_exchanges
from ingero.core.collectives.pairs.numbers import number_point_to_point
from ingero.core.collectives.pairs.swap_ends import end_with_peers
from ingero.core.places.charged import describe_collective, ranks_text
from ingero.core.places.links import locate_link

EVEN = 0.6  # how evenly the slowest place must rotate to mean uneven data, 1 being perfectly
LINKS_EXPLAIN = 0.5  # of what a rank adds: slow transfers that cost as much are the cause
STAGE_FLOOR = 0.1  # of the step: gaps between transfers show the work of a stage only roughly
COMM_MASK = 0xFFFFFFFFFFFFFFFF
FIX_NAMES: Final = {
    CauseClass.NETWORK: "link as fast as the others",
    CauseClass.STRUCTURAL: "stages balanced",
    CauseClass.DATA_IMBALANCE: "equal work for every rank",
}
CAUSE_DETAIL: Final = {
    CauseClass.COMPUTE: "; its collectives were enqueued in time, the GPU was late",
    CauseClass.HOST: "; the GPU was idle until the host enqueued",
}


def blame_records(
    collectives: Collectives,
    exact_ends: bool,
    source: str,
    world: int | None = None,
    labels: Mapping[int, str] | None = None,
) -> Answer:
    """Name the slow ranks of a recorded job, or what else costs it time.

    `exact_ends` says that end times are the GPU's, not a poll's; `labels` names communicators.
    """
    given = len(collectives)
    collectives = distinct(collectives)
    repeated = given - len(collectives)
    recorded = number_point_to_point(join_exchanges(collectives))
    collectives = end_with_peers(recorded)
    measured = measure_steps(collectives, exact_ends)
    workers, present = measured.workers, len(measured.ranks)
    in_steps = collectives.nranks[measured.row_step >= 0]
    world = max(world or 0, present, int(in_steps.max(initial=0)))
    step_s = mean_period(workers) if workers.own_s.size else 0.0
    if not step_s or present < 2:  # the length is also 0 where all times are the same
        return _too_little(source, present, world, len(workers.steps))
    arrivals = measure_arrivals(collectives, match_collectives(collectives))
    places = measure_places(collectives, measured, arrivals) if exact_ends else None
    lateness, findings, spells = compare_ranks(collectives, measured, places)
    last = measure_last(collectives, measured, arrivals, step_s, exact_ends)
    job = RecordedJob(
        collectives,
        measured,
        findings,
        spells,
        places,
        lateness,
        last,
        step_s,
        world,
        exact_ends,
        labels or {},
    )
    return _answer(job, recorded, source, repeated)


def _answer(job: RecordedJob, recorded: Collectives, source: str, repeated: int) -> Answer:
    """Return the answer; `recorded` has the times of transfers without waits that were added."""
    workers = job.measured.workers
    steps = len(workers.steps)
    found = _unless_others_wait(job, find_blamed(job))
    late = [each for each in found if each.loss.costs_nothing and not each.spell.is_over(steps)]
    blamed = [each for each in found if not each.loss.costs_nothing]
    culprits = tuple(_culprit(job, each) for each in blamed)
    slow = find_link_spell(recorded, job.measured.row_step, workers.period_s, job.step_s)
    if slow is not None and culprits and links_loss(slow.links) < LINKS_EXPLAIN * _most(blamed):
        slow = None  # it is the rank that is slow
    if slow is not None:  # who waits for a slow link looks slow itself
        blamed, culprits = [], ()
    links = () if slow is None else slow.links
    saved_s = min(total_loss(blamed, steps), job.step_s)
    stages_s = structural_loss(workers, {each.worker for each in found})
    cause, loss_s = _cause(job, culprits, links, saved_s, stages_s)
    if slow is not None and cause is CauseClass.NETWORK:
        culprits = tuple(_link_culprits(job, slow))
        loss_s = slow.loss.lost_s * (slow.end - slow.begin) / max(1, steps)
    blamed_links = links if cause is CauseClass.NETWORK else ()
    suspects = [each.spell.suspect for each in blamed]
    return Answer(
        source=source,
        culprits=culprits,
        late=tuple(_culprit(job, each) for each in late),
        cause=cause,
        not_sure=describe_doubt(job, suspects, culprits, blamed_links),
        evidence=tuple(describe_evidence(job, blamed, links, stages_s)),
        notes=tuple(describe_notes(job, repeated)),
        step_time_s=job.step_s,
        ideal_step_time_s=job.step_s - loss_s,
        loss_s=loss_s,
        gpus=job.world,
        steps=steps,
        fixes=_fixes(job, blamed, saved_s, cause, loss_s),
        heat=job.heat(),
    )


def _most(blamed: Sequence[Blamed]) -> float:
    return max((each.charge_s for each in blamed), default=0.0)


def _unless_others_wait(job: RecordedJob, found: list[Blamed]) -> list[Blamed]:
    """Return those who cost more than all ranks wait for somebody who left no records."""
    waited_s = unexplained_wait(job) * job.step_s if found else 0.0
    if waited_s < LOSS_FLOOR * job.step_s:
        return found
    return [each for each in found if each.charge_s >= waited_s]


def _too_little(source: str, present: int, world: int, steps: int) -> Answer:
    why = f"{present} rank recorded" if present < 2 else "no step was recorded completely"
    return Answer(
        source=source,
        not_sure=f"{why}: a comparison needs records of at least two ranks over some steps",
        gpus=world,
        steps=steps,
    )


def _fixes(
    job: RecordedJob,
    blamed: Sequence[Blamed],
    saved_s: float,
    cause: CauseClass | None,
    loss_s: float,
) -> tuple[Fix, ...]:
    """Return what each fix would save per recorded step, the largest saving first."""
    steps = len(job.measured.workers.steps)
    saved = [(job.name(each.worker), total_loss([each], steps)) for each in blamed]
    if len(blamed) > 1:
        saved.append(("all of them", saved_s))
    if cause in FIX_NAMES:
        saved.append((FIX_NAMES[cause], loss_s))
    fixes = [Fix(what, job.step_s - seconds, seconds) for what, seconds in saved]
    return tuple(sorted(fixes, key=lambda fix: -fix.saved_s))


def _culprit(job: RecordedJob, each: Blamed) -> Culprit:
    suspect, spell, numbers = each.spell.suspect, each.spell, job.measured.workers.steps
    recorder = job.collectives.recorders[job.measured.ranks[suspect.worker]]
    if suspect.stall_period:
        often = f"every {suspect.stall_period} steps"
    elif suspect.stalls:
        often = f"in {len(suspect.stalls)} steps"
    else:
        often = f"in {suspect.named_share:.0%} of the steps"
    over = "own time over" if job.lateness is None else LATER
    return Culprit(
        worker=job.name(suspect.worker),
        rank=recorder.global_rank,
        node=recorder.node,
        cause=each.cause,
        loss=each.loss.share,
        loss_error=each.loss.error,
        at_most=each.loss.calm_s is None,
        steps=(numbers[spell.begin], numbers[spell.end - 1]),
        times=job.times(spell.begin, spell.end),
        excess=suspect.excess,
        error=suspect.error,
        excess_s=suspect.excess_s,
        confidence=suspect.confidence,
        period=suspect.stall_period,
        collective=_awaited_collective(job, suspect),
        detail=f"{over} {suspect.peers} peers {often}{CAUSE_DETAIL.get(each.cause, '')}",
        next_step=NEXT_STEPS.get(
            each.cause,
            "record with the NCCL plugin to distinguish host from GPU (`ingero run --print-env`)",
        ),
    )


def _awaited_collective(job: RecordedJob, suspect: Suspect) -> str | None:
    """Return the collective in which the others lose most time to this rank."""
    c = job.collectives
    rows = np.flatnonzero(c.who == job.measured.ranks[suspect.worker])
    lateness = np.nan_to_num(measure_lag(c, match_collectives(c)).lateness_ms)[rows]
    if not len(rows) or lateness.max() <= 0:
        return None
    key = np.stack([c.comm[rows].view(np.int64), c.op[rows]], 1)
    found, inverse = np.unique(key, axis=0, return_inverse=True)
    comm, op = found[int(np.bincount(inverse.reshape(-1), lateness).argmax())]
    return f"{c.ops[op]} of {job.comm_name(int(comm) & COMM_MASK)}"


def _cause(
    job: RecordedJob,
    culprits: Sequence[Culprit],
    links: tuple[SlowLink, ...],
    saved_s: float,
    stages_s: float,
) -> tuple[CauseClass | None, float]:
    """Return the cause of the largest loss, and that loss in seconds per step."""
    if culprits:
        return culprits[0].cause, saved_s
    findings = job.findings
    data_s = 0.0
    if findings.rotation >= EVEN and job.last.is_uneven and is_connected(job):
        # Who waits for a slow link comes last elsewhere, and that is not its work.
        data_s = max(0.0, job.last.added * job.step_s - links_loss(links))
        if not job.exact_ends:  # own time is all time outside of collectives then
            data_s = min(data_s, findings.rotating_loss * job.step_s)
    options = [
        (CauseClass.NETWORK, links_loss(links), LOSS_FLOOR),
        (CauseClass.STRUCTURAL, stages_s, STAGE_FLOOR),
        (CauseClass.DATA_IMBALANCE, data_s, DATA_FLOOR),
    ]
    likely = [
        (cause, loss)
        for cause, loss, floor in options
        if loss >= floor * job.step_s and not findings.split
    ]
    return max(likely, key=lambda option: option[1]) if likely else (None, 0.0)


def _link_culprits(job: RecordedJob, slow: LinkSpell) -> list[Culprit]:
    """Return the rank that all slow communicators share, or both ends of a slow pair."""
    ranks = [recorder.global_rank for recorder in job.collectives.recorders]
    nodes = {r.global_rank: r.node for r in job.collectives.recorders if r.global_rank is not None}
    place = locate_link(
        [frozenset(ranks[m] or 0 for m in link.members) for link in slow.links],
        [frozenset(ranks[m] or 0 for m in group) for link in slow.links for group in link.fast],
        nodes,
    )
    if place is None or not 0 < len(place.ranks) <= 2:
        return []
    slowest, numbers = slow.links[0], job.measured.workers.steps
    return [
        Culprit(
            worker=f"rank {rank}",
            rank=rank,
            node=nodes.get(rank),
            cause=CauseClass.NETWORK,
            loss=slow.loss.share,
            loss_error=slow.loss.error,
            at_most=slow.loss.calm_s is None,
            steps=(numbers[slow.begin], numbers[slow.end - 1]),
            times=job.times(slow.begin, slow.end),
            link=place.text,
            excess=slowest.ratio - 1,
            error=slowest.error,
            excess_s=slowest.loss_s,
            confidence=0.9 if len(place.ranks) == 1 else 0.8,
            collective=describe_collective(
                slowest.op,
                slowest.size_bytes,
                ranks_text(
                    sorted(ranks[m] or 0 for m in slowest.members), len(slowest.members), job.world
                ),
            ),
            detail="all ranks arrive together, yet the transfer takes "
            f"{slowest.ratio:.1f}x that of comparable ones",
            next_step=NEXT_STEPS[CauseClass.NETWORK],
        )
        for rank in place.ranks
    ]
