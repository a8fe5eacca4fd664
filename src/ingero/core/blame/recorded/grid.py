"""The steps of all ranks of a recorded job on one grid: step and place of every record.

Ranks of one role repeat one pattern. Steps of different ranks are lined up by the collectives they
share, so that no clock is needed; every step is numbered from the first one that any rank recorded.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from ingero.core.blame.recorded.rhythm import mark_first_calls
from ingero.core.collectives.columns import Collectives, Ints, Mask
from ingero.core.collectives.matching import Groups
from ingero.core.collectives.step_kinds import LIGHT_BYTES
from ingero.core.collectives.step_pattern import cut_steps, find_pattern
from ingero.core.collectives.steps.patterns import StepCut, StepPattern

FITTING = 0.5  # of the steps of a rank must be whole, or another pattern is looked for
SMOOTH = 5  # neighbouring steps that are numbered alike
MIN_FLAGS, REGULAR = 4, 0.9  # flags, and the share of them that one place follows


@dataclass(frozen=True, slots=True)
class RecordGrid:
    """Step and place of each row, -1 outside; `whole` is [rank, step].

    `last` is the place that ends the step of each rank, -1 for ranks without steps. A step holds
    the pattern of a rank `parts` times.
    """

    step: Ints
    place: Ints
    whole: NDArray[np.bool_]
    last: tuple[int, ...]
    patterns: tuple[StepPattern | None, ...]
    parts: int = 1

    def length(self, rank: int) -> int:
        """Return how many places the step of a rank has, at least one."""
        return max(1, len(self.patterns[rank] or ())) * self.parts


def build_grid(
    collectives: Collectives, groups: Groups, ranks: tuple[int, ...], cohort: NDArray[np.intp]
) -> RecordGrid:
    """Find the steps of all ranks and number them alike."""
    collectives = mark_first_calls(collectives, ranks)
    rows = [np.flatnonzero(collectives.who == code) for code in ranks]
    patterns = _patterns(collectives, rows, cohort)
    step = np.full(len(collectives), -1, np.int64)
    place = np.full(len(collectives), -1, np.int64)
    cuts: list[StepCut | None] = []
    for i, mine in enumerate(rows):
        patterns[i], cut = _cut(collectives.take(mine), patterns[i])
        cuts.append(cut)
        if cut is not None:
            step[mine], place[mine] = cut.step, cut.place
    numbers = _line_up(collectives, groups, rows, step)
    first = min((int(each.min()) for each in numbers if len(each)), default=0)
    size = max((int(each.max()) + 1 - first for each in numbers if len(each)), default=0)
    whole = np.zeros((len(ranks), size), bool)
    for i, (mine, cut) in enumerate(zip(rows, cuts, strict=True)):
        if cut is not None and len(numbers[i]):
            number = numbers[i] - first
            step[mine] = np.where(cut.step >= 0, number[cut.step], -1)
            whole[i, number] = cut.whole[: len(number)] & ~_are_two(number)
    last = tuple(_last_place(pattern) for pattern in patterns)
    return RecordGrid(step, place, whole, last, tuple(patterns))


def _cut(
    columns: Collectives, pattern: StepPattern | None
) -> tuple[StepPattern | None, StepCut | None]:
    """Cut a rank by the pattern of its role, or by its own where that fits few of its steps.

    In exchanges by sends and receives, each rank has other peers above and below its own number.
    """
    if pattern is None:
        return None, None
    cut = cut_steps(columns, pattern)
    if len(cut) and cut.whole.mean() >= FITTING:
        return pattern, cut
    own = find_pattern(columns)
    if own is None or own == pattern:
        return pattern, cut
    other = cut_steps(columns, own)
    return (own, other) if other.whole.sum() > cut.whole.sum() else (pattern, cut)


def _patterns(
    collectives: Collectives, rows: list[NDArray[np.intp]], cohort: NDArray[np.intp]
) -> list[StepPattern | None]:
    """Return the pattern of each rank: that of the member of its role with most records."""
    found: list[StepPattern | None] = [None] * len(rows)
    for code in np.unique(cohort):
        members = np.flatnonzero(cohort == code).tolist()
        longest = max(members, key=lambda i: len(rows[i]))
        columns = collectives.take(rows[longest])
        pattern = find_pattern(columns)
        if pattern is not None:
            pattern = _from_flags(columns, pattern)
        for i in members:
            found[i] = pattern
    return found


def _from_flags(columns: Collectives, pattern: StepPattern) -> StepPattern:
    """Return the pattern from the call on that follows the flags, where flags have one place.

    All ranks wait for each other there. A host that runs ahead may be silent for longer elsewhere.
    """
    cut = cut_steps(columns, pattern)
    placed = np.flatnonzero(cut.place >= 0)
    placed = placed[np.argsort(columns.start_ns[placed], kind="stable")]
    is_flag = (cut.place < 0) & (columns.size_bytes <= LIGHT_BYTES)
    is_flag &= columns.nranks == columns.nranks.max()
    after = np.searchsorted(columns.start_ns[placed], columns.start_ns[is_flag])
    firsts = cut.place[placed[after[(after > 0) & (after < len(placed))]]]
    if len(firsts) < MIN_FLAGS:
        return pattern
    counts = np.bincount(firsts, minlength=len(pattern))
    first = int(counts.argmax())
    if first == 0 or counts[first] < REGULAR * len(firsts):
        return pattern
    return replace(
        pattern,
        places=pattern.places[first:] + pattern.places[:first],
        needed=pattern.needed[first:] + pattern.needed[:first],
        anchor=(pattern.anchor - first) % len(pattern),
    )


def _line_up(
    collectives: Collectives, groups: Groups, rows: list[NDArray[np.intp]], step: Ints
) -> list[Ints]:
    """Return the number of each step of each rank, so that shared collectives have one step."""
    known = np.full(int(groups.max(initial=-1)) + 1, -1, np.int64)
    found: list[Ints | None] = [None] * len(rows)
    waiting = [i for i, mine in enumerate(rows) if (step[mine] >= 0).any()]
    base = 1 << 40  # offsets may be negative; steps of the grid may not
    while waiting:
        shared = [
            int(((known[groups[rows[i]]] >= 0) & (step[rows[i]] >= 0)).sum()) for i in waiting
        ]
        i = waiting.pop(int(np.argmax(shared)))
        mine = rows[i][step[rows[i]] >= 0]
        there, at = known[groups[mine]], step[mine]
        met = there >= 0
        is_whole = met & (collectives.peer[mine] < 0)  # of pairs, one that is lost moves the others
        met = is_whole if is_whole.any() else met
        count = np.arange(int(at.max()) + 1)
        if met.any():
            numbers = _numbers(at[met], there[met], count)
        else:
            numbers = count + _by_time(collectives, rows, step, found, i, base)
        found[i] = numbers
        free = known[groups[mine]] < 0
        known[groups[mine][free]] = numbers[at[free]]
    return [np.empty(0, np.int64) if each is None else each for each in found]


def _numbers(step: Ints, there: Ints, count: Ints) -> Ints:
    """Return the number of each step of a rank: `there` is that of collectives that it shares.

    Where the call is lost that tells steps apart, all later ones are counted one too low.
    """
    order = np.lexsort((there - step, step))
    apart, begins = (there - step)[order], np.searchsorted(step[order], count)
    ends = np.searchsorted(step[order], count, side="right")
    is_known = ends > begins
    by = apart[(begins + ends)[is_known] // 2]
    by = np.median(sliding_window_view(np.pad(by, SMOOTH // 2, "edge"), SMOOTH), axis=1)
    at = np.maximum(np.searchsorted(count[is_known], count, side="right") - 1, 0)
    numbers: Ints = count + by.astype(np.int64)[at]
    return numbers


def _are_two(number: Ints) -> Mask:
    """Return which steps have the number of another one, since the rank that counts missed one.

    Where most have, the pattern of this rank is a part of the step of others, and adds up to it.
    """
    counts = np.bincount(number)
    some = counts > 1
    two: Mask = some[number] & (some.sum() < FITTING * (counts > 0).sum())
    return two


def _by_time(
    collectives: Collectives,
    rows: list[NDArray[np.intp]],
    step: Ints,
    found: list[Ints | None],
    rank: int,
    base: int,
) -> int:
    """Line up a rank that shares no collective with the others by the end of its last step."""
    for other, numbers in enumerate(found):
        if numbers is None:
            continue
        theirs, mine = (rows[i][step[rows[i]] >= 0] for i in (other, rank))
        end = collectives.end_ns[mine].max()
        nearest = theirs[np.abs(collectives.end_ns[theirs] - end).argmin()]
        return int(numbers[step[nearest]]) - int(step[mine].max())
    return base


def _last_place(pattern: StepPattern | None) -> int:
    if pattern is None:
        return -1
    return max(at for at, needed in enumerate(pattern.needed) if needed)
