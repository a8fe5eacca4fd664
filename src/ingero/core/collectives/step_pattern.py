"""The step of one rank: the pattern of collectives that repeats, and the rows of each repetition.

A candidate is one kind of collective; a turn lasts from one call of it to the next. The pattern is
the finest one whose turns hold the same heavy calls. Rare light calls, such as stop flags and
logged losses, may come when they like. A step begins after the longest silence of the host, where
it loads data, updates weights or waits for the GPU; on the GPU, calls overlap compute. A step is
identified by its anchor, a call that comes once per step: members of a communicator share the
sequence number of that call. Where every kind comes several times, as the gathers and scatters of
equal layers do, the anchor is a call with the calls that follow it.
"""

from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from ingero.core.collectives.columns import Collectives, Floats, Ints, Mask
from ingero.core.collectives.step_kinds import (
    Detail,
    Kind,
    KindCodes,
    code_followers,
    code_kinds,
    find_small,
    joined_comms,
    row_weights,
)
from ingero.core.collectives.steps.patterns import StepCut, StepPattern
from ingero.core.collectives.steps.totals import cut_by_total, find_by_total

MIN_TURNS = 3  # a pattern must repeat this often
FITTING_TURNS = 0.90  # of the turns must hold the heavy calls of the median turn
FITTING_BYTES = 0.90  # of all bytes must lie in such turns: a part of a step fits in few of them
EXPLAINED_BYTES = 0.98  # of all bytes are of kinds that come in every turn
SEARCHED_ROWS = 1 << 16  # the newest; a ring of the plugin holds half as many
DEPTHS = (1, 2, 4, 8, 16, 32)  # calls after the anchor that tell it from others of its kind
FOLLOWED = (Detail.SIZES, Detail.EXCHANGES)
MOST_TRIED = 12  # candidates of one depth

Rows = NDArray[np.intp]


def find_pattern(columns: Collectives) -> StepPattern | None:
    """Return the pattern that the calls of one rank repeat; None if they repeat none."""
    part = columns.take(_in_order(columns)[-SEARCHED_ROWS:])
    if len(part) <= MIN_TURNS:
        return None
    coded = [calls for detail in Detail if (calls := _code_calls(part, detail)) is not None]
    found = _search_all(coded)
    if found is None and any(calls.often.any() for calls in coded):
        found = _search_all([calls.with_flags() for calls in coded])
    return found or find_by_total(part)


def _search_all(coded: "list[_Calls]") -> StepPattern | None:
    followed = (_search_followed(calls) for calls in coded if calls.detail in FOLLOWED)
    return next((found for found in chain(map(_search, coded), followed) if found), None)


def cut_steps(columns: Collectives, pattern: StepPattern) -> StepCut:
    """Return which step and place of the pattern each row of one rank is.

    A reader of a live ring passes the rows since the last whole step again.
    """
    order = _in_order(columns)
    if pattern.total_bytes:
        return cut_by_total(columns, pattern, order)
    coded = code_kinds(columns, pattern.detail)
    kinds, usual, position = _tables(pattern)
    code = _recode(coded, kinds)[order]
    kept = np.flatnonzero(code >= 0)
    step = np.full(len(columns), -1, np.int64)
    place = np.full(len(columns), -1, np.int64)
    code, rows = code[kept], order[kept]
    anchors = _find_anchors(pattern, code, kinds, columns.end_ns[rows])
    turn = np.searchsorted(anchors, np.arange(len(code)), side="right") - 1
    nth = _occurrence(code, turn, usual)
    fits = (nth >= 0) & (nth < usual[code])
    at = position[code, np.clip(nth, 0, position.shape[1] - 1)]
    # Places before the anchor belong to the step of the anchor that follows.
    of_step = turn + (at < pattern.anchor)
    counts = fits & (of_step >= 0) & (of_step < len(anchors))
    step[rows[counts]] = of_step[counts]
    place[rows[counts]] = at[counts]
    whole = _whole_steps(pattern, step, place, len(anchors))
    heavy = np.array([pattern.needed[p] for p in range(len(pattern))], bool)
    crowded = np.unique(turn[~fits & heavy[position[code, 0]]])
    for late in (0, 1) if pattern.anchor else (0,):  # a call too many blurs both of its steps
        hit = crowded + late
        whole[hit[(hit >= 0) & (hit < len(anchors))]] = False
    named = rows[anchors]
    return StepCut(step, place, columns.comm[named], columns.seq[named], whole)


def _find_anchors(pattern: StepPattern, code: Ints, kinds: list[Kind], ends: Ints) -> Rows:
    """Return which calls are anchors: those of its kind that the right calls follow."""
    first = kinds.index(pattern.places[pattern.anchor][0])
    if pattern.pause_ns:
        calls = np.flatnonzero(code == first)
        return calls[_find_begins(ends[calls], len(pattern), pattern.pause_ns)]
    if not pattern.after:
        return np.flatnonzero(code == first)
    needed = {
        kind
        for (kind, _), is_needed in zip(pattern.places, pattern.needed, strict=True)
        if is_needed
    }
    heavy = np.flatnonzero(np.array([kind in needed for kind in kinds], bool)[code])
    wanted = [first, *(kinds.index(kind) for kind in pattern.after)]
    if len(heavy) < len(wanted):
        return np.empty(0, np.intp)
    windows = np.lib.stride_tricks.sliding_window_view(code[heavy], len(wanted))
    return heavy[np.flatnonzero((windows == wanted).all(axis=1))]


def _find_begins(ends: Ints, length: int, pause_ns: int) -> list[int]:
    """Return which calls begin a burst; the first call counts as one, since nobody knows.

    A host may also be silent in the middle of a burst: that begins none if the next one comes where
    it is due.
    """
    after = (np.flatnonzero(np.diff(ends) > pause_ns) + 1).tolist()
    known, begins = set(after), [0] if len(ends) else []
    for at in after:
        due = begins[-1] + length
        if at >= due or not (due in known or due >= len(ends)):
            begins.append(at)
    return begins


def _in_order(columns: Collectives) -> Rows:
    """Return the rows in the order in which the host enqueued them."""
    return np.lexsort((columns.end_ns, columns.start_ns))


def _tables(pattern: StepPattern) -> tuple[list[Kind], Ints, Ints]:
    """Return the kinds, how often each comes in a step, and places as [kind, occurrence].

    Occurrences are counted from the anchor on, as a turn begins there.
    """
    kinds = sorted({kind for kind, _ in pattern.places})
    usual = np.array([sum(k == kind for k, _ in pattern.places) for kind in kinds], np.int64)
    position = np.zeros((len(kinds), int(usual.max())), np.int64)
    seen = np.zeros(len(kinds), np.int64)
    turn = [*range(pattern.anchor, len(pattern)), *range(pattern.anchor)]
    for at in turn:
        code = kinds.index(pattern.places[at][0])
        position[code, seen[code]] = at
        seen[code] += 1
    return kinds, usual, position


def _recode(coded: KindCodes, kinds: list[Kind]) -> Ints:
    table = [kinds.index(kind) if kind in kinds else -1 for kind in coded.kinds]
    known = np.array(table or [-1], np.int64)
    return np.where(coded.code >= 0, known[coded.code], -1)


def _occurrence(code: Ints, turn: Ints, usual: Ints) -> Ints:
    """Return the how-manieth call of its kind a row is in its turn.

    Rows before the first anchor are counted back from the end of their turn.
    """
    order = np.lexsort((np.arange(len(code)), code, turn))
    key = turn[order] * (len(usual) + 1) + code[order]
    begins = np.flatnonzero(np.r_[True, key[1:] != key[:-1]]) if len(key) else np.empty(0, np.intp)
    counts = np.diff(np.r_[begins, len(key)])
    nth = np.arange(len(key)) - np.repeat(begins, counts)
    early = turn[order] < 0
    nth = np.where(early, usual[code[order]] - np.repeat(counts, counts) + nth, nth)
    result = np.empty(len(code), np.int64)
    result[order] = nth
    return result


def _whole_steps(pattern: StepPattern, step: Ints, place: Ints, steps: int) -> Mask:
    needed = np.array(pattern.needed, bool)
    counted = (place >= 0) & needed[place]
    present = np.bincount(step[counted], minlength=steps)[:steps]
    whole: Mask = present == int(needed.sum())
    return whole


def _code_calls(columns: Collectives, detail: Detail) -> "_Calls | None":
    coded = code_kinds(columns, detail)
    seen = np.flatnonzero(coded.code >= 0)
    if len(seen) <= MIN_TURNS:
        return None
    if len(seen) < len(columns):
        coded, columns = KindCodes(coded.code[seen], coded.kinds), columns.take(seen)
    volume, joined = row_weights(columns), joined_comms(columns, MIN_TURNS)
    weight = np.bincount(coded.code, volume, len(coded.kinds)) / max(float(volume.sum()), 1.0)
    small = find_small(coded, weight, is_known=bool((columns.size_bytes > 0).any()))
    return _Calls(columns, coded, detail, volume, weight, *small, joined)


def _search(calls: "_Calls") -> StepPattern | None:
    """Look for a kind that comes once per turn."""
    code = calls.coded.code
    counts = np.bincount(code, minlength=len(calls.coded.kinds))
    for candidate in np.argsort(-counts, kind="stable").tolist():
        if counts[candidate] <= MIN_TURNS:
            break
        if calls.light[candidate]:
            continue  # a flag may repeat as well, but not with every step
        found = calls.turns(np.flatnonzero(code == candidate))
        if found is not None:
            return _pattern(calls, *found)
    return None


def _search_followed(calls: "_Calls") -> StepPattern | None:
    """Look for an anchor that is told from others of its kind by the calls that follow it.

    Of the equally frequent ones the same is chosen on every rank.
    """
    heavy = np.flatnonzero(~calls.light[calls.coded.code])
    code, kinds = calls.coded.code[heavy], calls.coded.kinds
    of_kind = np.bincount(code, minlength=len(kinds))[~calls.light]
    for depth in DEPTHS:
        followed, lines = code_followers(code, depth)
        counts = np.bincount(followed[followed >= 0], minlength=len(lines))
        fitting: list[tuple[int, tuple[Ints, Mask]]] = []
        tried = 0
        for candidate in np.argsort(-counts, kind="stable").tolist():
            count = int(counts[candidate])
            if count <= MIN_TURNS or (fitting and count < counts[fitting[0][0]] - 2):
                break
            turns = np.rint(of_kind / count)
            if (np.abs(of_kind - turns * count) > turns + (1 - FITTING_TURNS) * count).any():
                continue  # some kind does not come as often in every turn
            tried += 1
            found = calls.turns(heavy[np.flatnonzero(followed == candidate)])
            if found is not None:
                fitting.append((candidate, found))
            if tried >= MOST_TRIED and not fitting:
                break
        if fitting:
            best, found = max(fitting, key=lambda each: calls.order_of(lines[each[0]].tolist()))
            anchors = heavy[np.flatnonzero(followed == best)]
            after = tuple(kinds[k] for k in lines[best].tolist()[1:])
            return _pattern(calls, *found, anchors, after)
    return None


@dataclass(frozen=True, slots=True)
class _Calls:
    """The calls of a rank in order, and what is known about their kinds."""

    columns: Collectives
    coded: KindCodes
    detail: Detail
    volume: Floats
    weight: Floats
    light: Mask
    often: Mask  # small calls that come several times per step
    joined: set[int]

    def with_flags(self) -> "_Calls":
        """Return the same calls, the small ones light even where they come often."""
        return replace(self, light=self.light | self.often, often=np.zeros_like(self.often))

    def order_of(self, line: list[int]) -> tuple[bool, list[Kind]]:
        """Return which of several anchors is chosen: one that has sequence numbers, if any."""
        numbered = bool((self.columns.seq[self.coded.code == line[0]] >= 0).all())
        return numbered, [self.coded.kinds[kind] for kind in line]

    def turns(self, anchors: Rows) -> tuple[Ints, Mask] | None:
        """Return the usual turn between anchors and which turns hold it; None if too few do."""
        code = self.coded.code
        most = 2 * np.bincount(code, minlength=len(self.weight)) >= len(anchors) - 1
        if self.weight[most].sum() < EXPLAINED_BYTES:
            return None  # too many bytes are of kinds that most turns do not have
        turn = np.searchsorted(anchors, np.arange(len(code)), side="right") - 1
        turn = np.where(turn < len(anchors) - 1, turn, -1)
        weight = np.where(self.often, 1.0, self.weight)  # they are asked, however few their bytes
        usual, fits = _usual_turn(code, turn, len(anchors) - 1, weight, self.light)
        if float(fits.mean()) < FITTING_TURNS or self.weight[usual > 0].sum() < EXPLAINED_BYTES:
            return None
        if self.detail is not Detail.SIZES and (usual > 0).sum() < 2:
            return None  # without sizes any calls repeat
        inside = (turn >= 0) & fits[turn] & (usual > 0)[code]
        if self.volume[inside].sum() < FITTING_BYTES * self.volume[turn >= 0].sum():
            return None
        many = self.often[code]  # these have few bytes: layers that repeat are no steps
        if many[inside].sum() < FITTING_BYTES * many[turn >= 0].sum():
            return None
        return (usual, fits) if self.joined <= set(self.columns.comm[inside].tolist()) else None


def _usual_turn(
    code: Ints, turn: Ints, turns: int, weight: Floats, light: Mask
) -> tuple[Ints, Mask]:
    """Return how often each kind comes in the median turn, and which turns hold exactly that."""
    kinds = len(weight)
    inside = turn >= 0
    table = np.bincount(turn[inside] * kinds + code[inside], minlength=turns * kinds)
    table = table.reshape(turns, kinds)
    usual = np.median(table, axis=0).astype(np.int64)
    asked = ((usual > 0) | (weight > 1 - EXPLAINED_BYTES)) & ~light
    if not asked.any():
        asked = usual > 0
    return usual, (table[:, asked] == usual[asked]).all(axis=1)


def _pattern(
    calls: _Calls, usual: Ints, fit: Mask, chosen: Rows | None = None, after: tuple[Kind, ...] = ()
) -> StepPattern:
    """Order the calls of a turn, find the silence before the step, and choose the anchor.

    `chosen` are the anchors where no kind comes once, and `after` is what follows them.
    """
    columns, coded, light = calls.columns, calls.coded, calls.light
    kept = np.flatnonzero((usual > 0)[coded.code])
    code, kinds = coded.code[kept], coded.kinds
    if chosen is None:
        anchor = _anchor_kind(calls, kept, usual)
        anchors = np.flatnonzero(code == anchor)
    else:
        anchor = int(coded.code[chosen[0]])
        anchors = np.searchsorted(kept, chosen)
    turn = np.searchsorted(anchors, np.arange(len(code)), side="right") - 1
    nth = _occurrence(code, turn, usual)
    fits = (turn >= 0) & (turn < len(anchors) - 1) & (nth < usual[code])
    index = np.arange(len(code)) - anchors[np.maximum(turn, 0)]
    first = np.concatenate(([0], np.cumsum(usual)))[:-1]
    slot = first[code] + np.clip(nth, 0, usual[code] - 1)
    silence = np.diff(columns.start_ns[kept], prepend=columns.start_ns[kept[0]])
    order = np.argsort(_medians(slot[fits], index[fits], int(usual.sum())), kind="stable")
    quiet = _medians(slot[fits], silence[fits], int(usual.sum()))[order]
    begin = int(np.argmax(quiet))
    order = np.roll(order, -begin)
    slots = [(kind, n) for kind in range(len(kinds)) for n in range(int(usual[kind]))]
    return StepPattern(
        calls.detail,
        _number_places([kinds[slots[s][0]] for s in order.tolist()]),
        tuple(not light[slots[s][0]] for s in order.tolist()),
        next(at for at, s in enumerate(order.tolist()) if slots[s] == (anchor, 0)),
        float(fit.mean()),
        after,
    )


def _anchor_kind(calls: _Calls, kept: Rows, usual: Ints) -> int:
    """Return the kind that identifies a step: it comes once, and is the same on every rank."""
    code, kinds = calls.coded.code[kept], calls.coded.kinds
    once = np.flatnonzero(usual == 1)
    numbered = np.array([(calls.columns.seq[kept[code == kind]] >= 0).all() for kind in once])
    best = once[numbered] if numbered.any() else once
    heavy = best[~calls.light[best]] if (~calls.light[best]).any() else best
    return int(max(heavy.tolist(), key=lambda k: (kinds[k].width, kinds[k].size_bytes, kinds[k])))


def _number_places(kinds: list[Kind]) -> tuple[tuple[Kind, int], ...]:
    return tuple((kind, kinds[:at].count(kind)) for at, kind in enumerate(kinds))


def _medians(slot: Ints, values: NDArray[np.generic], slots: int) -> Floats:
    """Return the median of the values in each slot; empty slots come last."""
    order = np.lexsort((values, slot))
    bounds = np.searchsorted(slot[order], np.arange(slots + 1))
    result = np.full(slots, np.inf)
    for s in range(slots):
        if bounds[s + 1] > bounds[s]:
            result[s] = float(values[order[(bounds[s] + bounds[s + 1]) // 2]])
    return result
