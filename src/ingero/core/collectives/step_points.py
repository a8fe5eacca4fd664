"""Step points: the own time that a rank sends, per step or as means over groups of short steps.

A group has 2ⁿ steps and begins at a multiple of 2ⁿ on every rank, so that the groups of all ranks
coincide. Where two ranks use different sizes, every second group of the smaller size still does.
"""

import math
from dataclasses import dataclass, fields

import numpy as np

from ingero.core.collectives.columns import UNKNOWN, Ints, Mask
from ingero.core.collectives.live_steps import NO_STEPS, StepTimes

POINTS_PER_S = 16.0  # of one rank at most
JOB_POINTS_PER_S = 16_384.0  # of all ranks of a job, but at least one per rank
WATCHED_STEPS = 8  # before the step length is used
MAX_GROUP = 4096


@dataclass(frozen=True, slots=True)
class StepPoints:
    """Means over groups of `count` steps; `times.step` is the first step of a group."""

    times: StepTimes
    count: int

    def __len__(self) -> int:
        return len(self.times)


def share_of_rank(most: float, of_job: float, world_size: int | None) -> float:
    """Return the points per second of one rank, so that all ranks together stay within `of_job`."""
    return most if not world_size else min(most, max(of_job / world_size, 1.0))


class StepGroups:
    """The steps of one rank in groups.

    `incomplete` counts steps of groups that were not complete.
    """

    def __init__(self) -> None:
        self.size = 1
        self.incomplete = 0
        self.points_per_s = POINTS_PER_S
        self._span_s = math.nan
        self._watched = 0
        self._open = NO_STEPS

    def take(self, steps: StepTimes) -> StepPoints:
        """Return the points that these steps complete."""
        if not len(steps):
            return StepPoints(NO_STEPS, self.size)
        self._update_size(steps)
        if self.size == 1:
            return StepPoints(steps, 1)
        if (steps.step == UNKNOWN).any():  # without step numbers: one mean over all of them
            return StepPoints(_means(steps, np.zeros(len(steps), np.int64), UNKNOWN), len(steps))
        return StepPoints(self._group(steps), self.size)

    def _update_size(self, steps: StepTimes) -> None:
        known = steps.span_s[np.isfinite(steps.span_s)]
        if not len(known):
            return
        span_s = float(np.median(known))
        self._span_s = span_s if math.isnan(self._span_s) else 0.5 * (self._span_s + span_s)
        self._watched += len(known)
        if self._watched < WATCHED_STEPS or self._span_s <= 0:
            return
        wanted = 1.0 / (self._span_s * self.points_per_s)
        if not self.size / 4 < wanted <= self.size:  # sizes change only when clearly wrong
            size = 2 ** max(0, math.ceil(math.log2(wanted)))
            if size != self.size:
                self.size = min(size, MAX_GROUP)
                self.incomplete += len(self._open)
                self._open = NO_STEPS

    def _group(self, steps: StepTimes) -> StepTimes:
        pending = StepTimes(
            *(
                np.concatenate((getattr(self._open, column.name), getattr(steps, column.name)))
                for column in fields(StepTimes)
            )
        )
        group = pending.step // self.size
        whole = self._is_whole(pending, group)
        is_open = group == group[-1]
        if (pending.step[-1] + 1) % self.size == 0:
            is_open[:] = False
        self._open, done = pending.take(is_open), ~is_open & whole
        self.incomplete += int((~is_open & ~whole).sum())
        return _means(pending.take(done), group[done], self.size)

    def _is_whole(self, steps: StepTimes, group: Ints) -> Mask:
        """Return which steps are in a group of which none is missing, as far as is known.

        Numbers may skip one, so it does not matter how many steps a group has.
        """
        is_lost = ~steps.follows & (steps.step % self.size != 0)
        is_last = (group[1:] != group[:-1]) & ((steps.step[:-1] + 1) % self.size != 0)
        is_lost[:-1] |= is_last & ~steps.follows[1:]
        which = np.unique(group, return_inverse=True)[1]
        return np.asarray(np.bincount(which, is_lost)[which] == 0, bool)


def _means(steps: StepTimes, group: Ints, size: int) -> StepTimes:
    if not len(steps):
        return NO_STEPS
    starts = np.flatnonzero(np.concatenate(([True], group[1:] != group[:-1])))
    counts = np.diff(starts, append=len(group))
    own, idle, span = (
        np.add.reduceat(column, starts) / counts
        for column in (steps.own_s, steps.idle_s, steps.span_s)
    )
    number = np.full(len(starts), UNKNOWN) if size == UNKNOWN else group[starts] * size
    ends = np.maximum.reduceat(steps.end_ns, starts)
    return StepTimes(number, own, idle, span, ends, np.logical_and.reduceat(steps.follows, starts))
