"""Which of the suspects of a recorded job are to blame, why, and what each costs.

Where all ranks share every collective, lateness is compared; a rank counts only if it comes later
than the last of the others by more than the job would notice. Where communicators with different
members follow each other, victims come late too; own time within the role and a replay of the
recording tell them from the culprit.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ingero.contract.collective import POINT_TO_POINT_OPS
from ingero.contract.verdict import CauseClass
from ingero.core.blame.host_or_gpu import classify
from ingero.core.blame.recorded.at_most import most_added
from ingero.core.blame.recorded.charges import charge_of, classify_lateness
from ingero.core.blame.recorded.gpu_bound import find_gpu_bound
from ingero.core.blame.recorded.late_host import launches_more
from ingero.core.blame.recorded.lateness import OVERLAP, Lateness, PlaceTables
from ingero.core.blame.recorded.loss import COSTLY, SIGMAS, Loss, block_error, measure_loss
from ingero.core.blame.recorded.replays import charge_by_replay
from ingero.core.blame.recorded.spells import Spell
from ingero.core.blame.recorded_job import RecordedJob
from ingero.core.collectives.columns import Floats
from ingero.core.collectives.pairs.kernels import is_in_swap
from ingero.core.robust import nan_median

JOINT = 2.0  # times what one rank must cost, where several are late together
NOTICEABLE = 0.003  # of the step: the least that a replay must save; own times are not exact
NOTICEABLE_BY_DURATIONS = 0.01  # the same where the scatter of transfers counts as own time, too
STANDS_OUT = 5.0  # times what other ranks add by chance, for a rank that is charged
STANDS_OUT_TOO = 2.0  # times that, if it is always the same place at which the rank is late
ADDS_MORE = 3.0  # times what other ranks add in a replay
MOST_COMPARED = 8  # other ranks show what is usual
BESIDE_SLOW_STAGE = 0.4  # of its excess: stages next to a slow one hide work in their waiting
HOST_CHANGED = 0.9  # of what its GPU is later by than usual: the queue of a GPU only hides delays
VICTIM = 0.75  # of the excess of another rank: the most that a rank can have by waiting for it
SIDE_EFFECT = 0.2  # of what another rank costs in the same steps: its consequence


@dataclass(frozen=True, slots=True)
class Blamed:
    """A suspect with its cause and the loss of the job while it is slow.

    `charge_s` is what the rank adds to a step; the loss is what the job notices of it. `host_s` and
    `gpu_s` say how late its host and its GPU are where that matters most, NaN where unknown.
    `is_by_queue` says that hosts pace the job, and only the queue of its GPU told the rank.
    """

    spell: Spell
    cause: CauseClass
    charge_s: float
    loss: Loss
    host_s: float = np.nan
    gpu_s: float = np.nan
    is_by_queue: bool = False

    @property
    def worker(self) -> int:
        return self.spell.worker


def find_blamed(job: RecordedJob) -> list[Blamed]:
    """Return the ranks that cost the job time or are late for nothing, the costliest first."""
    found = _by_lateness(job) if job.lateness is not None else _by_replay(job)
    found = found or _by_dependence(job)
    spells = [blamed.spell for blamed in found]
    workers = job.measured.workers
    priced = []
    for each in found:
        own = workers.own_s[each.worker]
        loss = measure_loss(workers.period_s, own, each.spell, spells, each.charge_s)
        if loss.calm_s is None:
            loss = _at_most(job, each, found, loss)
        priced.append(replace(each, loss=_shared(each, found, loss)))
    return sorted(priced, key=lambda blamed: -blamed.loss.lost_s * len(blamed.spell))


def total_loss(blamed: Sequence[Blamed], steps: int) -> float:
    """Return the seconds lost per recorded step; the losses of several ranks add up."""
    return sum(each.loss.lost_s * len(each.spell) for each in blamed) / max(1, steps)


def _at_most(job: RecordedJob, each: Blamed, found: Sequence[Blamed], loss: Loss) -> Loss:
    """Return a loss without calm steps as what a replay of the steps says, where there is one."""
    if not job.exact_ends or each.is_by_queue:
        return loss
    beside = [other for other in found if other.spell.overlap(each.spell) > 0.5]
    causes = {other.worker: other.cause for other in beside}
    added_s = most_added(job.collectives, job.measured, each.spell, causes)
    if added_s is None:
        return loss
    if _is_late_once(job, each):
        added_s = min(added_s, each.charge_s)
    share = each.charge_s / max(sum(other.charge_s for other in beside), 1e-12)
    return replace(loss, lost_s=min(added_s * share, loss.slow_s), is_replayed=True)


def _is_late_once(job: RecordedJob, each: Blamed) -> bool:
    """Whether a late host adds no more than it is late: all meet, and it waits once in a step."""
    is_shared = job.lateness is not None and job.lateness.group is None
    return is_shared and each.cause is CauseClass.HOST and not each.spell.suspect.stalls


def _shared(each: Blamed, found: Sequence[Blamed], loss: Loss) -> Loss:
    """Split a measured loss between ranks that are slow in the same steps, by what each adds."""
    if loss.calm_s is None or not loss.is_joint:
        return loss
    beside = [other for other in found if other.spell.overlap(each.spell) > 0.5]
    share = each.charge_s / max(sum(other.charge_s for other in beside), 1e-12)
    return replace(loss, lost_s=loss.lost_s * share)


def _by_lateness(job: RecordedJob) -> list[Blamed]:
    assert job.lateness is not None
    step = float(np.nanmedian(job.measured.workers.period_s))
    together = {spell.worker for spell in job.spells}
    found: list[Blamed] = []
    for spell in job.spells:
        cause, host_s, gpu_s = _class_of(job, spell)
        alone, joint = (
            float(charge_of(job.lateness, spell, named, cause).mean())
            for named in ({spell.worker}, together)
        )
        is_costly = alone >= COSTLY * step or joint >= JOINT * COSTLY * step
        usual = _usual_charge(job.lateness, spell, cause, together)
        charge = max(alone, joint)
        if is_costly and _stands_out(job.lateness, spell, charge, usual, together):
            charge = joint if joint >= JOINT * COSTLY * step else alone
            found.append(
                Blamed(spell, cause, charge, Loss(step, None, charge, None), host_s, gpu_s)
            )
    return _without_side_effects(found) or _by_queue(job, step)


def _stands_out(
    lateness: Lateness, spell: Spell, charge: float, usual: float, named: set[int]
) -> bool:
    """Whether a rank adds far more than others do by chance: in sum, or at the place it is late at.

    With many places, every rank is last at some of them, but not always at the same one.
    """
    if charge >= STANDS_OUT * usual:
        return True
    if lateness.group is not None or charge < STANDS_OUT_TOO * usual:
        return False
    added = np.nan_to_num(lateness.advance_s[:, spell.begin : spell.end]).mean(axis=1).max(axis=1)
    others = [added[w] for w in range(len(added)) if w not in named and w != spell.worker]
    return not others or added[spell.worker] >= STANDS_OUT * float(np.median(others))


def _usual_charge(lateness: Lateness, spell: Spell, cause: CauseClass, named: set[int]) -> float:
    """Return what a rank that nobody suspects adds in the same steps: some rank is always last."""
    added = [
        float(
            charge_of(
                lateness,
                replace(spell, suspect=replace(spell.suspect, worker=worker)),
                named | {worker},
                cause,
            ).mean()
        )
        for worker in range(len(lateness.start_s))
        if worker not in named
    ]
    return float(np.median(added)) if added else 0.0


def _by_queue(job: RecordedJob, step: float) -> list[Blamed]:
    """Return the rank whose GPU alone is behind, where all others wait for their hosts."""
    assert job.lateness is not None
    spell = find_gpu_bound(job.lateness, job.measured.workers.period_s)
    if spell is None:
        return []
    # Hosts that wait for a slow GPU are late in turn: it costs at most what all of them add.
    added = np.nanmean(job.lateness.advance_s[:, spell.begin : spell.end], axis=1)
    charge = max(spell.suspect.excess_s, float(np.nansum(added)))
    _, host_s, gpu_s = _class_of(job, spell)
    loss = Loss(step, None, charge, None)
    return [Blamed(spell, CauseClass.COMPUTE, charge, loss, host_s, gpu_s, True)]


def _by_replay(job: RecordedJob) -> list[Blamed]:
    likely = [spell for spell in job.spells if _is_costly(spell, job)]
    likely = [spell for spell in likely if not any(_is_victim(job, spell, by) for by in likely)]
    likely = [spell for spell in likely if not _waits_everywhere(job, spell)]
    # What a rank costs at most is replayed call by call later, for which ends must be known.
    least = NOTICEABLE if job.exact_ends else NOTICEABLE_BY_DURATIONS
    found = []
    for spell, charge_s in charge_by_replay(job, likely):
        if charge_s >= least * job.step_s:
            cause, host_s, gpu_s = _class_of(job, spell)
            charge = min(charge_s, _latest(job, spell))
            loss = Loss(job.step_s, None, charge, None)
            found.append(Blamed(spell, cause, charge, loss, host_s, gpu_s))
    return _without_side_effects(found)


def _by_dependence(job: RecordedJob) -> list[Blamed]:
    """Return the suspects without whom steps would be shorter, by what ranks really wait for."""
    if not job.exact_ends:
        return []
    found = []
    for spell in job.spells:
        if job.lateness is None and not _is_costly(spell, job):
            continue
        cause, host_s, gpu_s = _class_of(job, spell)
        charge_s = _added_alone(job, spell, spell.worker, cause)
        usual_s = _usually_added(job, spell, cause) if charge_s >= COSTLY * job.step_s else np.inf
        if charge_s >= ADDS_MORE * usual_s:
            loss = Loss(job.step_s, None, charge_s, None)
            found.append(Blamed(spell, cause, charge_s, loss, host_s, gpu_s))
    return _without_side_effects(found)


def _added_alone(job: RecordedJob, spell: Spell, worker: int, cause: CauseClass) -> float:
    alone = replace(spell, suspect=replace(spell.suspect, worker=worker))
    return most_added(job.collectives, job.measured, alone, {worker: cause}) or 0.0


def _usually_added(job: RecordedJob, spell: Spell, cause: CauseClass) -> float:
    """Return what ranks of the same role that nobody suspects add: arrivals scatter."""
    cohort, named = job.measured.workers.cohort, {each.worker for each in job.spells}
    others = [w for w in np.flatnonzero(cohort == cohort[spell.worker]).tolist() if w not in named]
    some = others[:: max(1, len(others) // MOST_COMPARED)]
    return float(np.median([_added_alone(job, spell, w, cause) for w in some])) if some else 0.0


def _latest(job: RecordedJob, spell: Spell) -> float:
    """Return how late a worker comes at most where it meets its replicas, in seconds per step.

    The job waits no longer for it. In a pipeline, own time also counts what other stages hide.
    """
    if job.places is None or not job.places.is_pair.any():
        return np.inf
    late = job.places.start_s[spell.worker, spell.begin : spell.end]
    late = np.where(job.places.is_pair[spell.worker] | np.isnan(late), 0.0, late).max(axis=1)
    most = float(late.mean()) + SIGMAS * block_error(late, lambda part: float(part.mean()))
    return most if most >= COSTLY * job.step_s else np.inf


def _class_of(job: RecordedJob, spell: Spell) -> tuple[CauseClass, float, float]:
    """Return why a worker is late, and how late its host and its GPU are where that shows."""
    cohort = job.measured.workers.cohort
    peers = np.flatnonzero(cohort == cohort[spell.worker])
    places = job.places
    if job.lateness is not None and job.lateness.overlaps_in_groups:
        places = job.lateness  # calls in flight do not show whether the GPU had work
    steps = slice(spell.begin, spell.end)
    is_partial = places is not None and not _meets_all(places, spell.worker, steps)
    if places is not None and not np.isfinite(places.start_s[spell.worker, steps]).any():
        return CauseClass.UNKNOWN, np.nan, np.nan  # whom it meets left no records there
    if places is not None and not is_partial and not _swaps(job, spell):
        overlaps = None
        if job.lateness is not None and job.lateness.group is None:
            overlaps = job.lateness.carried >= OVERLAP
        others = peers[peers != spell.worker].tolist()
        found = classify_lateness(places, spell, others, overlaps=overlaps)
        if found is not None:
            cause, place, host_s, gpu_s = found
            cause = _unless_launching(job, spell, cause)
            if cause is CauseClass.HOST and not _has_host_changed(places, spell, place):
                cause = CauseClass.UNKNOWN
            return cause, host_s, gpu_s
    inside, rows = spell.columns(len(job.measured.workers.steps)), job.measured.row_step
    part = replace(
        job.measured, row_step=np.where((rows >= 0) & inside[np.maximum(rows, 0)], rows, -1)
    )
    cause = classify(job.collectives, part, spell.suspect, job.exact_ends, is_partial)
    return cause, np.nan, np.nan


def _has_host_changed(places: PlaceTables, spell: Spell, place: int) -> bool:
    """Whether a host became later by most of what its GPU did, where both always are late."""
    if not spell.suspect.is_relative:
        return True
    late = np.stack((places.start_s, places.enqueue_s))[:, spell.worker, :, place]
    inside = spell.columns(late.shape[1])
    gpu_s, host_s = nan_median(late[:, inside], 1) - nan_median(late[:, ~inside], 1)
    return bool(host_s >= HOST_CHANGED * gpu_s)


def _meets_all(places: PlaceTables, worker: int, steps: slice) -> bool:
    """Whether a worker can be compared at all its places in these steps.

    Else its delay may have begun where it meets somebody without records. Members of a communicator
    that it meets at some places have records; at the others, ranks do not wait for each other.
    """
    comm = places.comm[worker]
    is_met = np.isfinite(places.start_s[worker, steps, : len(comm)]).any(axis=0)
    return bool((np.isin(comm, comm[is_met]) | places.is_pair[worker] | (comm < 0)).all())


def _swaps(job: RecordedJob, spell: Spell) -> bool:
    """Whether a worker sends and receives in one kernel, which ends as its last partner lets it.

    No two ranks then leave a place together, so lateness there does not show where it arose.
    """
    mine = job.collectives.who == job.measured.ranks[spell.worker]
    return bool(is_in_swap(job.collectives.take(mine)).any())


def _unless_launching(job: RecordedJob, spell: Spell, cause: CauseClass) -> CauseClass:
    """Return COMPUTE for a host that is late because it launches the extra work of its GPU."""
    lateness, places = job.lateness, job.places
    if cause is not CauseClass.HOST or spell.suspect.stalls or places is None:
        return cause
    if lateness is None or lateness.group is not None:
        return cause
    is_launching = launches_more(job.collectives, job.measured, places, spell)
    return CauseClass.COMPUTE if is_launching else cause


def _is_costly(spell: Spell, job: RecordedJob) -> bool:
    """Whether own time alone could cost what a job notices; regular stalls are no accident."""
    if spell.suspect.stall_period is not None or not job.exact_ends:
        return True
    beside = [other for other in job.spells if other.overlap(spell) > 0]
    largest = max(other.mean_excess_s for other in beside)
    is_pipeline = bool(job.collectives.has_op(POINT_TO_POINT_OPS).any())
    aside = BESIDE_SLOW_STAGE if is_pipeline else SIDE_EFFECT
    return spell.mean_excess_s >= max(COSTLY * job.step_s, aside * largest)


def _is_victim(job: RecordedJob, spell: Spell, other: Spell) -> bool:
    """Whether a worker waits for a slower one wherever both meet, in the same steps.

    Compute that overlaps collectives shows in the own time of whoever waits less than usual.
    """
    if job.places is None or spell.mean_excess_s >= VICTIM * other.mean_excess_s:
        return False
    if spell.overlap(other) <= 0.5:
        return False
    common = slice(max(spell.begin, other.begin), min(spell.end, other.end))
    late = [job.meeting_lateness(common, each.worker) for each in (spell, other)]
    shared = late[0].keys() & late[1].keys()
    return bool(shared) and all(late[0][group] < min(late[1][group], 0.0) for group in shared)


def _waits_everywhere(job: RecordedJob, spell: Spell) -> bool:
    """Whether a worker comes early to all groups it meets: then the job waits for others.

    Where stages follow each other, everybody in the pipeline of a slow rank comes late to its
    replicas, and everybody in the other pipelines waits there.
    """
    if job.places is None or spell.suspect.stalls:
        return False
    late = job.places.start_s[spell.worker, spell.begin : spell.end]
    comm = np.where(job.places.is_pair[spell.worker], -1, job.places.comm[spell.worker])
    met = [np.nansum(late[:, comm == code], axis=1) for code in np.unique(comm[comm >= 0])]
    return bool(met) and all(_is_below_zero(each) for each in met)


def _is_below_zero(late_s: Floats) -> bool:
    return float(np.median(late_s)) < -SIGMAS * block_error(late_s, lambda x: float(np.median(x)))


def _without_side_effects(found: list[Blamed]) -> list[Blamed]:
    return [
        each
        for each in found
        if not any(
            each.charge_s < SIDE_EFFECT * other.charge_s and each.spell.overlap(other.spell) > 0.5
            for other in found
        )
    ]
