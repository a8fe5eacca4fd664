"""Steps by their bytes: gradients that are fused differently in each step add up to the same total.

How many calls a step has, and how large they are, depends on when gradients were ready. But the end
of every step is the end of a call, so the bytes since the end of any step reach a whole number of
totals at calls that exist. Which total that is shows by chance, too, where sizes are multiples of
one unit: it must hold for so many steps that this is as good as impossible. A step counts only if
its calls are no repetition of earlier ones, so a job whose calls repeat has no total.
"""

import numpy as np

from ingero.core.collectives.columns import Collectives, Floats, Ints, Mask
from ingero.core.collectives.step_kinds import LIGHT_BYTES, Detail, Kind
from ingero.core.collectives.steps.patterns import StepCut, StepPattern

MOST_CALLS = 32  # of a step; the last of its places is that of its last call
FITTING = 0.9  # of all bytes are in steps
CHANCE = 24.0  # the logarithm of how unlikely a total must be, of which thousands are possible
MIN_STEPS = 4
CLEAREST = 0.05  # no single step is taken for less likely than that: parts of a job may be alike
MOST_TRIED = 4096  # calls
MORE_OFTEN = 1.25  # where calls end again so much more often after other bytes, those are a step
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
    calls = range(1, min(2 * MOST_CALLS, len(volume)) + 1)
    apart, counts = np.unique(
        np.concatenate([ends[n:] - ends[:-n] for n in calls]), return_counts=True
    )
    is_likely = (counts * MORE_OFTEN >= counts.max()) & (apart * MIN_STEPS <= whole)
    is_likely &= counts * apart >= FITTING * (whole - 2 * apart)
    by_chance = float(counts.mean()) / len(ends)
    totals = (each for each in apart[is_likely].tolist() if _is_total(volume, each, by_chance))
    return next(totals, 0)


def _is_total(volume: Ints, total: int, by_chance: float) -> bool:
    """Whether nearly all bytes lie in steps of a total, and follow each other as by no chance."""
    begins, calls = cut_totals(volume, np.zeros(len(volume)), total)
    if len(begins) * total < FITTING * (int(volume.sum()) - 2 * total):
        return False
    ends = np.concatenate(([0], np.cumsum(volume)))
    elsewhere = np.delete(ends, begins)
    if len(elsewhere):
        by_chance = max(by_chance, float(np.isin(elsewhere + total, ends).mean()))
    surprises, chains = _count_surprises(volume, begins, calls)
    unlikely = -np.log(max(by_chance, CLEAREST)) * surprises - np.log(MOST_CALLS) * chains
    return bool(unlikely >= CHANCE)


def _count_surprises(volume: Ints, begins: Ints, calls: Ints) -> tuple[int, int]:
    """Return how many steps follow another one as none did before, and how many chains have some.

    Calls that are known to add up to a total do so again, and where calls repeat, the steps before
    one foretell what it is made of. So a step is compared with all earlier ones, together with the
    steps since the last surprise.
    """
    names: dict[bytes, str] = {}
    past = since = ""
    surprises: list[int] = []
    after, chain = -1, 0
    for at, n in zip(begins.tolist(), calls.tolist(), strict=True):
        step = names.setdefault(volume[at : at + n].tobytes(), chr(len(names) + 1))
        if at != after:
            chain, past, since = chain + 1, past + "\0", ""
        is_known = since + step in past
        if not is_known and at == after:
            surprises.append(chain)
        since = since + step if is_known else ""
        past, after = past + step, at + n
    return len(surprises), len(set(surprises))


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
