"""Own time from what a job says about its steps, where nothing better is known.

A step lasts from the moment a job names it to the moment it names the next, or it is the stretches of time the job
names it for. Own is what lies outside collectives; without any in sight all of it, and then a stretch should end
before the rank begins to wait for others: a step that includes the wait is equally long everywhere and tells nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from ingero.core.collectives.columns import Ints
from ingero.core.collectives.live_steps import NO_STEPS, StepTimes

MAX_WAITING = 4096  # steps of a process not yet given away, and collectives of theirs
Stretch = tuple[int, int]  # from, to


class MarkedSteps:
    """One process. Marks and collectives come in order of time, each on its own; `dropped` counts what was too much."""

    def __init__(self) -> None:
        self.dropped = 0
        self._steps: dict[
            int, _Step
        ] = {}  # in the order they were first named; the last one goes on
        self._named: tuple[int, int] | None = None  # the last moment: its step and time
        self._inside: list[Stretch] = []  # collectives

    def mark(self, step: int, from_ns: int, to_ns: int | None = None) -> None:
        """The job names a step for a stretch of time, or from a moment on."""
        if to_ns is None:
            if (
                self._named is not None
                and from_ns > self._named[1]
                and self._named[0] in self._steps
            ):
                self._steps[self._named[0]].stretches.append((self._named[1], from_ns))
            self._named = (step, from_ns)
        elif to_ns <= from_ns:
            return
        found = self._steps.setdefault(step, _Step(from_ns))
        if to_ns is not None:
            found.stretches.append((from_ns, to_ns))
        if len(self._steps) > MAX_WAITING:
            del self._steps[next(iter(self._steps))]
            self.dropped += 1

    def enter(self, collectives: Iterable[Stretch]) -> None:
        """Time inside collectives."""
        self._inside += collectives
        self.dropped += max(len(self._inside) - MAX_WAITING, 0)
        del self._inside[:-MAX_WAITING]

    def take(self, until_ns: int) -> StepTimes:
        """Steps that were over by then: another one has begun, and everything up to then has been told."""
        begun = [step.begun_ns for step in self._steps.values()]
        inside = _united(self._inside)
        rows = []
        for number, next_ns in zip(list(self._steps)[:-1], begun[1:], strict=True):
            step = self._steps[number]
            if step.stretches and step.stretches[-1][1] > until_ns:
                break
            del self._steps[number]
            if step.stretches:  # the clock may have stepped back
                rows.append(
                    (
                        number,
                        step.own_s(inside),
                        (next_ns - step.begun_ns) / 1e9,
                        step.stretches[-1][1],
                    )
                )
        if not rows:
            return NO_STEPS
        self._inside = [
            stretch for stretch in self._inside if stretch[1] > begun[len(begun) - len(self._steps)]
        ]
        steps, own, span, end = (np.array(column) for column in zip(*rows, strict=True))
        return StepTimes(
            steps, own, np.full(len(own), np.nan), np.where(span > 0, span, np.nan), end
        )


@dataclass(slots=True)
class _Step:
    begun_ns: int
    stretches: list[Stretch] = field(default_factory=list)

    def own_s(self, inside: Ints) -> float:
        stretches = np.array(self.stretches, np.int64)
        length_ns = float((stretches[:, 1] - stretches[:, 0]).sum())
        return max(length_ns - _within(inside, stretches), 0.0) / 1e9


def _united(stretches: list[Stretch]) -> Ints:
    """The same time in stretches that do not overlap, one row each."""
    if not stretches:
        return np.empty((0, 2), np.int64)
    rows = np.array(sorted(stretches), np.int64)
    reach = np.maximum.accumulate(rows[:, 1])
    starts = np.flatnonzero(np.concatenate(([True], rows[1:, 0] > reach[:-1])))
    return np.stack((rows[starts, 0], reach[np.append(starts[1:] - 1, len(rows) - 1)]), axis=1)


def _within(inside: Ints, stretches: Ints) -> float:
    """Nanoseconds of `stretches` that lie inside."""
    if not len(inside):
        return 0.0
    base_ns = int(stretches[0, 0])
    ends = (inside - base_ns).astype(np.float64).ravel()  # near zero floats are exact
    passed = np.concatenate(([0.0], np.cumsum(np.diff(ends) * (np.arange(len(ends) - 1) % 2 == 0))))
    begin, end = (np.interp(stretches[:, side] - base_ns, ends, passed) for side in (0, 1))
    return float((end - begin).sum())
