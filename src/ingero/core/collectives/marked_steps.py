"""Marked steps: own time per step from the annotations of a job, where no other source exists.

A step lasts from the moment the job names it until it names the next one, or it consists of the
spans the job marks with it. Own time is the part outside collectives. Where no collectives are
recorded it is the whole span, which should then end before the rank waits for others: a step that
includes the wait is equally long on every rank.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from ingero.core.collectives.columns import Ints
from ingero.core.collectives.live_steps import NO_STEPS, StepTimes

MAX_PENDING = 4096  # unfinished steps of a process, and collectives within them
Span = tuple[int, int]  # start and end in nanoseconds


class MarkedSteps:
    """The steps of one process. Marks are in order of time, and so are collectives.

    `dropped` counts steps and collectives beyond the limit.
    """

    def __init__(self) -> None:
        self.dropped = 0
        self._steps: dict[int, _Step] = {}  # in the order of their first mark; the last is open
        self._named: tuple[int, int] | None = None  # step and time of the last mark without an end
        self._inside: list[Span] = []  # collectives
        self._last_number = -1  # of the steps returned; none is before step 0

    def mark(self, step: int, from_ns: int, to_ns: int | None = None) -> None:
        """Mark a step for a span of time, or from a moment on."""
        if to_ns is None:
            if (
                self._named is not None
                and from_ns > self._named[1]
                and self._named[0] in self._steps
            ):
                self._steps[self._named[0]].spans.append((self._named[1], from_ns))
            self._named = (step, from_ns)
        elif to_ns <= from_ns:
            return
        found = self._steps.setdefault(step, _Step(from_ns))
        if to_ns is not None:
            found.spans.append((from_ns, to_ns))
        if len(self._steps) > MAX_PENDING:
            del self._steps[next(iter(self._steps))]
            self.dropped += 1

    def enter(self, collectives: Iterable[Span]) -> None:
        """Add time inside collectives."""
        self._inside += collectives
        self.dropped += max(len(self._inside) - MAX_PENDING, 0)
        del self._inside[:-MAX_PENDING]

    def take(self, until_ns: int) -> StepTimes:
        """Return the steps that ended by `until_ns`, all of whose input is complete."""
        begun = [step.begun_ns for step in self._steps.values()]
        inside = _united(self._inside)
        rows = []
        for number, next_ns in zip(list(self._steps)[:-1], begun[1:], strict=True):
            step = self._steps[number]
            if step.spans and step.spans[-1][1] > until_ns:
                break
            del self._steps[number]
            if step.spans:  # none if the clock was set back
                rows.append(
                    (
                        number,
                        step.own_s(inside),
                        (next_ns - step.begun_ns) / 1e9,
                        step.spans[-1][1],
                    )
                )
        if not rows:
            return NO_STEPS
        self._inside = [
            span for span in self._inside if span[1] > begun[len(begun) - len(self._steps)]
        ]
        steps, own, span, end = (np.array(column) for column in zip(*rows, strict=True))
        follows = np.diff(steps, prepend=self._last_number) == 1
        self._last_number = int(steps[-1])
        return StepTimes(
            steps, own, np.full(len(own), np.nan), np.where(span > 0, span, np.nan), end, follows
        )


@dataclass(slots=True)
class _Step:
    begun_ns: int
    spans: list[Span] = field(default_factory=list)

    def own_s(self, inside: Ints) -> float:
        spans = np.array(self.spans, np.int64)
        length_ns = float((spans[:, 1] - spans[:, 0]).sum())
        return max(length_ns - _within(inside, spans), 0.0) / 1e9


def _united(spans: list[Span]) -> Ints:
    """Merge overlapping spans; one row each."""
    if not spans:
        return np.empty((0, 2), np.int64)
    rows = np.array(sorted(spans), np.int64)
    reach = np.maximum.accumulate(rows[:, 1])
    starts = np.flatnonzero(np.concatenate(([True], rows[1:, 0] > reach[:-1])))
    return np.stack((rows[starts, 0], reach[np.append(starts[1:] - 1, len(rows) - 1)]), axis=1)


def _within(inside: Ints, spans: Ints) -> float:
    """Return how many nanoseconds of `spans` lie inside."""
    if not len(inside):
        return 0.0
    base_ns = int(spans[0, 0])
    ends = (inside - base_ns).astype(np.float64).ravel()  # small floats are exact
    passed = np.concatenate(([0.0], np.cumsum(np.diff(ends) * (np.arange(len(ends) - 1) % 2 == 0))))
    begin, end = (np.interp(spans[:, side] - base_ns, ends, passed) for side in (0, 1))
    return float((end - begin).sum())
