"""The search for the step pattern of a live rank: when it is looked for, confirmed and replaced.

A pattern is found as soon as it repeats, and looked for again whenever twice as many collectives
are known: the micro-batches of the first step repeat, too. When steps no longer come, patterns that
were in use before are tried first, then a new one is looked for. A pattern that finds no step for
minutes is given up, even if there is no other one, and so is one that leaves out much of most
steps: where a job does more than before, what it did still comes by chance, or as a part.
"""

from collections import deque
from dataclasses import replace

import numpy as np

from ingero.core.collectives.columns import Collectives, Floats, Ints, Mask, concat
from ingero.core.collectives.step_kinds import EXCHANGES, row_weights
from ingero.core.collectives.step_pattern import (
    FITTING_TURNS,
    MIN_TURNS,
    cut_steps,
    find_pattern,
)
from ingero.core.collectives.steps.patterns import StepPattern

LEARN_AFTER = 48  # collectives
SEARCHED = 16_384  # collectives in which a pattern is confirmed; the plugin's ring holds as many
MISSED_STEPS = (
    3  # as many collectives as in this many steps, without a step: is it another pattern?
)
# An evaluation is over after this time, most often: until then the steps of training are awaited.
AWAITED_NS = 30_000_000_000
# So are most checkpoints and long evaluations. Who sends nothing for longer seems to have ended.
GIVEN_UP_NS = 180_000_000_000
PAUSE_NS = 1_000_000_000  # after such a pause it is looked whether repetitions come in bursts
BURST = 8.0  # a pause between bursts is as long as this many repetitions
BELOW_HALF = 0.45  # a quantile; the median of bursts of two may be a pause
REMEMBERED = 4  # patterns
# A step strays if other calls have so many bytes beside its own. All those that come now and then
# have a fiftieth of all bytes where a pattern is found, so that at most a tenth of its steps stray.
BESIDE = 0.2
# Five that do not stray outweigh one that does. Where 80 are missing, the pattern is given up; the
# next time where twice as many are, since the same pattern may have been found again.
FOLLOWING, MOST_STRAYED = 5, 80
TRIED_STEPS = 8  # the newest calls, as many as in so many steps, show whether a pattern fits now


class StepSearch:
    """The pattern in use; `changes` counts how often it was replaced."""

    def __init__(self) -> None:
        self.pattern: StepPattern | None = None
        self.changes = 0
        self._known: deque[StepPattern] = deque(maxlen=REMEMBERED)
        self._recent: list[Collectives] = []  # until the pattern is confirmed
        self._seen = 0  # collectives in `_recent`; 0 once it is confirmed
        self._confirm_at = 0  # so many of them
        self._unsearched = 0  # collectives since a pattern was looked for
        self._pause = 0  # so many of them pass before one is looked for again
        self._fitted_ns = 0  # end of the last collective when a step was finished last
        self._strayed, self._most_strayed = 0, MOST_STRAYED

    def take(self, rows: Collectives, held: Collectives, *, has_steps: bool) -> bool:
        """Take new collectives; return whether the pattern changed.

        `held` are those since the last finished step, the new ones included; `has_steps` tells
        whether the pattern in use finds a whole step among them.
        """
        self._unsearched += len(rows)
        if self._strayed > self._most_strayed and self.pattern is not None:
            self._most_strayed *= 2
            self._remember(self.pattern)
            self._use_none()
            return True
        if self.pattern is None:
            return self._return_to_known(held, len(rows)) or self._learn(held)
        if self._seen and self._confirm(rows):
            return True
        # Patterns of before fit, too, where they differ in the anchor alone.
        return not has_steps and self._replace(held, len(rows))

    def fits(self, rows: Collectives, beside: Floats) -> None:
        """Note the collectives of steps that were finished.

        `beside` are the bytes of other calls in each step, as a share of its own ones.
        """
        self._fitted_ns = int(rows.end_ns.max())
        is_total = self.pattern is not None and self.pattern.total_bytes
        strayed = int((beside > (0 if is_total else BESIDE)).sum())
        self._strayed = max(self._strayed + (FOLLOWING + 1) * strayed - len(beside), 0)

    def skip(self) -> None:
        """Note that records were lost: what was seen before does not continue."""
        self._pause = 0
        if self._seen:
            self._recent, self._seen, self._confirm_at = [], 1, 2 * LEARN_AFTER

    def _learn(self, held: Collectives) -> bool:
        """Look for a pattern, again and again while a quarter more collectives are held.

        So many are held at most that they do not grow for ever; then a quarter of them is new.
        """
        if len(held) < LEARN_AFTER or self._unsearched < self._pause:
            return False
        self._unsearched, self._pause = 0, len(held) // 4
        found = _find(held)
        if found is None or not _has_steps(held, found):
            return False
        self._use(found, held)
        if not self._seen:
            self._recent, self._seen, self._confirm_at = [held], len(held), 2 * len(held)
        return True

    def _confirm(self, rows: Collectives) -> bool:
        paused = self._recent and rows.start_ns.min() - self._recent[-1].end_ns.max() > PAUSE_NS
        self._recent.append(rows)
        self._seen += len(rows)
        if paused and self.pattern is not None:
            everything = concat(self._recent)
            if _pauses_most_of_the_time(everything, self.pattern):
                self._use_none()
                self._learn(everything)
                return True
        if self._seen < self._confirm_at:
            return False
        everything = concat(self._recent)
        found = _find(everything)
        self._confirm_at = 2 * self._seen
        if self._seen >= SEARCHED:
            self._recent, self._seen = [], 0
        if found is None or _identity(found) == _identity(self.pattern):
            return False
        if not _has_steps(everything, found):  # the job did so before, and does otherwise now
            return False
        self._use(found, rows)
        return True

    def _replace(self, held: Collectives, new: int) -> bool:
        """Look for another pattern when there were no steps for long; give this one up at last."""
        before = self.pattern
        if before is None or len(held) < max(MISSED_STEPS * len(before), LEARN_AFTER):
            return False
        missing_ns = int(held.end_ns.max()) - self._fitted_ns
        is_replaced = self._return_to_known(held, new) or (
            missing_ns >= AWAITED_NS and self._learn(held)
        )
        if not is_replaced and missing_ns < GIVEN_UP_NS:
            return False
        if not is_replaced:
            self._use_none()
        self._remember(before)
        return True

    def _return_to_known(self, held: Collectives, new: int) -> bool:
        """Use a pattern that was in use before, if the `new` collectives have steps of it again."""
        for known in self._known if len(held) >= LEARN_AFTER else ():
            if _is_back(held, known, new):
                self._known.remove(known)
                self._use(known, held)
                return True
        return False

    def _remember(self, pattern: StepPattern) -> None:
        others = (each for each in self._known if _identity(each) != _identity(pattern))
        self._known = deque((*others, pattern), REMEMBERED)

    def _use(self, pattern: StepPattern, rows: Collectives) -> None:
        self.changes += self.pattern is not None
        self.pattern, self._fitted_ns, self._strayed = pattern, int(rows.end_ns.max()), 0

    def _use_none(self) -> None:
        self.pattern, self._recent, self._seen, self._strayed = None, [], 0, 0


def _has_steps(rows: Collectives, pattern: StepPattern) -> bool:
    """Whether the newest calls have steps of a pattern."""
    newest = rows.take(np.arange(len(rows))[-TRIED_STEPS * len(pattern) :])
    return bool(cut_steps(newest, pattern).whole.sum() >= 2)


def _is_back(rows: Collectives, pattern: StepPattern, new: int) -> bool:
    """Whether the newest calls, of which so many are `new`, are steps of a pattern used before."""
    newest = rows.take(np.arange(len(rows))[-TRIED_STEPS * len(pattern) - new :])
    if pattern.total_bytes:  # many calls end at a total by chance
        return _identity(find_pattern(newest)) == _identity(pattern)
    cut = cut_steps(newest, pattern)
    if cut.whole.sum() < 2:
        return False
    is_inside = (cut.step >= 0) & cut.whole[cut.step]
    first, last = np.flatnonzero(is_inside)[[0, -1]].tolist()
    is_beside = ~is_inside & ~newest.has_op(EXCHANGES)
    is_beside[:first] = is_beside[last:] = False
    weights = row_weights(newest)
    return bool(weights[is_beside].sum() <= BESIDE * weights[is_inside].sum())


def _find(rows: Collectives) -> StepPattern | None:
    """Return the pattern that the calls repeat; bursts of calls that are all alike are its steps.

    None if the repetitions come in other bursts.
    """
    found = find_pattern(rows)
    if found is None or not _pauses_most_of_the_time(rows, found):
        return found
    return _of_bursts(rows, found)


def _pauses_most_of_the_time(rows: Collectives, pattern: StepPattern) -> bool:
    """Return whether the repetitions come in bursts: then they are parts of a step, not steps."""
    ends = np.sort(rows.end_ns[cut_steps(rows, pattern).place == pattern.anchor])
    between = np.diff(ends)
    if len(between) < LEARN_AFTER // 2:  # few and long ones are steps
        return False
    pauses = between[_are_pauses(between)]
    return len(pauses) > 1 and bool(pauses.sum() > 0.5 * between.sum())  # one may be a compilation


def _of_bursts(rows: Collectives, pattern: StepPattern) -> StepPattern | None:
    """Return the pattern whose steps are bursts of the one call of `pattern`, if they are even."""
    calls = rows.take(np.flatnonzero(cut_steps(rows, pattern).place >= 0))
    if len(pattern) > 1 or (calls.seq < 0).any() or (calls.comm != calls.comm[0]).any():
        return None
    length, pause_ns = _measure_bursts(np.sort(calls.end_ns))
    if not length:
        return None
    places = tuple((pattern.places[0][0], n) for n in range(length))
    return replace(pattern, places=places, needed=(True,) * length, pause_ns=pause_ns)


def _measure_bursts(ends: Ints) -> tuple[int, int]:
    """Return the calls of a burst and the shortest pause before one; zeros if bursts are uneven.

    The pause lies between the usual times within bursts and between them, by the same factor.
    """
    between = np.diff(ends)
    pauses = _are_pauses(between)
    lengths = np.diff(np.flatnonzero(pauses))
    if len(lengths) < MIN_TURNS:
        return 0, 0
    length = int(np.median(lengths))
    inner = len(ends) - 2 * length  # the first and the last burst may be cut off
    if length < 2 or lengths[lengths == length].sum() < FITTING_TURNS * inner:
        return 0, 0
    short, long = (max(float(np.median(between[each])), 1.0) for each in (~pauses, pauses))
    return length, int(np.sqrt(short * long))


def _are_pauses(between: Ints) -> Mask:
    """Return which times between the ends of calls are pauses between bursts."""
    usual = np.quantile(between, BELOW_HALF)
    pauses: Mask = between > BURST * usual
    return pauses


def _identity(pattern: StepPattern | None) -> object:
    """Return what numbers steps: the anchor, and how often each kind comes, or the bytes of all."""
    if pattern is None:
        return None
    return pattern.places[pattern.anchor], tuple(sorted(pattern.places)), pattern.total_bytes
