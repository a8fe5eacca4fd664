"""When a worker is slow: the stretch of steps in which it is, not only whether it is on the whole.

A fault may begin in the middle of a recording. The spell of a worker is the stretch of steps whose
excess over its role weighs most; within it the worker is judged like in a recording of its own.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ingero.core.blame.recorded.chance import are_by_chance
from ingero.core.blame.suspects import (
    EFFECT_FLOOR,
    MIN_STALLS,
    SIGMAS,
    Findings,
    Suspect,
    WorkerSteps,
    judge,
)
from ingero.core.robust import MAD_TO_SIGMA, median_and_mad, nan_median

Floats = NDArray[np.float64]

MIN_STEPS = 16  # four blocks of four: fewer have no level with an error
# Two blocks by which the pace of a job is known, or what somebody can still look into: what is
# over sooner is a hiccup, unless it is half of a short recording.
LASTING_STEPS, LASTING_S = 200, 10.0
NEARLY_ALL = 0.9  # of the steps: then the whole recording is judged
CUT = 3.0  # sigmas of a worker beyond which its steps are hiccups
HIGHEST = 0.999  # quantile at which the excess of single steps is cut
# A pause of a host (garbage collection, a page that is written) lasts a second or two: a stretch
# that is no longer is one, unless it is a good part of a short recording.
BRIEF_S, BRIEF_SHARE = 2.0, 0.25
MIN_PIECES = 5  # as long as a stretch: fewer do not show how they scatter
# Periods without a stall that was seen, within one spell. Stalls are regular where six of ten are
# seen: of those, eight in a row are missed in one of 1,500 cases.
MOST_MISSED = 8


@dataclass(frozen=True, slots=True)
class Spell:
    """A suspect with the columns from `begin` to `end` (exclusive) in which it is slow."""

    suspect: Suspect
    begin: int
    end: int

    @property
    def worker(self) -> int:
        return self.suspect.worker

    def __len__(self) -> int:
        return max(1, self.end - self.begin)

    @property
    def mean_excess_s(self) -> float:
        """The own time over the role in seconds per step of the spell."""
        stalls = len(self.suspect.stalls)
        return self.suspect.excess_s * (stalls / len(self) if stalls else 1.0)

    def overlap(self, other: "Spell") -> float:
        """Return the share of the shorter spell that both have in common."""
        common = min(self.end, other.end) - max(self.begin, other.begin)
        return max(0, common) / min(len(self), len(other))

    def is_over(self, steps: int) -> bool:
        """Whether the recording goes on for as long as the spell lasted, without it."""
        return steps - self.end >= len(self)

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
        part = _heavy_part(workers, worker, excess)
        suspect = named.get(worker) if part is None else part.suspect
        part = _stalls_in_a_row(workers, excess, suspect) or part
        if part is not None and not _goes_on(part, named.get(worker)):
            found.append(_around_stalls(part))
            continue
        if worker in named:
            at = np.flatnonzero(np.isfinite(excess[worker]))
            spell = Spell(named[worker], int(at[0]), min(int(at[-1]) + 1, steps))
            found.append(_around_stalls(spell))
    return whole, tuple(
        spell
        for spell in found
        if not _is_hiccup(workers, spell)
        and not are_by_chance(workers, excess, spell.suspect, spell.begin, spell.end)
    )


def _is_hiccup(workers: WorkerSteps, spell: Spell) -> bool:
    stalls = spell.suspect.stalls
    # A host that was late stays so until it has caught up: neighbouring steps are one stall.
    if (
        stalls
        and spell.suspect.stall_period is None
        and (np.diff(stalls) > 1).sum() < MIN_STALLS - 1
    ):
        return True
    inside = spell.columns(len(workers.steps))
    is_part = inside.sum() < BRIEF_SHARE * len(inside)
    return bool(is_part and np.nansum(workers.period_s[inside]) < BRIEF_S)


def _goes_on(part: Spell, whole: Suspect | None) -> bool:
    """Whether the stalls of a stretch are those of the whole recording: they have no beginning."""
    period = part.suspect.stall_period
    return period is not None and whole is not None and whole.stall_period == period


def _stalls_in_a_row(workers: WorkerSteps, excess: Floats, suspect: Suspect | None) -> Spell | None:
    """Return the short stretch that holds most stalls of a suspect: a fault that just began.

    The steps between those stalls are slow as well, so there is a lasting excess and no stall.
    Outside, there are fewer than half as many as there would be if they were spread evenly.
    """
    if suspect is None or not suspect.stalls:
        return None
    part = _heavy_part(workers, suspect.worker, excess, MIN_STEPS)
    if part is None or part.suspect.stalls:
        return None
    outside = sum(not part.begin <= at < part.end for at in suspect.stalls)
    known = max(1, int(np.isfinite(excess[suspect.worker]).sum()))
    evenly = len(suspect.stalls) * max(0.0, 1 - len(part) / known)
    return part if outside < 0.5 * evenly else None


def _heavy_part(
    workers: WorkerSteps, worker: int, excess: Floats, shortest: int | None = None
) -> Spell | None:
    """Return the stretch in which a worker is slow, if it is one and not the whole recording.

    A lasting excess is looked for first: hiccups, which all workers have, are cut for that.
    """
    known = int(np.isfinite(excess[worker]).sum())
    step_s = max(float(np.nanmedian(workers.period_s)), 1e-9) if known else 1.0
    lasting = shortest or max(MIN_STEPS, min(LASTING_STEPS, LASTING_S / step_s, 0.5 * known))
    calm = _without_hiccups(excess)
    counted = np.isfinite(calm).sum(axis=1)
    means = np.nansum(calm, axis=1)[counted > 0] / counted[counted > 0]
    usual = float(np.median(means)) if len(means) else 0.0
    for values in (calm[worker] - usual, excess[worker]):
        if not known:
            break
        # A worker that is a little slower elsewhere, too, and scatter that lifts the mean of all
        # steps, make the first stretch too long.
        for beyond in (EFFECT_FLOOR / 2, max(EFFECT_FLOOR / 2, float(np.nanmean(values)))):
            begin, end = _heaviest(values, beyond)
            if lasting <= end - begin < NEARLY_ALL * known and _stands_out(values, begin, end):
                begin, end = _core(values, begin, end)
                part = _named_in(workers, worker, begin, end)
                if part is not None and not (
                    _is_wander(excess[worker], begin, end) and not part.stalls
                ):
                    return Spell(part, begin, end)
    return None


def _without_hiccups(excess: Floats) -> Floats:
    """Return the excess with what is far from the usual of its worker cut off."""
    middle = nan_median(excess, 1)[:, None]
    far = CUT * MAD_TO_SIGMA * nan_median(np.abs(excess - middle), 1)[:, None]
    cut: Floats = np.clip(excess, middle - far, middle + far)
    return cut


def _around_stalls(spell: Spell) -> Spell:
    """Return the part of a spell from its first regular stall to its last."""
    stalls, period = spell.suspect.stalls, spell.suspect.stall_period
    if period is None:
        return spell
    regular = _longest_run(stalls, MOST_MISSED * period)
    begin, end = max(regular[0], spell.begin), min(regular[-1] + period, spell.end)
    if end - begin >= NEARLY_ALL * (spell.end - spell.begin):
        return spell
    return Spell(replace(spell.suspect, stalls=regular), begin, end)


def _longest_run(stalls: tuple[int, ...], apart: int) -> tuple[int, ...]:
    """Return the most stalls that follow each other; a hiccup long before them is none of them."""
    at = np.array(stalls)
    runs = np.split(at, np.flatnonzero(np.diff(at) > apart) + 1)
    longest = max(runs, key=len)
    return tuple(longest.tolist()) if len(longest) >= MIN_STALLS else stalls


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


def _heaviest(excess: Floats, beyond: float) -> tuple[int, int]:
    """Return the stretch with the largest sum of what the excess has beyond a level."""
    known = np.flatnonzero(np.isfinite(excess))
    if not len(known):
        return 0, 0
    values = excess[known]
    gain = np.minimum(values, np.quantile(values, HIGHEST)) - beyond
    total = np.concatenate(([0.0], np.cumsum(gain)))
    lowest = np.minimum.accumulate(total)
    end = int(np.argmax(total - lowest))
    begin = int(np.argmin(total[: end + 1]))
    if end <= begin:
        return 0, 0
    return int(known[begin]), int(known[end - 1]) + 1


def _stands_out(excess: Floats, begin: int, end: int) -> bool:
    """Whether the steps outside a stretch are not half as slow: else it is all one spell."""
    inside, outside = _levels(excess, begin, end)
    return outside <= 0.5 * inside


def _levels(excess: Floats, begin: int, end: int) -> tuple[float, float]:
    """Return the usual excess within a stretch and outside of it."""
    outside = np.concatenate((excess[:begin], excess[end:]))[None]
    usual = float(nan_median(outside, 1)[0]) if np.isfinite(outside).any() else 0.0
    return float(nan_median(excess[None, begin:end], 1)[0]), usual


def _is_wander(excess: Floats, begin: int, end: int) -> bool:
    """Whether equally long pieces outside of a stretch differ as much as it differs from them.

    The stretch is the slowest of many, so its own scatter says too little about such a difference.
    """
    known = np.concatenate((excess[:begin], excess[end:]))
    known = known[np.isfinite(known)]
    count = len(known) // max(1, int(np.isfinite(excess[begin:end]).sum()))
    if count < MIN_PIECES:
        return False
    pieces = np.array([np.median(piece) for piece in np.array_split(known, count)])
    centre, mad = median_and_mad(pieces)
    inside = float(np.nanmedian(excess[begin:end]))
    return inside - centre < SIGMAS * MAD_TO_SIGMA * mad


def _core(excess: Floats, begin: int, end: int) -> tuple[int, int]:
    """Return a stretch without the steps at its ends that only scatter upwards.

    They are less than half as slow, between the steps outside and those of the stretch.
    """
    inside, outside = _levels(excess, begin, end)
    half = 0.5 * (inside + max(outside, 0.0))
    inner = _heaviest(excess, max(half, EFFECT_FLOOR / 2))
    return inner if inner[1] - inner[0] >= 0.5 * (end - begin) else (begin, end)


def _named_in(workers: WorkerSteps, worker: int, begin: int, end: int) -> Suspect | None:
    """Return the worker as a suspect of a stretch: slower than its peers, or than it usually is.

    Peers may differ for ever, as one that has more to do than all others. What they usually differ
    by is then taken off.
    """
    found = _judged_in(workers, worker, begin, end)
    if found is not None:
        return found
    outside = _without(workers, begin, end)
    if (np.isfinite(outside.own_s).sum(axis=1) < max(MIN_STEPS, end - begin)).any():
        return None
    usual = nan_median(np.log(np.maximum(outside.own_s, 1e-12)), 1)
    role = np.array([np.median(usual[workers.cohort == code]) for code in workers.cohort])
    alike = replace(workers, own_s=workers.own_s * np.exp(role - usual)[:, None])
    found = _judged_in(alike, worker, begin, end)
    if found is None:
        return None
    error = float(np.hypot(found.error, judge(outside).error[worker]))
    if np.log1p(found.excess) < SIGMAS * error:
        return None
    return replace(found, error=error, is_relative=True)


def _without(workers: WorkerSteps, begin: int, end: int) -> WorkerSteps:
    kept = np.r_[:begin, end : len(workers.steps)]
    return replace(
        workers,
        own_s=workers.own_s[:, kept],
        period_s=workers.period_s[kept],
        steps=tuple(workers.steps[at] for at in kept.tolist()),
    )


def _judged_in(workers: WorkerSteps, worker: int, begin: int, end: int) -> Suspect | None:
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
