"""Live steps: the steps of one rank, with own time and rows, from its collectives as they arrive.

`step_pattern` says what a step is. The number of a step is the sequence number of its anchor,
divided by the collectives that every step has on the communicator of the anchor. All members of the
communicator therefore number it alike, whenever their agents started and whatever records were
lost. Numbers grow from step to step; collectives that are not part of the pattern make them skip
one now and then, on all ranks alike.
"""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from ingero.core.collectives.columns import UNKNOWN, Collectives, Floats, Ints, Mask, concat
from ingero.core.collectives.pairs.kernels import is_in_swap
from ingero.core.collectives.pairs.live_exchanges import EXCHANGES
from ingero.core.collectives.step_kinds import LIGHT_BYTES
from ingero.core.collectives.step_pattern import cut_steps
from ingero.core.collectives.step_sample import is_chosen
from ingero.core.collectives.step_search import StepSearch
from ingero.core.collectives.steps.patterns import StepCut

SET_BACK_NS = 100_000_000  # a batch that ends this much earlier: the clock was set back
MISSING = -2  # the number of a step that was not finished
COUNTED_FROM = 1 / 64  # of the steps have a number that all ranks know
MAX_HELD = 16_384  # collectives of unfinished steps; the ring of the plugin holds as many


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Own time of finished steps as columns; `step` is -1 without a sequence number.

    `idle_s` is the part before the next collective was enqueued, `span_s` the wall time of the step
    and `end_ns` its end on the host's clock. Unknown seconds are NaN. `follows` tells that no step
    is missing between this one and the one before.
    """

    step: Ints
    own_s: Floats
    idle_s: Floats
    span_s: Floats
    end_ns: Ints
    follows: Mask

    def __len__(self) -> int:
        return len(self.step)

    def take(self, rows: NDArray[np.intp] | NDArray[np.bool_] | slice) -> "StepTimes":
        """Return the rows of an index, mask or slice."""
        return StepTimes(*(getattr(self, field.name)[rows] for field in fields(self)))


_NONE = np.empty(0, np.int64)
NO_STEPS = StepTimes(_NONE, np.empty(0), np.empty(0), np.empty(0), _NONE, np.empty(0, bool))


@dataclass(frozen=True, slots=True)
class FinishedSteps:
    """Finished steps, and the collectives that they consist of.

    `row` counts all collectives that were taken, from 0; `step` and `place` are the number of the
    step and the place of that collective in it, counted from its anchor: collectives before the
    anchor have the number of the step before. From anchor to anchor all are there, so those since
    the last anchor come with the next step, and are left out where it is missing.
    """

    times: StepTimes
    row: Ints
    step: Ints
    place: Ints


@dataclass(frozen=True, slots=True)
class _Open:
    """The collectives since the last anchor, until the next step tells the rest of them."""

    row: Ints
    step: Ints
    place: Ints


NOTHING_OPEN = _Open(_NONE, _NONE, _NONE)
NOTHING_FINISHED = FinishedSteps(NO_STEPS, _NONE, _NONE, _NONE)


class LiveSteps:
    """The steps of one rank; `broken` counts steps of which collectives are missing.

    Records of a batch may be in any order; batches must not overlap.
    """

    def __init__(self) -> None:
        self.broken = 0
        self.search = StepSearch()
        self._held: Collectives | None = None  # collectives of unfinished steps
        self._rows = _NONE  # their numbers
        self._taken = 0
        self._free_ns: int | None = None
        self._free_in_exchange = False  # whether that is the end of an exchange
        self._last_end_ns: int | None = None  # of the last step, unless one may be missing since
        self._per_step = 0  # collectives of a step on the communicator of its anchor
        self._last_number = MISSING  # of the last step
        self._last_counted, self._counted = MISSING, _NONE  # where steps differ in their calls
        self._open = NOTHING_OPEN

    @property
    def oldest_row(self) -> int:
        """The number of the oldest collective that a later step may consist of."""
        return int(
            min(self._rows.min(initial=self._taken), self._open.row.min(initial=self._taken))
        )

    def take(self, rows: Collectives) -> FinishedSteps:
        """Return the steps that these records complete."""
        if not len(rows):
            return NOTHING_FINISHED
        if self._free_ns is not None and rows.end_ns.max() < self._free_ns - SET_BACK_NS:
            self.skip()
        numbers = np.arange(self._taken, self._taken + len(rows))
        self._taken += len(rows)
        joined = rows if self._held is None else concat([self._held, rows])
        held = self._hold(joined, np.concatenate((self._rows, numbers)))
        cut = self._cut(held)
        if self.search.take(rows, held, has_steps=cut is not None and bool(cut.whole.any())):
            self._per_step, self._last_end_ns = 0, None  # another pattern, or the first
            self._last_counted, self._counted = MISSING, _NONE
            held = self._forget_older(held)
            cut = self._cut(held)
        return NOTHING_FINISHED if cut is None else self._finish(held, cut)

    def skip(self) -> None:
        """Note that records were lost: the step under way will not be returned."""
        self._held, self._rows, self._open = None, _NONE, NOTHING_OPEN
        self._free_ns = self._last_end_ns = None
        self._last_counted = MISSING
        self.search.skip()

    def _cut(self, held: Collectives) -> StepCut | None:
        return None if self.search.pattern is None else cut_steps(held, self.search.pattern)

    def _hold(self, rows: Collectives, numbers: Ints) -> Collectives:
        """Keep the collectives of no finished step, the newest if they are too many."""
        surplus = len(rows) - MAX_HELD
        if surplus > 0:
            rows, numbers = rows.take(np.arange(surplus, len(rows))), numbers[surplus:]
            self._last_end_ns, self._open = None, NOTHING_OPEN
        self._held, self._rows = rows, numbers
        return rows

    def _forget_older(self, held: Collectives) -> Collectives:
        """Drop the steps that a pattern was learned from: they are too old to be sent now."""
        cut = self._cut(held)
        if cut is not None:
            self._finish(held, cut)
            self._last_end_ns = None
        self._open = NOTHING_OPEN
        return held if self._held is None else self._held

    def _finish(self, rows: Collectives, cut: StepCut) -> FinishedSteps:
        """Return the whole steps, and release their collectives and older ones."""
        if not cut.whole.any():
            return NOTHING_FINISHED
        order = np.lexsort((rows.end_ns, rows.entry_ns))
        ordered, step, place = rows.take(order), cut.step[order], cut.place[order]
        under_way = _next_step(step, len(cut))
        if self._free_ns is None:  # nobody knows when the first of them began
            cut.whole[under_way[0]] = False
        if self.search.pattern is not None and self.search.pattern.total_bytes:
            cut.whole[~self._count_steps(cut.seq)] = False
        done = np.flatnonzero(cut.whole)
        if not len(done):
            return NOTHING_FINISHED
        # Hosts that run ahead enqueue calls of the next step before this one is over on the GPU.
        enqueued = int(ordered.start_ns[step == done[-1]].max())
        is_over = (under_way <= done[-1]) & ((step >= 0) | (ordered.start_ns <= enqueued))
        self._count_per_step(ordered, step, place, cut)
        foreign = is_over & (step < 0) & (ordered.size_bytes > LIGHT_BYTES)
        segments = self._segments(ordered, is_over)
        times = self._times(ordered, step, under_way, segments, cut, foreign)
        self.broken += int(done[-1]) + 1 - len(done)
        whole = np.flatnonzero((step >= 0) & cut.whole[step])
        finished = self._from_anchors(
            times, np.searchsorted(done, step[whole]), place[whole], self._rows[order[whole]]
        )
        left = np.sort(order[~is_over])
        beside = _bytes_beside(ordered, step, under_way, foreign)[done]
        self.search.fits(ordered.take(is_over), beside)
        self._held, self._rows = rows.take(left), self._rows[left]
        return finished

    def _from_anchors(
        self, times: StepTimes, at: NDArray[np.intp], place: Ints, row: Ints
    ) -> FinishedSteps:
        """Return the collectives of steps with number and place counted from the anchors.

        `at` is the row of the step in `times`. Where a step begins is found by each rank alone, and
        ranks may disagree about it. They do not about anchors, and a collective must have the same
        number and place on all of them.
        """
        pattern = self.search.pattern
        if pattern is not None and pattern.total_bytes:
            place = place - _first_places(at, place)[at]
        if pattern is None or not pattern.anchor:
            return FinishedSteps(times, row, times.step[at], place)
        before = np.concatenate(([self._last_number], times.step[:-1]))
        self._last_number = int(times.step[-1])
        is_early, is_last = place < pattern.anchor, at == len(times) - 1
        # The step before an early collective, or the one after another, may be missing.
        is_followed = np.append(times.follows[1:], False)
        is_known = np.where(is_early, times.follows[at], is_followed[at])
        turn = np.where(is_early, before[at], times.step[at])
        place = (place - pattern.anchor) % len(pattern)
        opened = self._open if times.follows[0] else NOTHING_OPEN
        self._open = _Open(*(each[is_last & ~is_early] for each in (row, turn, place)))
        return FinishedSteps(
            times,
            np.concatenate((opened.row, row[is_known])),
            np.concatenate((opened.step, turn[is_known])),
            np.concatenate((opened.place, place[is_known])),
        )

    def _segments(self, rows: Collectives, is_over: Mask) -> tuple[Floats, Floats]:
        """Return own and idle seconds before each record; overlapping collectives count once.

        When an exchange or a swap was over is not known, so nothing after it counts: a rank that
        waits in it for another one would seem to be slow itself.
        """
        entry, is_exchange = rows.entry_ns, rows.has_op(EXCHANGES) | is_in_swap(rows)
        first = entry[0] if self._free_ns is None else self._free_ns
        ends = np.concatenate(([first], rows.end_ns))
        latest = np.maximum.accumulate(ends)[:-1]
        own = np.maximum(entry - latest, 0)
        if is_exchange.any() or self._free_in_exchange:
            last = np.maximum.accumulate(np.where(ends[:-1] >= latest, np.arange(len(rows)), 0))
            own[np.concatenate(([self._free_in_exchange], is_exchange))[last]] = 0
        idle = np.clip(rows.start_ns - latest, 0, own)
        done = np.flatnonzero(is_over)
        if len(done) and rows.end_ns[done].max() >= first:
            self._free_in_exchange = bool(is_exchange[done[rows.end_ns[done].argmax()]])
        self._free_ns = int(rows.end_ns[is_over].max(initial=first))
        return own / 1e9, idle / 1e9

    def _times(
        self,
        rows: Collectives,
        step: Ints,
        under_way: Ints,
        segments: tuple[Floats, Floats],
        cut: StepCut,
        foreign: Mask,
    ) -> StepTimes:
        """Return the times of the whole steps; `under_way` is the step that a row falls into.

        `foreign` rows belong to no step: a checkpoint or an evaluation.
        """
        size, done = len(cut) + 1, np.flatnonzero(cut.whole)
        own, idle = (np.bincount(under_way, each * ~foreign, size)[done] for each in segments)
        is_timed = np.bincount(under_way, ~rows.is_gpu_timed, size)[done] == 0
        ends = np.zeros(size, np.int64)
        np.maximum.at(ends, step[step >= 0], rows.end_ns[step >= 0])
        before, follows = ends[done - 1], (done > 0) & cut.whole[done - 1]
        if done[0] == 0 and self._last_end_ns is not None:
            before[0], follows[0] = self._last_end_ns, True
        self._last_end_ns = int(ends[done[-1]])
        is_plain = np.bincount(under_way, foreign, size)[done] == 0
        return StepTimes(
            self._numbers(cut.seq, done),
            own.astype(np.float64),
            np.where(is_timed, idle, np.nan),
            np.where(follows & is_plain, (ends[done] - before) / 1e9, np.nan),
            ends[done],
            follows,
        )

    def _numbers(self, seq: Ints, done: NDArray[np.intp]) -> Ints:
        """Return the numbers of finished steps."""
        if len(self._counted):
            return self._counted[done]
        return np.where(seq[done] < 0, UNKNOWN, seq[done] // self._per_step)

    def _count_steps(self, seq: Ints) -> Mask:
        """Count steps with another number of collectives each; return which of them have a number.

        Some sequence numbers, the same on all ranks, are numbers of steps, and the next steps
        follow. Numbers grow, since a step has a collective at least, and jump where that is so.
        """
        numbers = []
        for each, is_known in zip(seq.tolist(), is_chosen(seq, COUNTED_FROM).tolist(), strict=True):
            last = self._last_counted
            self._last_counted = each if is_known else last + 1 if last >= 0 else MISSING
            numbers.append(self._last_counted)
        self._counted = np.array(numbers, np.int64)
        known: Mask = self._counted >= 0
        return known

    def _count_per_step(self, rows: Collectives, step: Ints, place: Ints, cut: StepCut) -> None:
        """Count the collectives that every step has on the communicator of its anchor."""
        if self._per_step or self.search.pattern is None:
            return
        last = int(np.flatnonzero(cut.whole)[-1])
        needed = np.array([*self.search.pattern.needed, False])[place]
        shared = needed & (step == last) & (rows.comm == cut.comm[last]) & (rows.seq >= 0)
        self._per_step = max(int(shared.sum()), 1)


def _bytes_beside(rows: Collectives, step: Ints, under_way: Ints, foreign: Mask) -> Floats:
    """Return the bytes of foreign calls in each step, as a share of its own ones.

    Exchanges do not count: where their number changes, they belong to no step.
    """
    size = int(under_way.max()) + 1
    is_beside = foreign & ~rows.has_op(EXCHANGES)
    beside, own = (
        np.bincount(under_way[each], rows.size_bytes[each], size) for each in (is_beside, step >= 0)
    )
    return beside / np.maximum(own, 1.0)


def _first_places(step: NDArray[np.intp], place: Ints) -> Ints:
    """Return the first place of each step."""
    first = np.full(int(step.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, step, place)
    return first


def _next_step(step: Ints, after: int) -> Ints:
    """Return for each row its step, or that of the next row that has one."""
    at = np.where(step >= 0, np.arange(len(step)), len(step))
    following = np.minimum.accumulate(at[::-1])[::-1]
    return np.concatenate((step, [after]))[following]
