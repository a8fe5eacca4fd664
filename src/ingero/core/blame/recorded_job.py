"""A recorded job on its way to an answer: its records, their steps and what own time shows."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ingero.contract.collective import encode_comm
from ingero.core.blame.answer import Heat
from ingero.core.blame.record_fixes import pace_of
from ingero.core.blame.record_steps import RecordSteps
from ingero.core.blame.recorded.lateness import Lateness, PlaceTables, as_own_time
from ingero.core.blame.recorded.spells import Spell
from ingero.core.blame.recorded.uneven import LastArrivers
from ingero.core.blame.suspects import MIN_STEPS_TO_DROP, WARM_UP_STEPS, Findings, WorkerSteps
from ingero.core.collectives.columns import Collectives
from ingero.core.collectives.matching import match_collectives

MOST_LISTED = 8
BUSY = 0.7  # of the step: a stage that all others wait for works at least so long


@dataclass(frozen=True, slots=True)
class RecordedJob:
    """`exact_ends` says that end times are the GPU's; `labels` names communicators.

    `places` is None without times of the GPU, and `lateness` where own time tells who is slow.
    """

    collectives: Collectives
    measured: RecordSteps
    findings: Findings
    spells: tuple[Spell, ...]
    places: PlaceTables | None
    lateness: Lateness | None
    last: LastArrivers
    step_s: float
    world: int
    exact_ends: bool
    labels: Mapping[int, str]

    def comm_name(self, comm: int) -> str:
        """Return the framework's name of a communicator, else its hash, with its ranks."""
        c = self.collectives
        codes = np.unique(c.who[c.comm == np.uint64(comm)])
        known = sorted(c.recorders[w].global_rank or 0 for w in codes)
        ranks = [str(rank) for rank in known]
        shown = ", ".join(ranks[:MOST_LISTED]) + (", …" if len(ranks) > MOST_LISTED else "")
        return f"{self.labels.get(comm) or 'communicator ' + encode_comm(comm)} (ranks {shown})"

    def name(self, worker: int) -> str:
        """Return the rank of a worker, else its node, else its number."""
        recorder = self.collectives.recorders[self.measured.ranks[worker]]
        if recorder.global_rank is not None:
            return f"rank {recorder.global_rank}"
        return recorder.node or f"recorder {worker}"

    def times(self, begin: int, end: int) -> tuple[float, float]:
        """Return the Unix seconds at which the steps from `begin` to `end` began and ended."""
        rows = self.measured.row_step
        ends = self.collectives.end_ns[(rows >= begin) & (rows < end)]
        return float(ends.min()) / 1e9, float(ends.max()) / 1e9

    def meeting_lateness(self, steps: slice, worker: int) -> dict[int, float]:
        """Return how late a worker comes to each of its communicators, in seconds per step.

        Sends and receives are left out: one end of a pair waits by nature.
        """
        if self.places is None:
            return {}
        c, at, place = self.collectives, self.measured.row_step, self.measured.row_place
        mine = (c.who == self.measured.ranks[worker]) & (place >= 0) & (c.peer < 0)
        rows = np.flatnonzero(mine & (at >= steps.start) & (at < steps.stop))
        late = np.nan_to_num(self.places.start_s[worker, at[rows], place[rows]])
        comms, which = np.unique(c.comm[rows], return_inverse=True)
        sums = np.bincount(which, late, len(comms)) / max(1, steps.stop - steps.start)
        return dict(zip(comms.tolist(), sums.tolist(), strict=True))

    def missing_ranks(self) -> list[int]:
        """Return the ranks of the job that left no records."""
        recorders = (self.collectives.recorders[code] for code in self.measured.ranks)
        known = {each.global_rank for each in recorders if each.global_rank is not None}
        return sorted(set(range(self.world)) - known) if known else []

    def heat(self) -> Heat:
        """Return own times relative to the pace of their role, or lateness on top of a step.

        Rows are in the order of the ranks.
        """
        workers = self.measured.workers
        if self.lateness is not None:
            workers = as_own_time(self.lateness, workers)
        rows = tuple(self.name(w) for w in range(len(workers.own_s)))
        ratio = np.empty_like(workers.own_s)
        for code in np.unique(workers.cohort):
            members = np.flatnonzero(workers.cohort == code)
            ratio[members] = workers.own_s[members] / pace_of(workers, int(members[0]), set())
        ranks = [self.collectives.recorders[code].global_rank for code in self.measured.ranks]
        order = sorted(range(len(rows)), key=lambda w: (ranks[w] is not None, ranks[w] or 0, w))
        return Heat(tuple(rows[w] for w in order), workers.steps, ratio[order])


def mean_period(workers: WorkerSteps) -> float:
    """Return the mean length of a step, without the warm-up of a long recording."""
    is_long = len(workers.period_s) >= MIN_STEPS_TO_DROP
    return float(np.nanmean(workers.period_s[WARM_UP_STEPS if is_long else 0 :]))


def structural_loss(workers: WorkerSteps, named: set[int]) -> float:
    """Return by how many seconds the slowest role exceeds the mean of all roles.

    Workers that are `named` are left out. With a single role the result is 0, and also where the
    slowest role itself waits for long: then others hide their work in receives posted ahead.
    """
    levels = []
    for code in np.unique(workers.cohort):
        members = [w for w in np.flatnonzero(workers.cohort == code) if w not in named]
        if members and np.isfinite(workers.own_s[members]).any():
            levels.append(float(np.nanmedian(workers.own_s[members])))
    if len(levels) < 2 or max(levels) < BUSY * float(np.nanmedian(workers.period_s)):
        return 0.0
    return max(levels) - float(np.mean(levels))


def unexplained_wait(job: RecordedJob) -> float:
    """Return the share of a step that even the rank which waits least spends waiting.

    It is 0 where all ranks left records.
    """
    if not job.missing_ranks():
        return 0.0
    c = job.collectives
    groups = match_collectives(c)
    size = int(groups.max(initial=-1)) + 1
    is_whole = np.bincount(groups, minlength=size)[groups] >= c.nranks
    shortest = np.full(size, np.inf)
    np.minimum.at(shortest, groups, c.duration_ns / 1e9)
    kinds = np.stack([c.op, c.size_bytes, c.nranks], 1)
    kind = np.unique(kinds, axis=0, return_inverse=True)[1].reshape(-1)
    typical = np.full(int(kind.max()) + 1, np.nan)
    for code in np.unique(kind[is_whole]):
        typical[code] = np.median(shortest[groups[is_whole & (kind == code)]])
    waited = np.maximum(0.0, c.duration_ns / 1e9 - typical[kind])
    waited = np.where(job.measured.row_step >= 0, np.nan_to_num(waited), 0.0)
    per_rank = [waited[c.who == code].sum() for code in job.measured.ranks]
    return float(min(per_rank) / max(1, len(job.measured.workers.steps)) / job.step_s)


def is_connected(job: RecordedJob) -> bool:
    """Whether all ranks meet in the collectives of their steps, directly or through others.

    Where they do not, what they wait for is not recorded, as sends and receives of the Inspector.
    """
    c = job.collectives
    comms = np.unique(c.comm, return_inverse=True)[1].reshape(-1)
    placed = job.measured.row_step >= 0
    links = np.unique(np.stack([comms[placed], c.who[placed]], 1), axis=0)
    reached = np.isin(np.array(job.measured.ranks), job.measured.ranks[:1])
    for _ in job.measured.ranks:
        met = links[np.isin(links[:, 1], np.array(job.measured.ranks)[reached]), 0]
        wider = np.isin(job.measured.ranks, links[np.isin(links[:, 0], met), 1]) | reached
        if (wider == reached).all():
            break
        reached = wider
    return bool(reached.all())
