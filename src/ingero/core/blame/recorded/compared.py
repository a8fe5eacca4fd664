"""What tells the ranks of a recorded job apart: own time, or how late they come."""

from itertools import combinations

import numpy as np

from ingero.core.blame.record_steps import RecordSteps
from ingero.core.blame.recorded.chained import measure_chained
from ingero.core.blame.recorded.lateness import (
    Lateness,
    PlaceTables,
    as_own_time,
    measure_lateness,
    without_overlap,
)
from ingero.core.blame.recorded.spells import Spell, find_spells
from ingero.core.blame.suspects import Findings
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
    if places is None or _is_clear(*compared):
        return compared
    chained = measure_chained(collectives, measured)
    if chained is None:
        return compared
    chain = (None, *find_spells(chained))
    before = {spell.worker for spell in compared[2]} | set(compared[1].split)
    is_known = not before or {spell.worker for spell in chain[2]} <= before
    return chain if _is_clear(*chain) and is_known else compared


def _is_clear(lateness: Lateness | None, findings: Findings, spells: tuple[Spell, ...]) -> bool:
    if lateness is not None:
        return bool(spells)
    at_once = any(one.overlap(other) > 0.5 for one, other in combinations(spells, 2))
    return bool(spells) and not at_once and not findings.split


def _by_lateness_or_own(
    collectives: Collectives, measured: RecordSteps, places: PlaceTables | None
) -> Compared:
    workers = measured.workers
    lateness = None if places is None else measure_lateness(collectives, measured, places)
    if lateness is None:
        findings, spells = find_spells(workers)
        is_open = bool(findings.split) or not spells
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
