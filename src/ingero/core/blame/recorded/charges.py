"""What late ranks add to a step, and why, where all ranks share every collective."""

from collections.abc import Collection

import numpy as np

from ingero.contract.verdict import CauseClass
from ingero.core.blame.recorded.lateness import OVERLAP, Lateness
from ingero.core.blame.recorded.spells import Spell
from ingero.core.collectives.columns import Floats

HOST_SHARE = 0.5  # of the lateness of the GPU that must be lateness of the host
HARMLESS = 0.9  # quantile of how late hosts of peers are without consequence
CHARGED = 0.5  # of the largest charges: steps in which the rank is charged


def charge_of(
    lateness: Lateness, spell: Spell, named: Collection[int], cause: CauseClass
) -> Floats:
    """Return the seconds that a rank adds to each step of its spell beyond the ranks not named.

    A late host stays late until it waits for its GPU, and overlapped compute hides waiting: then
    the same delay shows at several places and counts once. Else the places add up.
    """
    late = lateness.start_s[:, spell.begin : spell.end]
    others = np.array([w not in named and w != spell.worker for w in range(len(late))])
    known = np.where(np.isfinite(late), late, -np.inf)
    last = known[others].max(axis=0) if others.any() else np.zeros(late.shape[1:])
    beyond = np.maximum(known[spell.worker] - np.maximum(last, -1e3), 0.0)
    beyond = np.where(np.isfinite(beyond), beyond, 0.0)
    if cause is CauseClass.HOST or lateness.carried >= OVERLAP:
        once: Floats = beyond.max(axis=1)
        return once
    total: Floats = beyond.sum(axis=1)
    return total


def classify_lateness(lateness: Lateness, spell: Spell) -> tuple[CauseClass, int, float, float]:
    """Return host or compute, the place that decides, and how late host and GPU are there."""
    part = slice(spell.begin, spell.end)
    start, enqueue = lateness.start_s[:, part], lateness.enqueue_s[:, part]
    mine = np.nan_to_num(np.maximum(start[spell.worker], 0.0))
    place = int(mine.mean(axis=0).argmax())
    slow = mine[:, place] >= CHARGED * np.quantile(mine[:, place], 0.95)
    gpu_late = float(np.nanmedian(start[spell.worker, slow, place]))
    host_late = float(np.nanmedian(enqueue[spell.worker, slow, place]))
    peers = np.arange(len(start)) != spell.worker
    over = enqueue[peers][:, :, place] - np.maximum(start[peers][:, :, place], 0.0)
    over = over[np.isfinite(over)]
    harmless = float(np.quantile(np.maximum(over, 0.0), HARMLESS)) if len(over) else 0.0
    is_host = host_late - harmless >= HOST_SHARE * gpu_late
    return (CauseClass.HOST if is_host else CauseClass.COMPUTE), place, host_late, gpu_late
