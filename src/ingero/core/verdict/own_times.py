"""Own times on their way into the engine, held until the step they belong to is complete."""

from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from ingero.core.robust import Column, Index, sorted_order

UNNUMBERED = -1  # a step that its sender did not number
SHORTEST_S, LONGEST_S = 1e-9, 1e6  # an own time outside this range is not a measurement
# Of its step: an own time is taken for no less. Where collectives hide all compute, it is 0.
HIDDEN = 0.001


@dataclass(frozen=True, slots=True)
class SampleBatch:
    """Own times as columns of equal length; unknown seconds are NaN.

    `member` holds indexes that the engine gave out. `idle_s` is the part of own time in which the
    GPU waited for its host, `lateness_s` how late the rank arrived at its collectives, and
    `span_s` the wall time of the step.

    Where whole steps are known, `advance_s` is how long the job waited for this member alone: at
    the place of the step where that was most, the time from the second last arrival to its own, and
    0 for a member that came last nowhere. `start_late_s` and `enqueue_late_s` say how much later
    than the median of its peers the member's GPU started, and its host enqueued, the collective at
    the place of the step that anybody was waited for most. `queue_s` is how long its collectives
    waited from their enqueue to their start on the GPU, on average over the step. `near_late_s` and
    `far_late_s` are its enqueue lateness where its host was least and most ahead of its GPU.
    """

    member: Index
    step: NDArray[np.int64]
    own_s: Column
    idle_s: Column
    lateness_s: Column
    span_s: Column
    advance_s: Column
    start_late_s: Column
    enqueue_late_s: Column
    queue_s: Column
    near_late_s: Column
    far_late_s: Column

    def __len__(self) -> int:
        return len(self.member)


def make_batch(
    member: NDArray[np.integer],
    own_s: Column,
    step: NDArray[np.integer] | None = None,
    *,
    idle_s: Column | None = None,
    lateness_s: Column | None = None,
    span_s: Column | None = None,
    advance_s: Column | None = None,
    start_late_s: Column | None = None,
    enqueue_late_s: Column | None = None,
    queue_s: Column | None = None,
    near_late_s: Column | None = None,
    far_late_s: Column | None = None,
) -> SampleBatch:
    """Return a batch of what is known; own times that no step can have are dropped."""
    own = np.asarray(own_s, np.float64)
    unknown = np.full(len(own), np.nan)
    batch = SampleBatch(
        np.asarray(member, np.intp),
        np.full(len(own), UNNUMBERED, np.int64) if step is None else np.asarray(step, np.int64),
        own,
        *(
            unknown if column is None else np.asarray(column, np.float64)
            for column in (
                idle_s,
                lateness_s,
                span_s,
                advance_s,
                start_late_s,
                enqueue_late_s,
                queue_s,
                near_late_s,
                far_late_s,
            )
        ),
    )
    least = np.where(own >= 0, np.nan_to_num(HIDDEN * batch.span_s), own)
    own = np.maximum(own, least)
    batch = replace(batch, own_s=own)
    valid = (own >= SHORTEST_S) & (own <= LONGEST_S)
    return batch if valid.all() else select(batch, valid)


@dataclass(frozen=True, slots=True)
class Frame:
    """Samples of at most one step of each member, grouped by cohort; `cohort` is sorted."""

    cohort: Index
    batch: SampleBatch


class FrameBuffer:
    """Holds numbered samples until their peers have reported the same step."""

    def __init__(self) -> None:
        self.duplicates = 0  # samples of a step that the member had reported already
        self._late: list[SampleBatch] = []
        self._parts: list[tuple[SampleBatch, float]] = []
        self._batch: SampleBatch | None = None
        self._arrived: Column = np.empty(0)

    def add(self, batch: SampleBatch, now_s: float) -> None:
        """Add numbered samples."""
        self._parts.append((batch, now_s))

    def close(self, cohort_of: Index, live: Column, wait_s: Column, now_s: float) -> list[Frame]:
        """Return the frames, in order of steps, that need not wait any longer.

        A step is closed when all live members of its cohort reported it, or after `wait_s`.
        """
        batch, arrived = self._gather()
        if batch is None:
            return []
        cohort = cohort_of[batch.member]
        order = sorted_order(cohort, batch.step, batch.member)
        step, member = batch.step[order], batch.member[order]
        is_first = np.ones(len(order), bool)  # of a member's samples of one step
        is_first[1:] = (member[1:] != member[:-1]) | (step[1:] != step[:-1])
        if not is_first.all():
            order = order[is_first]
            self.duplicates += len(batch) - len(order)
        batch, arrived, cohort = select(batch, order), arrived[order], cohort[order]
        same = (cohort[1:] == cohort[:-1]) & (batch.step[1:] == batch.step[:-1])
        starts = np.flatnonzero(np.concatenate(([True], ~same)))
        counts = np.diff(starts, append=len(batch))
        group = np.repeat(np.arange(len(starts)), counts)
        of_cohort = cohort[starts]
        complete = counts >= live[of_cohort]
        over = complete | (now_s - np.minimum.reduceat(arrived, starts) >= wait_s[of_cohort])
        thin = over & ~complete & (counts < np.maximum(0.5 * live[of_cohort], 1))
        if thin.any():
            self._late.append(select(batch, thin[group]))
        self._batch, self._arrived = select(batch, ~over[group]), arrived[~over[group]]
        return _frames(batch, cohort, group, over & ~thin, of_cohort)

    def take_late(self) -> SampleBatch | None:
        """Return the samples of steps that few members reported: the others did before."""
        late, self._late = self._late, []
        return _concat(late) if late else None

    def _gather(self) -> tuple[SampleBatch | None, Column]:
        """Join what was left at the last tick with what came since."""
        parts, arrived = [], []
        if self._batch is not None and len(self._batch):
            parts, arrived = [self._batch], [self._arrived]
        for part, now_s in self._parts:
            parts.append(part)
            arrived.append(np.full(len(part), now_s))
        if not parts:
            return None, self._arrived
        self._parts = []
        return _concat(parts), np.concatenate(arrived)


def _frames(
    batch: SampleBatch, cohort: Index, group: Index, ready: NDArray[np.bool_], of_cohort: Index
) -> list[Frame]:
    """Put the n-th ready step of every cohort into the n-th frame."""
    if not ready.any():
        return []
    if ready.all() and (np.diff(of_cohort) > 0).all():
        return [Frame(cohort, batch)]
    chosen = np.flatnonzero(ready)
    owner = of_cohort[chosen]
    is_first = np.concatenate(([True], owner[1:] != owner[:-1]))
    places = np.arange(len(chosen))
    turn = places - np.maximum.accumulate(np.where(is_first, places, 0))
    turn_of_group = np.full(len(ready), -1)
    turn_of_group[chosen] = turn
    turns = turn_of_group[group]
    return [
        Frame(cohort[turns == each], select(batch, turns == each))
        for each in range(int(turn.max()) + 1)
    ]


_COLUMNS = tuple(field.name for field in fields(SampleBatch))


def select(batch: SampleBatch, rows: NDArray[np.intp] | NDArray[np.bool_]) -> SampleBatch:
    """Return the rows of an index or mask."""
    return SampleBatch(*(getattr(batch, name)[rows] for name in _COLUMNS))


def _concat(parts: list[SampleBatch]) -> SampleBatch:
    if len(parts) == 1:
        return parts[0]
    return SampleBatch(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS)
    )


def latest(parts: list[SampleBatch]) -> SampleBatch:
    """Return the last sample of each member."""
    batch = _concat(parts)
    newest = np.unique(batch.member[::-1], return_index=True)[1]
    return select(batch, len(batch) - 1 - newest)
