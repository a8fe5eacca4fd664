"""Steps by their bytes: gradients that are fused differently in each step add up to the same total.

How many calls a step has, and how large they are, depends on when gradients were ready. But the end
of every step is the end of a call, so the bytes since the end of any step reach a whole number of
totals at calls that exist. Which total that is shows by chance, too, where sizes are multiples of
one unit: it must hold for so many steps that this is as good as impossible.
"""

from itertools import pairwise

import numpy as np

from ingero.core.collectives.columns import Collectives, Floats, Ints, Mask
from ingero.core.collectives.step_kinds import LIGHT_BYTES, Detail, Kind
from ingero.core.collectives.steps.patterns import StepCut, StepPattern

MOST_CALLS = 32  # of a step; the last of its places is that of its last call
FITTING = 0.9  # of all bytes are in steps
CHANCE = 16.0  # the logarithm of how unlikely it must be that no total is behind it
MIN_STEPS = 4
FIRST_CALLS = 2 * MOST_CALLS  # from so many calls on it is tried: most lie in the middle of a step
MOST_TRIED = 4096  # calls
SAMPLED = 64  # totals that show how often a call ends there by chance
LONGER = 1.5  # times the silence of the present beginning: where another one is the right one


def find_by_total(columns: Collectives) -> StepPattern | None:
    """Return the pattern of steps that have only their bytes in common; rows are in order."""
    heavy = np.flatnonzero(_is_heavy(columns))
    total = find_total(columns.size_bytes[heavy])
    if not total:
        return None
    kind = Kind("", -1, int(columns.nranks[heavy].max()), 0)
    places = tuple((kind, number) for number in range(MOST_CALLS))
    needed = tuple(number == MOST_CALLS - 1 for number in range(MOST_CALLS))
    return StepPattern(Detail.OPERATIONS, places, needed, 0, 1.0, total_bytes=total)


def cut_by_total(columns: Collectives, pattern: StepPattern, order: Ints) -> StepCut:
    """Return which step and place each row of one rank is; `order` is that of the rows."""
    rows = order[_is_heavy(columns)[order]]
    silence = np.diff(columns.start_ns[rows], prepend=columns.start_ns[rows[:1]])
    begins, calls = cut_totals(columns.size_bytes[rows], silence / 1e9, pattern.total_bytes)
    is_short = calls <= MOST_CALLS
    begins, calls = begins[is_short], calls[is_short]
    step, place = (np.full(len(columns), -1, np.int64) for _ in range(2))
    number = np.repeat(np.arange(len(begins)), calls)
    nth = np.arange(len(number)) - np.repeat(np.cumsum(calls) - calls, calls)
    placed = rows[begins[number] + nth]
    step[placed], place[placed] = number, MOST_CALLS - calls[number] + nth
    named = rows[begins]
    whole = np.ones(len(begins), bool)
    return StepCut(step, place, columns.comm[named], columns.seq[named], whole)


def _is_heavy(columns: Collectives) -> Mask:
    heavy: Mask = columns.size_bytes > LIGHT_BYTES
    return heavy


def find_total(volume: Ints) -> int:
    """Return the bytes of a step; 0 where calls add up to no total again and again."""
    volume = volume[-MOST_TRIED:]
    whole = int(volume.sum())
    if len(volume) <= MIN_STEPS or whole <= 0:
        return 0
    ends = np.concatenate(([0], np.cumsum(volume)))
    known = ends[: FIRST_CALLS + 2 * MOST_CALLS + 1]
    apart = np.unique(known[None, 1:] - known[:-1, None])
    apart = apart[(apart > 0) & (apart * MIN_STEPS <= whole)]
    some = apart[:: max(1, len(apart) // SAMPLED)]
    by_chance = float(np.mean([np.isin(ends + each, ends).mean() for each in some.tolist()] or [1]))
    repeated = set[int]()
    for first in range(min(FIRST_CALLS, len(volume))):
        likely = ends[first + 1 : first + 1 + 2 * MOST_CALLS] - ends[first]
        due = ends[first] + likely[:, None] * np.arange(2, MIN_STEPS)
        repeated.update(likely[np.isin(due, ends).all(axis=1)].tolist())
    totals = (each for each in sorted(repeated) if each * MIN_STEPS <= whole)
    return next((each for each in totals if _is_total(volume, each, by_chance)), 0)


def _is_total(volume: Ints, total: int, by_chance: float) -> bool:
    """Whether nearly all bytes lie in steps of a total, and follow each other as by no chance."""
    begins, calls = cut_totals(volume, np.zeros(len(volume)), total)
    if len(begins) * total < FITTING * (int(volume.sum()) - 2 * total):
        return False
    follows = (begins + calls)[:-1] == begins[1:]
    # Equal calls end there again if they did once: only steps of other calls say anything.
    made_of = [volume[at : at + n].tobytes() for at, n in zip(begins, calls, strict=True)]
    is_new = np.array([one != other for one, other in pairwise(made_of)], bool)
    steps = int((follows & is_new).sum())
    chains = len(begins) - int(follows.sum())
    ends = np.concatenate(([0], np.cumsum(volume)))
    elsewhere = np.delete(ends, begins)
    if len(elsewhere):
        by_chance = max(by_chance, float(np.isin(elsewhere + total, ends).mean()))
    unlikely = -np.log(max(by_chance, 1e-9)) * steps - np.log(MOST_CALLS) * chains
    return bool(unlikely >= CHANCE + np.log(2 * MOST_CALLS * FIRST_CALLS))


def cut_totals(volume: Ints, silence_s: Floats, total: int) -> tuple[Ints, Ints]:
    """Return the first call and the number of calls of each whole step.

    Calls that are lost, or of no step, move all later ends: there it is searched anew. `silence_s`
    is that before each call; it tells which of several possible calls begins a step.
    """
    ends = np.concatenate(([0], np.cumsum(volume)))
    after = np.searchsorted(ends, ends + total)
    is_end = (after < len(ends)) & (ends[np.minimum(after, len(ends) - 1)] == ends + total)
    after = np.where(is_end, after, -1)
    length = _chains(after)
    first = np.where(length > 0, np.arange(len(length)), len(volume))
    first = np.minimum.accumulate(first[::-1])[::-1]  # call from each on that may begin a step
    begins: list[int] = []
    at = 0
    while at < len(volume) and first[at] < len(volume):
        at = _best_begin(at, int(first[at]), ends, total, after, length, silence_s)
        while after[at] >= 0:
            begins.append(at)
            at = int(after[at])
    found = np.array(begins, np.int64)
    return found, after[found] - found if len(found) else found


def _chains(after: Ints) -> Ints:
    """Return how many steps follow each other from each call on."""
    length, following = np.zeros(len(after), np.int64), after.tolist()
    for at in range(len(following) - 1, -1, -1):
        if following[at] >= 0:
            length[at] = 1 + length[following[at]]
    return length


def _best_begin(
    at: int, first: int, ends: Ints, total: int, after: Ints, length: Ints, silence_s: Floats
) -> int:
    """Return with which call a step begins: one that most steps follow, after a long silence.

    Of those within a step from `first` on, the first that steps follow; `at` itself if nothing
    speaks against it.
    """
    stop = int(np.searchsorted(ends, ends[first] + total))
    candidates = np.arange(first, min(stop, len(silence_s)))
    candidates = candidates[length[candidates] >= FITTING * length[candidates].max()]
    quiet = [_usual_silence(int(each), after, silence_s) for each in candidates.tolist()]
    best = int(np.argmax(quiet))
    if candidates[0] == at and quiet[0] * LONGER >= quiet[best]:
        return at
    return int(candidates[best])


def _usual_silence(at: int, after: Ints, silence_s: Floats) -> float:
    found: list[float] = []
    while at >= 0 and at < len(silence_s) and len(found) < MOST_CALLS:
        found.append(silence_s[at])
        at = int(after[at])
    return float(np.median(found)) if found else 0.0
