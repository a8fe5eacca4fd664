"""When a worker is slow: the stretch of steps in which it is, not only whether it is on the whole.

A fault may begin in the middle of a recording. The spell of a worker is the stretch of steps whose
excess over its role weighs most; within it the worker is judged like in a recording of its own.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ingero.core.blame.suspects import EFFECT_FLOOR, Findings, Suspect, WorkerSteps, judge
from ingero.core.robust import nan_median

Floats = NDArray[np.float64]

MIN_STEPS = 16
LASTING_STEPS = 200  # a shorter spell is a hiccup, unless the recording itself is short
NEARLY_ALL = 0.9  # of the steps: then the whole recording is judged
HIGHEST = 0.999  # quantile at which the excess of single steps is cut


@dataclass(frozen=True, slots=True)
class Spell:
    """A suspect with the columns from `begin` to `end` (exclusive) in which it is slow."""

    suspect: Suspect
    begin: int
    end: int

    @property
    def worker(self) -> int:
        return self.suspect.worker

    def columns(self, steps: int) -> NDArray[np.bool_]:
        """Return a mask of the steps of the spell."""
        at = np.arange(steps)
        return (at >= self.begin) & (at < self.end)


def find_spells(workers: WorkerSteps) -> tuple[Findings, tuple[Spell, ...]]:
    """Judge the whole recording, and every worker in the stretch in which it is slowest."""
    whole = judge(workers)
    found, steps = [], len(workers.steps)
    named = {suspect.worker: suspect for suspect in whole.suspects}
    excess = _excess(workers)
    for worker in range(len(workers.own_s)):
        begin, end = _heaviest(excess[worker])
        known = int(np.isfinite(excess[worker]).sum())
        lasts = end - begin >= max(MIN_STEPS, min(LASTING_STEPS, 0.5 * known))
        if lasts and end - begin < NEARLY_ALL * known:
            part = _named_in(workers, worker, begin, end)
            if part is not None and worker not in whole.split:
                found.append(Spell(part, begin, end))
                continue
        if worker in named:
            at = np.flatnonzero(np.isfinite(excess[worker]))
            found.append(Spell(named[worker], int(at[0]), min(int(at[-1]) + 1, steps)))
    return whole, tuple(found)


def _excess(workers: WorkerSteps) -> Floats:
    """Return the excess over the role as [worker, step], without the worker itself in the role."""
    logs = np.log(np.maximum(workers.own_s, 1e-12))
    excess = np.full_like(logs, np.nan)
    for worker in range(len(logs)):
        peers = workers.cohort == workers.cohort[worker]
        peers[worker] = False
        if peers.any():
            excess[worker] = logs[worker] - nan_median(logs[peers], 0)
    return excess


def _heaviest(excess: Floats) -> tuple[int, int]:
    """Return the stretch with the largest sum of excess beyond half of what would be named."""
    known = np.flatnonzero(np.isfinite(excess))
    if not len(known):
        return 0, 0
    values = excess[known]
    gain = np.minimum(values, np.quantile(values, HIGHEST)) - EFFECT_FLOOR / 2
    total = np.concatenate(([0.0], np.cumsum(gain)))
    lowest = np.minimum.accumulate(total)
    end = int(np.argmax(total - lowest))
    begin = int(np.argmin(total[: end + 1]))
    if end <= begin:
        return 0, 0
    return int(known[begin]), int(known[end - 1]) + 1


def _named_in(workers: WorkerSteps, worker: int, begin: int, end: int) -> Suspect | None:
    part = replace(
        workers,
        own_s=workers.own_s[:, begin:end],
        period_s=workers.period_s[begin:end],
        steps=workers.steps[begin:end],
    )
    for suspect in judge(part).suspects:
        if suspect.worker == worker:
            return replace(suspect, stalls=tuple(at + begin for at in suspect.stalls))
    return None
