"""The search for the step pattern of a live rank: when it is looked for, confirmed and replaced.

A pattern is found as soon as it repeats, and looked for again whenever twice as many collectives
are known: the micro-batches of the first step repeat, too. When steps no longer come, patterns that
were in use before are tried first, then a new one is looked for.
"""

from collections import deque

import numpy as np

from ingero.core.collectives.columns import Collectives, concat
from ingero.core.collectives.step_pattern import StepPattern, cut_steps, find_pattern

LEARN_AFTER = 48  # collectives
SEARCHED = 16_384  # collectives in which a pattern is confirmed; the plugin's ring holds as many
MISSED_STEPS = (
    3  # as many collectives as in this many steps, without a step: is it another pattern?
)
# An evaluation is over after this time, most often: until then the steps of training are awaited.
AWAITED_NS = 30_000_000_000
PAUSE_NS = 1_000_000_000  # after such a pause it is looked whether repetitions come in bursts
BURST = 8.0  # a pause between bursts is as long as this many repetitions
REMEMBERED = 4  # patterns


class StepSearch:
    """The pattern in use; `changes` counts how often it was replaced."""

    def __init__(self) -> None:
        self.pattern: StepPattern | None = None
        self.changes = 0
        self._known: deque[StepPattern] = deque(maxlen=REMEMBERED)
        self._recent: list[Collectives] = []  # until the pattern is confirmed
        self._seen = 0  # collectives in `_recent`
        self._next_search = LEARN_AFTER
        self._fitted_ns = 0  # end of the last collective when a step was finished last

    def take(self, rows: Collectives, held: Collectives, *, has_steps: bool) -> bool:
        """Take new collectives; return whether the pattern changed.

        `held` are those since the last finished step, the new ones included; `has_steps` tells
        whether the pattern in use finds a whole step among them.
        """
        if self.pattern is None:
            return self._learn(held)
        if self._seen:
            return self._confirm(rows)
        # Patterns of before fit, too, where they differ in the anchor alone.
        return not has_steps and self._replace(held)

    def fits(self, rows: Collectives) -> None:
        """Note the collectives of steps that were finished."""
        self._fitted_ns = int(rows.end_ns.max())

    def skip(self) -> None:
        """Note that records were lost: what was seen before does not continue."""
        if self.pattern is None:
            self._next_search = LEARN_AFTER
        elif self._seen:
            self._recent, self._seen = [], 1
            self._next_search = 2 * LEARN_AFTER

    def _learn(self, held: Collectives) -> bool:
        if len(held) < self._next_search:
            return False
        # Held collectives are bounded: with a full house, every batch would be searched.
        self._next_search = min(max(len(held) * 5 // 4, LEARN_AFTER), SEARCHED)
        found = find_pattern(held)
        if found is None or _pauses_most_of_the_time(held, found):
            return False
        self._use(found)
        self._recent, self._seen = [held], len(held)
        self._next_search = 2 * len(held)
        return True

    def _confirm(self, rows: Collectives) -> bool:
        paused = self._recent and rows.start_ns.min() - self._recent[-1].end_ns.max() > PAUSE_NS
        self._recent.append(rows)
        self._seen += len(rows)
        if paused and self.pattern is not None:
            everything = concat(self._recent)
            if _pauses_most_of_the_time(everything, self.pattern):
                self.pattern, self._seen = None, 0
                self._learn(everything)
                return True
        if self._seen < self._next_search:
            return False
        found = find_pattern(concat(self._recent))
        self._next_search = 2 * self._seen
        if self._seen >= SEARCHED:
            self._recent, self._seen = [], 0
        if found is None or _identity(found) == _identity(self.pattern):
            return False
        self._use(found)
        return True

    def _replace(self, held: Collectives) -> bool:
        """Look for another pattern when there were no steps for long."""
        length = 0 if self.pattern is None else len(self.pattern)
        if len(held) < max(MISSED_STEPS * length, LEARN_AFTER):
            return False
        for known in list(self._known):
            if cut_steps(held, known).whole.sum() >= 2:
                self._use(known)
                return True
        if int(held.end_ns.max()) - self._fitted_ns < AWAITED_NS or len(held) < self._next_search:
            return False
        self._next_search = min(max(len(held) * 5 // 4, LEARN_AFTER), SEARCHED)
        found = find_pattern(held)
        if found is None or _identity(found) == _identity(self.pattern):
            return False
        self._use(found)
        return True

    def _use(self, pattern: StepPattern) -> None:
        self._next_search = LEARN_AFTER
        if self.pattern is not None:
            self.changes += 1
            self._known.append(self.pattern)
        if pattern in self._known:
            self._known.remove(pattern)
        self.pattern = pattern


def _pauses_most_of_the_time(rows: Collectives, pattern: StepPattern) -> bool:
    """Return whether the repetitions come in bursts: then they are layers of a step, not steps."""
    ends = np.sort(rows.end_ns[cut_steps(rows, pattern).place == pattern.anchor])
    between = np.diff(ends)
    if len(between) < LEARN_AFTER // 2:  # few and long ones are steps
        return False
    pauses = between[between > BURST * np.median(between)]
    return len(pauses) > 1 and bool(pauses.sum() > 0.5 * between.sum())  # one may be a compilation


def _identity(pattern: StepPattern | None) -> object:
    """Return what numbers steps: the anchor, and how often each kind comes in a step."""
    if pattern is None:
        return None
    return pattern.places[pattern.anchor], tuple(sorted(pattern.places))
