"""How late each rank comes to the collectives of a step, where all ranks share every collective.

All ranks leave a collective together, so a rank that comes late to the next one is late by its own
doing. Where collectives overlap compute, ranks work while they wait: one delay shows again at later
places of the step, so the largest lateness of the step counts. Where compute follows collectives,
each place adds its own delay, so their sum counts. Which of both holds is measured in the scatter
of the job itself.
"""

from dataclasses import dataclass, replace

import numpy as np

from ingero.core.blame.record_steps import RecordSteps
from ingero.core.blame.suspects import WorkerSteps
from ingero.core.collectives.arrivals import Arrivals
from ingero.core.collectives.columns import Collectives, Floats

MIN_KNOWN = 0.5  # of the cells must have an arrival
MIN_PAIRS = 64  # neighbouring places, before their dependence is believed
OVERLAP = 0.15  # of the scatter at one place is found again at the next; without overlap it is none


@dataclass(frozen=True, slots=True)
class Lateness:
    """Seconds as [worker, step, place]: GPU and host against the median of the others.

    `new_s` is [worker, step]: the lateness that arose in the step, each delay counted once.
    `carried` is the share of a delay that shows again at the next place.
    """

    start_s: Floats
    enqueue_s: Floats
    advance_s: Floats
    new_s: Floats
    carried: float


def measure_lateness(
    collectives: Collectives, measured: RecordSteps, arrivals: Arrivals
) -> Lateness | None:
    """Return the lateness of all ranks; None where ranks meet in different communicators."""
    rows = np.flatnonzero((measured.row_step >= 0) & (measured.row_place >= 0))
    if not len(rows) or not _all_share(collectives, rows, len(measured.ranks)):
        return None
    shape = (
        len(measured.ranks),
        len(measured.workers.steps),
        int(measured.row_place[rows].max()) + 1,
    )
    worker = np.searchsorted(np.array(measured.ranks), collectives.who[rows])
    at = (worker, measured.row_step[rows], measured.row_place[rows])
    tables = []
    for column in (arrivals.start_late_s, arrivals.enqueue_late_s, arrivals.advance_s):
        table = np.full(shape, np.nan)
        table[at] = column[rows]
        tables.append(table)
    start, enqueue, advance = tables
    if np.isfinite(start).mean() < MIN_KNOWN:
        return None
    carried = _carried_share(start)
    known = np.isfinite(start).any(axis=2)
    once = np.nansum if carried < OVERLAP else _largest
    return Lateness(start, enqueue, advance, np.where(known, once(start, axis=2), np.nan), carried)


def _largest(late: Floats, axis: int) -> Floats:
    largest: Floats = np.where(np.isfinite(late), late, -np.inf).max(axis=axis)
    return largest


def as_own_time(lateness: Lateness, workers: WorkerSteps) -> WorkerSteps:
    """Return own times that differ by lateness alone, on top of the usual length of a step."""
    usual = float(np.nanmedian(workers.period_s))
    own = np.maximum(usual + lateness.new_s, 0.1 * usual)
    return replace(workers, own_s=np.where(np.isfinite(workers.own_s), own, np.nan))


def _all_share(collectives: Collectives, rows: np.ndarray, ranks: int) -> bool:
    pairs = np.unique(
        np.stack([collectives.comm[rows].view(np.int64), collectives.who[rows]], 1), axis=0
    )
    members = np.unique(pairs[:, 0], return_counts=True)[1]
    pairwise = collectives.peer[rows] >= 0
    return bool((members == ranks).all()) and not pairwise.any()


def _carried_share(start: Floats) -> float:
    """Return how much of the lateness at one place is found again at the next, between 0 and 1.

    Lasting differences between ranks, and faults that begin, say nothing about that: each rank is
    compared with itself one step before.
    """
    scatter = np.diff(start, axis=1)
    before, after = scatter[:, :, :-1].ravel(), scatter[:, :, 1:].ravel()
    known = np.isfinite(before) & np.isfinite(after)
    before, after = before[known], after[known]
    if len(before) < MIN_PAIRS:
        return 0.0
    limit = 3 * max(float(np.quantile(np.abs(before), 0.75)), 1e-9)  # hiccups weigh no more
    before, after = np.clip(before, -limit, limit), np.clip(after, -limit, limit)
    power = float((before**2).sum())
    return float(np.clip((before * after).sum() / power, 0.0, 1.0)) if power > 0 else 0.0
