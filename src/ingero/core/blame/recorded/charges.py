"""What late ranks add to a step, and why, where all ranks share every collective."""

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from ingero.contract.verdict import CauseClass
from ingero.core.blame.recorded.lateness import (
    OVERLAP,
    RARELY,
    Lateness,
    PlaceTables,
    least_of_groups,
)
from ingero.core.blame.recorded.spells import Spell
from ingero.core.collectives.columns import Floats
from ingero.core.robust import nan_median

GPU_SHARE = 0.25  # of the largest lateness: what the enqueue must leave unexplained
MOSTLY = 0.5  # of the lateness of all places, where it adds up
HARMLESS = 0.9  # quantile of how late hosts of peers are without consequence
CHARGED = 0.5  # of the largest charges: steps in which the rank is charged


def charge_of(
    lateness: Lateness, spell: Spell, named: Collection[int], cause: CauseClass
) -> Floats:
    """Return the seconds that a rank adds to each step of its spell beyond the ranks not named.

    A late host stays late until it waits for its GPU, and overlapped compute hides waiting: then
    the same delay shows at several places and counts once. Else the places add up.
    """
    if lateness.group is not None:
        late = lateness.advance_s[[spell.worker], spell.begin : spell.end]
        adds = None if lateness.adds is None else lateness.adds[[spell.worker]]
        least: Floats = least_of_groups(late, lateness.group[[spell.worker]], adds)[0]
        return least
    late = lateness.start_s[:, spell.begin : spell.end]
    others = np.array([w not in named and w != spell.worker for w in range(len(late))])
    known = np.where(np.isfinite(late), late, -np.inf)
    last = known[others].max(axis=0) if others.any() else np.zeros(late.shape[1:])
    is_known = np.isfinite(last) & np.isfinite(late[spell.worker])
    beyond = np.zeros_like(last)  # where nobody else left a record, nobody is known to wait
    beyond[is_known] = np.maximum(late[spell.worker][is_known] - last[is_known], 0.0)
    if cause is CauseClass.HOST or lateness.carried >= OVERLAP:
        once: Floats = beyond.max(axis=1)
        return once
    total: Floats = beyond.sum(axis=1)
    return total


def classify_lateness(
    places: PlaceTables, spell: Spell, peers: Sequence[int], *, overlaps: bool | None = None
) -> tuple[CauseClass, int, float, float] | None:
    """Return host or compute, the place that decides, and how late host and GPU are there.

    `overlaps` says that collectives overlap compute, or that each place adds its own delay. None
    where neither is known.

    A GPU is never later than its host made it. Where it is later than its own enqueue explains, at
    any place of the step, the GPU is slow; hosts that wait for their GPUs enqueue late as well, but
    later in the step. None without arrivals of the rank or its `peers`.
    """
    part = slice(spell.begin, spell.end)
    start, enqueue = places.start_s[:, part], places.enqueue_s[:, part]
    mine = np.nan_to_num(np.maximum(start[spell.worker], 0.0))
    most = int(mine.mean(axis=0).argmax())
    slow = mine[:, most] >= CHARGED * np.quantile(mine[:, most], 0.95)
    if spell.suspect.stalls:
        slow = np.isin(np.arange(spell.begin, spell.begin + len(slow)), spell.suspect.stalls)
    mean = (_at_places(places, table[:, slow], spell.worker, peers) for table in (start, enqueue))
    gpu_s, host_s = mean
    if not np.isfinite(gpu_s - host_s).any():
        return None
    peak = int(np.nanargmax(gpu_s))
    # Where hosts of peers are as late without consequence, a late host explains nothing.
    explains = host_s > _harmless(start[peers], enqueue[peers])
    explained = np.where(explains, host_s, 0.0)
    if not isinstance(places, Lateness):
        idle_s = places.idle_s[spell.worker, part][slow]
        carries = _carries(places, spell.worker, bool(overlaps))
        explained = _without_overlap(idle_s, gpu_s, explained, carries)
    own_s = gpu_s - explained
    place = int(np.nanargmax(own_s))
    is_gpu = own_s[place] >= GPU_SHARE * max(gpu_s[peak], 1e-9)
    if overlaps is False:  # a little at each of many places is much
        total_s, of_gpu_s = (np.nansum(np.maximum(each, 0.0)) for each in (gpu_s, own_s))
        is_gpu |= of_gpu_s >= MOSTLY * total_s
    if is_gpu:
        return CauseClass.COMPUTE, place, float(host_s[place]), float(gpu_s[place])
    return CauseClass.HOST, peak, float(host_s[peak]), float(gpu_s[peak])


def _without_overlap(
    idle_s: Floats, gpu_s: Floats, explained_s: Floats, carries: NDArray[np.bool_]
) -> Floats:
    """Return what a late host explains where collectives do not overlap compute.

    It explains nothing where the GPU still had work to do when the call was enqueued. But those who
    waited for a late host at one place come late to the others whom they meet next, as `carries`
    says for [place, earlier place].
    """
    explained = np.where(nan_median(idle_s, 0) <= 0.0, 0.0, explained_s)
    delay = np.maximum(np.nan_to_num(np.fmin(explained, gpu_s)), 0.0)
    result: Floats = np.maximum(explained, np.where(carries, delay, 0.0).max(axis=1))
    return result


def _carries(places: PlaceTables, worker: int, overlaps: bool) -> NDArray[np.bool_]:
    """Return as [place, earlier place] whether lateness at the earlier one is brought along.

    In a group, the members of one communicator leave a place together. But where collectives run
    beside compute, as they may where a rank has one communicator only, they are late again at the
    next place. Pairs have other partners.
    """
    comm, is_pair = places.comm[worker], places.is_pair[worker]
    if overlaps or len(np.unique(comm[comm >= 0])) < 2:
        leave_together = np.zeros((len(comm), len(comm)), bool)
    else:
        leave_together = comm[:, None] == comm[None, :]
        leave_together &= ~is_pair[:, None] & ~is_pair[None, :]
    carries: NDArray[np.bool_] = np.tri(len(comm), k=-1, dtype=bool) & ~leave_together
    return carries


def _at_places(places: PlaceTables, table: Floats, worker: int, peers: Sequence[int]) -> Floats:
    """Return the usual lateness of a worker at each place.

    One end of a pair always waits for the other where stages follow each other: there the usual
    lateness of its role is taken off.
    """
    own = nan_median(table[worker], 0)
    # A send that was taken for another one now and then says nothing.
    own[np.isfinite(table[worker]).sum(axis=0) * RARELY < len(table[worker])] = np.nan
    if not len(peers) or not places.is_pair.any():
        return own
    theirs = np.nan_to_num(nan_median(nan_median(table[peers], 1), 0))
    usual: Floats = own - np.where(places.is_pair[worker], theirs, 0.0)
    return usual


def _harmless(start: Floats, enqueue: Floats) -> Floats:
    """Return per place how late hosts of peers are without their GPUs being late by it."""
    over = np.maximum(enqueue - np.maximum(start, 0.0), 0.0)
    known = np.where(np.isfinite(over), over, 0.0).reshape(-1, over.shape[-1])
    if not len(known):
        return np.zeros(over.shape[-1])
    harmless: Floats = np.quantile(known, HARMLESS, axis=0)
    return harmless
