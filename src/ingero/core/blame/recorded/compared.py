"""What tells the ranks of a recorded job apart: own time, or how late they come."""

from itertools import combinations

import numpy as np

from ingero.core.blame.record_steps import RecordSteps
from ingero.core.blame.recorded.chained import measure_chained
from ingero.core.blame.recorded.gpu_bound import find_gpu_bound
from ingero.core.blame.recorded.lateness import (
    Lateness,
    PlaceTables,
    as_own_time,
    measure_lateness,
    without_overlap,
)
from ingero.core.blame.recorded.loss import COSTLY
from ingero.core.blame.recorded.spells import Spell, find_spells
from ingero.core.blame.suspects import Findings, WorkerSteps
from ingero.core.collectives.columns import Collectives

Compared = tuple[Lateness | None, Findings, tuple[Spell, ...]]


def compare_ranks(
    collectives: Collectives, measured: RecordSteps, places: PlaceTables | None
) -> Compared:
    """Return what is found by lateness where that tells who is to blame, else by own time.

    Where that finds nobody, or several in the same steps, own time along the calls that ranks wait
    for may still tell the slow rank from those who wait for it.
    """
    compared = _by_lateness_or_own(collectives, measured, places)
    if places is None or _is_clear(measured.workers, *compared):
        return compared
    chained = measure_chained(collectives, measured)
    if chained is None:
        return compared
    chain = (None, *find_spells(chained))
    named = {each.worker for each in chain[2]}
    costly = [each for each in compared[2] if _could_cost(each, measured.workers)]
    before = {each.worker for each in costly} | set(compared[1].split)
    # Who waits for a slow rank works for no longer than it, so the slowest is no victim.
    slowest = max(costly, key=lambda each: each.mean_excess_s, default=None)
    is_known = not before or (named <= before and (slowest is None or slowest.worker in named))
    return chain if _is_clear(chained, *chain) and is_known else compared


def _is_clear(
    workers: WorkerSteps,
    lateness: Lateness | None,
    findings: Findings,
    spells: tuple[Spell, ...],
) -> bool:
    """Whether somebody is found, and not several ranks that may wait for each other."""
    if lateness is not None:
        return bool(spells) or find_gpu_bound(lateness, workers.period_s) is not None
    costly = [spell for spell in spells if _could_cost(spell, workers)]
    at_once = any(one.overlap(other) > 0.5 for one, other in combinations(costly, 2))
    return bool(costly) and not at_once and not findings.split


def _could_cost(spell: Spell, workers: WorkerSteps) -> bool:
    """Whether own time alone could cost what a job notices; much of little own time is little."""
    step_s = float(np.nanmedian(workers.period_s))
    return spell.suspect.stall_period is not None or spell.mean_excess_s >= COSTLY * step_s


def _by_lateness_or_own(
    collectives: Collectives, measured: RecordSteps, places: PlaceTables | None
) -> Compared:
    workers = measured.workers
    lateness = None if places is None else measure_lateness(collectives, measured, places)
    if lateness is None:
        findings, spells = find_spells(workers)
        is_open = bool(findings.split) or not any(_could_cost(each, workers) for each in spells)
        found = _by_groups(collectives, measured, places) if is_open else None
        return found or (None, findings, spells)
    findings, spells = find_spells(as_own_time(lateness, workers))
    apart = without_overlap(lateness) if not spells else None
    if apart is None:
        return lateness, findings, spells
    return apart, *find_spells(as_own_time(apart, workers))


def _by_groups(
    collectives: Collectives, measured: RecordSteps, places: PlaceTables | None
) -> Compared | None:
    """Return what lateness in groups shows where own time names nobody, or half of a role.

    The group of a slow rank waits for it, and the other groups wait for that group in collectives
    that hide their compute: own time then seems to have grown in the whole group.
    """
    lateness = None if places is None else measure_lateness(collectives, measured, places, True)
    if lateness is None or lateness.group is None:
        return None
    is_met = np.isfinite(lateness.start_s).any(axis=1)
    if (~is_met & (lateness.group >= 0)).any():
        return None  # of some group, a member left no records: it may be the slow one
    findings, spells = find_spells(as_own_time(lateness, measured.workers))
    return (lateness, findings, spells) if spells and not findings.split else None
