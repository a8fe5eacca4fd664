"""How long a job waited for one rank in a step, from the collectives of steps that were sent whole.

A collective ends on all its members together, so the one with the shortest duration arrived last.
No clocks are compared. The time from the second last arrival to the last one is the advance: the
job waited that long for one member alone. The advance of a step is the largest one of its places,
since compute that overlaps collectives shows the same delay again at later places. What a member
waited for in another group is not its own advance (`inherited`).

When an exchange was over is not known, but its start is, and how long after the end of place 0 that
was. All members leave an exchange together, so what a member adds at one is not seen at the next:
the advances of the exchanges of a step add up.
"""

from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ingero.contract.collective import POINT_TO_POINT_OPS
from ingero.core.collectives.columns import Collectives, Floats, Ints, Mask
from ingero.core.collectives.inherited import StepWaits
from ingero.core.collectives.lag import SYNCHRONISING_OPS
from ingero.core.collectives.matching import Groups
from ingero.core.collectives.pairs.live_exchanges import EXCHANGES
from ingero.core.robust import peer_medians

ENDING_TOGETHER = SYNCHRONISING_OPS - POINT_TO_POINT_OPS
# Who gets data from one rank waits for it, and so does who gives data to one. Neither is an
# arrival, since the other side does not wait.
ONE_SIDED = frozenset({"Broadcast", "Reduce"})
KEPT_S = 10.0  # how long the advances of a step wait for the own time of the step
LATE_S = 60.0  # how long a collective can be compared with reports that come late
MAX_CLOSED = 1 << 17  # collectives of one cluster that await such reports
_MIX = np.uint64(0x9E3779B97F4A7C15)  # spreads sequence numbers over communicators
MAX_KEPT = 1 << 18  # advances of one cluster
LATE = 0.15  # of how late a member is where anybody was waited for most: it is late there, too
_STEP_BITS = 40  # of a step number in a key; a job of one step per millisecond runs for 34 years


@dataclass(frozen=True, slots=True)
class Arrivals:
    """One row per collective and member, in seconds.

    `gap_s` is the advance of whoever came last to this collective, `advance_s` that of the member,
    which is 0 where somebody else came last. `start_late_s` and `enqueue_late_s` are how much later
    than the median of its peers the member's GPU started and its host enqueued. `row` is the record
    in the table that was measured, -1 where that table is gone. `queue_s` is the time from its
    enqueue to its start, added up over `places` collectives. `exchange_s` is the advance at
    exchanges, and `hidden_s` the part of it at those that follow another exchange: the own time of
    the member leaves it out. In `hidden_idle_s` of that, its GPU waited for its host. `near_s` and
    `far_s` are how late the host enqueued where it was least and most ahead of its GPU, among the
    places where that was late, by `near_queue_s` and `far_queue_s`.
    """

    key: Ints
    gap_s: Floats
    advance_s: Floats
    start_late_s: Floats
    enqueue_late_s: Floats
    row: Ints
    queue_s: Floats
    places: Floats
    exchange_s: Floats
    hidden_s: Floats
    hidden_idle_s: Floats
    near_queue_s: Floats
    near_s: Floats
    far_queue_s: Floats
    far_s: Floats

    def __len__(self) -> int:
        return len(self.key)

    def take(self, rows: Groups | Mask) -> "Arrivals":
        """Return the rows of an index or mask."""
        return Arrivals(*(getattr(self, field.name)[rows] for field in fields(self)))


_NO_INTS, _NO_FLOATS = np.empty(0, np.int64), np.empty(0)
NO_ARRIVALS = Arrivals(
    _NO_INTS, _NO_FLOATS, _NO_FLOATS, _NO_FLOATS, _NO_FLOATS, _NO_INTS, *[_NO_FLOATS] * 9
)


def step_keys(member: Ints, step: Ints) -> Ints:
    """Return one number per member and step; steps of a member follow each other."""
    return np.asarray((member << _STEP_BITS) + (step & ((1 << _STEP_BITS) - 1)), np.int64)


def member_of(keys: Ints) -> Ints:
    """Return the members of keys that `step_keys` returned."""
    return keys >> _STEP_BITS


def measure_arrivals(
    rows: Collectives, groups: Groups, member: Ints, waits: StepWaits, now_s: float
) -> Arrivals:
    """Return the arrivals at collectives of numbered steps.

    `member` is the member of each row, -1 for rows of nobody; `waits` are those of steps under way.
    Only collectives that the GPU timed on at least two members count.
    """
    arrives = has_arrival(rows)
    usable = arrives | (rows.is_gpu_timed & rows.has_op(ONE_SIDED))
    chosen = np.flatnonzero(usable & (rows.step >= 0) & (member >= 0))
    chosen = chosen[np.argsort(groups[chosen], kind="stable")]
    start_s, enqueue_s = _relative(rows, chosen)
    codes = np.unique(groups[chosen], return_inverse=True)[1]
    counts = np.bincount(codes) if len(codes) else np.empty(0, np.intp)
    order = np.lexsort((start_s, codes))
    last = np.cumsum(counts) - 1
    gap = np.where(counts > 1, start_s[order[last]] - start_s[order[np.maximum(last - 1, 0)]], 0.0)
    key = step_keys(member[chosen], rows.step[chosen])
    wait_s = start_s[order[last]][codes] - start_s
    inherited_s = waits.take(key, member[chosen], rows.comm[chosen], wait_s, now_s)
    gap = np.maximum(gap - inherited_s[order[last]], 0.0)
    advance = np.zeros(len(chosen))
    advance[order[last]] = gap
    in_exchange = np.where(rows.after_ns[chosen] >= 0, advance, 0.0)
    start_late_s, enqueue_late_s = (
        each - peer_medians(codes, each) if len(codes) else each for each in (start_s, enqueue_s)
    )
    queue_s = start_s - enqueue_s
    hidden_s = np.where(_follows_exchange(rows, chosen, key), in_exchange, 0.0)
    arrivals = Arrivals(
        key,
        gap[codes],
        advance,
        start_late_s,
        enqueue_late_s,
        chosen.astype(np.int64),
        queue_s,
        np.ones(len(chosen)),
        in_exchange,
        hidden_s,
        np.maximum(hidden_s - queue_s, 0.0),
        *(queue_s, enqueue_late_s, queue_s, enqueue_late_s),
    )
    return arrivals.take((counts[codes] > 1) & arrives[chosen]) if len(codes) else arrivals


class ClosedCollectives:
    """What is kept of collectives that were measured before all members had reported.

    The reports of a node may come late. Its ranks are then compared with the arrivals of the
    others, for up to LATE_S seconds. `dropped` counts collectives beyond the limit.
    """

    def __init__(self) -> None:
        self.dropped = 0
        self._key = np.empty(0, np.uint64)
        self._known = np.empty((4, 0))  # last start, median start and enqueue; when it was closed

    def keep(self, rows: Collectives, groups: Groups, now_s: float) -> None:
        """Keep the collectives of which members are missing."""
        usable = np.flatnonzero((rows.step >= 0) & (rows.seq >= 0) & has_arrival(rows))
        counts = np.bincount(groups[usable], minlength=int(groups.max(initial=-1)) + 1)
        chosen = usable[(counts[groups[usable]] < rows.nranks[usable])]
        chosen = chosen[counts[groups[chosen]] > 1]
        recent = now_s - self._known[3] <= LATE_S
        key, known = self._key[recent], self._known[:, recent]
        if len(chosen):
            start_s, enqueue_s = _relative(rows, chosen)
            codes = np.unique(groups[chosen], return_inverse=True)[1]
            size = int(codes.max()) + 1
            last, first_row = np.full(size, -np.inf), np.zeros(size, np.intp)
            np.maximum.at(last, codes, start_s)
            first_row[codes] = chosen
            medians = [_medians(codes, each, size) for each in (start_s, enqueue_s)]
            key = np.concatenate((key, _identity(rows, first_row)))
            fresh = np.array([last, *medians, np.full(size, now_s)])
            known = np.concatenate((known, fresh), axis=1)
        if len(key) > MAX_CLOSED:
            self.dropped += len(key) - MAX_CLOSED
            key, known = key[-MAX_CLOSED:], known[:, -MAX_CLOSED:]
        order = np.argsort(key, kind="stable")
        self._key, self._known = key[order], known[:, order]

    def measure(self, rows: Collectives, member: Ints) -> tuple[Arrivals, Mask]:
        """Return the arrivals of late rows, and which of all rows these are."""
        is_late = np.zeros(len(rows), bool)
        if not len(self._key):
            return NO_ARRIVALS, is_late
        identity = _identity(rows, np.arange(len(rows)))
        at = np.minimum(np.searchsorted(self._key, identity), len(self._key) - 1)
        is_late = (self._key[at] == identity) & (rows.step >= 0) & (rows.seq >= 0)
        is_late &= has_arrival(rows) & (member >= 0)
        chosen = np.flatnonzero(is_late)
        last, start, enqueue, _ = self._known[:, at[chosen]]
        start_s, enqueue_s = _relative(rows, chosen)
        advance = np.maximum(start_s - last, 0.0)
        key = step_keys(member[chosen], rows.step[chosen])
        gone, queue_s = np.full(len(key), -1, np.int64), start_s - enqueue_s
        in_exchange = np.where(rows.after_ns[chosen] >= 0, advance, 0.0)
        hidden_s = np.where(_follows_exchange(rows, chosen, key), in_exchange, 0.0)
        late_s = enqueue_s - enqueue
        late = Arrivals(
            key, advance, advance, start_s - start, late_s, gone, queue_s,
            np.ones(len(key)), in_exchange, hidden_s, np.maximum(hidden_s - queue_s, 0.0),
            queue_s, late_s, queue_s, late_s,
        )  # fmt: skip
        return late, is_late


def has_arrival(rows: Collectives) -> Mask:
    """Tell which rows the GPU timed from or until a moment that all members share."""
    ends_together = rows.has_op(ENDING_TOGETHER - EXCHANGES)
    return np.asarray(rows.is_gpu_timed & (ends_together | (rows.after_ns >= 0)), bool)


def _relative(rows: Collectives, chosen: Groups) -> tuple[Floats, Floats]:
    """Return when GPU and host began, in seconds before or after a moment that all members share.

    That is the end of the collective, and of place 0 where the end is not known.
    """
    after_ns = rows.after_ns[chosen]
    start_ns = np.where(after_ns >= 0, after_ns, -rows.gpu_duration_ns[chosen])
    queue_ns = rows.entry_ns[chosen] - rows.start_ns[chosen]
    return start_ns / 1e9, (start_ns - queue_ns) / 1e9


def _follows_exchange(rows: Collectives, chosen: Groups, key: Ints) -> Mask:
    """Tell which of these rows are at places right after an exchange of the same member."""
    if not (rows.after_ns[chosen] >= 0).any():
        return np.zeros(len(chosen), bool)
    order = np.lexsort((rows.place[chosen], key))
    place, after, of = rows.place[chosen][order], rows.after_ns[chosen][order] >= 0, key[order]
    follows = np.zeros(len(chosen), bool)
    follows[order[1:]] = after[:-1] & (of[1:] == of[:-1]) & (place[1:] == place[:-1] + 1)
    return follows


def _identity(rows: Collectives, chosen: Groups) -> NDArray[np.uint64]:
    mixed = rows.seq[chosen].astype(np.uint64) * _MIX
    return np.asarray(rows.comm[chosen] ^ mixed, np.uint64)


def _medians(codes: Groups, values: Floats, size: int) -> Floats:
    order = np.lexsort((values, codes))
    counts = np.bincount(codes, minlength=size)
    first = np.cumsum(counts) - counts
    low, high = values[order[first + (counts - 1) // 2]], values[order[first + counts // 2]]
    return np.asarray((low + high) / 2, np.float64)


class StepLateness(NamedTuple):
    """What is known of steps: advance, start and enqueue lateness, and time in the queue.

    `hidden_s` is what the member added at exchanges without its own time showing it, and
    `hidden_idle_s` the part in which its GPU waited for its host. `near_s` and `far_s` are its
    enqueue lateness where its host is least and most ahead.
    """

    advance_s: Floats
    start_late_s: Floats
    enqueue_late_s: Floats
    queue_s: Floats
    hidden_s: Floats
    hidden_idle_s: Floats
    near_s: Floats
    far_s: Floats


class StepAdvances:
    """The advances of one cluster, by member and step, until the own times of the steps come.

    `dropped` counts advances beyond the limit.
    """

    def __init__(self) -> None:
        self.dropped = 0
        self._found = NO_ARRIVALS  # one row per member and step, in order of their keys
        self._found_s = np.empty(0)
        self._pending = np.empty(0, np.int64)  # keys of which collectives are still awaited

    def add(self, arrivals: Arrivals, pending: Ints, now_s: float) -> None:
        """Add arrivals; `pending` are keys of steps with collectives that are still awaited."""
        self._pending = np.unique(pending)
        recent = now_s - self._found_s <= KEPT_S
        joined = Arrivals(
            *(
                np.concatenate(
                    (getattr(self._found, each.name)[recent], getattr(arrivals, each.name))
                )
                for each in fields(Arrivals)
            )
        )
        found_s = np.concatenate((self._found_s[recent], np.full(len(arrivals), now_s)))
        self._found, self._found_s = _by_step(joined, found_s)
        surplus = len(self._found) - MAX_KEPT
        if surplus > 0:
            kept = np.sort(np.argsort(self._found_s, kind="stable")[surplus:])
            self._found, self._found_s = self._found.take(kept), self._found_s[kept]
            self.dropped += surplus

    def is_pending(self, member: Ints, step: Ints, count: Ints) -> Mask:
        """Return of which points, of `count` steps each, collectives are still awaited."""
        if not len(self._pending):
            return np.zeros(len(step), bool)
        first = step_keys(member, step)
        low, high = (np.searchsorted(self._pending, each) for each in (first, first + count))
        return np.asarray(high > low, bool) & (step >= 0)

    def means(self, member: Ints, step: Ints, count: Ints) -> StepLateness:
        """Return the means over the steps of points; NaN where nothing is known."""
        if not len(self._found.key):
            unknown = np.full(len(step), np.nan)
            return StepLateness(*[unknown] * len(StepLateness._fields))
        first = step_keys(member, step)
        low, high = (np.searchsorted(self._found.key, each) for each in (first, first + count))
        found = np.where(step >= 0, high - low, 0)

        def total(column: Floats) -> Floats:
            sums = np.concatenate(([0.0], np.cumsum(column)))
            return np.asarray(sums[high] - sums[low], np.float64)

        def mean(column: Floats, of: Floats) -> Floats:
            unknown = np.full(len(step), np.nan)
            return np.asarray(
                np.divide(total(column), of, out=unknown, where=found > 0), np.float64
            )

        steps, places = found.astype(np.float64), total(self._found.places)
        return StepLateness(
            mean(np.maximum(self._found.advance_s, self._found.exchange_s), steps),
            mean(self._found.start_late_s, steps),
            mean(self._found.enqueue_late_s, steps),
            mean(self._found.queue_s, places),
            mean(self._found.hidden_s, steps),
            mean(self._found.hidden_idle_s, steps),
            mean(self._found.near_s, steps),
            mean(self._found.far_s, steps),
        )


def join_arrivals(first: Arrivals, second: Arrivals) -> Arrivals:
    """Return the rows of both."""
    names = [each.name for each in fields(Arrivals)]
    return Arrivals(
        *(np.concatenate((getattr(first, name), getattr(second, name))) for name in names)
    )


def _by_step(arrivals: Arrivals, found_s: Floats) -> tuple[Arrivals, Floats]:
    """Join the rows of a member and step.

    The largest advance counts, and lateness at the place where anybody was waited for most.
    """
    if not len(arrivals):
        return arrivals, found_s
    order = np.lexsort((arrivals.gap_s, arrivals.key))
    ordered = arrivals.take(order)
    starts = np.flatnonzero(np.concatenate(([True], ordered.key[1:] != ordered.key[:-1])))
    last = np.append(starts[1:] - 1, len(order) - 1)
    most = ordered.take(last)
    advance = np.maximum.reduceat(ordered.advance_s, starts)
    sums = {
        name: np.add.reduceat(getattr(ordered, name), starts)
        for name in ("queue_s", "places", "exchange_s", "hidden_s", "hidden_idle_s")
    }
    is_late = _is_late(ordered.start_late_s, last, starts)
    near = _extremes(ordered.near_queue_s, ordered.near_s, starts, is_late)
    far = _extremes(-ordered.far_queue_s, ordered.far_s, starts, is_late)
    joined = replace(
        most,
        advance_s=advance,
        near_queue_s=near[0],
        near_s=near[1],
        far_queue_s=-far[0],
        far_s=far[1],
        **sums,
    )
    return joined, np.maximum.reduceat(found_s[order], starts)


def _is_late(start_late_s: Floats, last: Groups, starts: Groups) -> Mask:
    """Tell at which places of a step a member is late, where it is late at all.

    Before a delay arises, and after everybody waited for it, hosts are not late either: that says
    nothing about its cause. `last` are the places of the steps that anybody was waited for most.
    """
    most = np.repeat(start_late_s[last], np.diff(starts, append=len(start_late_s)))
    return np.asarray((most <= 0) | (start_late_s >= LATE * most), bool)


def _extremes(
    queue_s: Floats, late_s: Floats, starts: Groups, counts: Mask
) -> tuple[Floats, Floats]:
    """Return the least queue of each group of rows, and the mean lateness of the rows that have it.

    `starts` are the first rows of the groups, and `counts` tells which of their rows are asked.
    """
    asked_s = np.where(counts, queue_s, np.inf)
    least = np.minimum.reduceat(asked_s, starts)
    is_least = asked_s == np.repeat(least, np.diff(starts, append=len(queue_s)))
    total = np.add.reduceat(np.where(is_least, late_s, 0.0), starts)
    return least, np.asarray(total / np.add.reduceat(is_least.astype(np.float64), starts))
