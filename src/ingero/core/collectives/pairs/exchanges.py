"""Exchanges between all members of a communicator that were recorded as sends and receives.

NCCL runs an all-to-all as one group of sends and receives, and times each of them apart. Such a
time begins when its rank is ready, but it may end before the data of the last member came. The wait
is then nowhere in the record, and all members seem to work for longer. An exchange is therefore
read as one collective, which ends for all members together after the last one has begun it.

When members begin is compared without their clocks: it is measured from the end of the last
collective that all of them share, which is one moment.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ingero.contract.collective import POINT_TO_POINT_OPS
from ingero.core.collectives.columns import UNKNOWN, Collectives, Ints, Mask, concat
from ingero.core.collectives.live_roles import is_exchange
from ingero.core.collectives.pairs.live_exchanges import NEAR_NS
from ingero.core.collectives.pairs.swaps import is_swap

EXCHANGE = "AllToAll"
FEWEST = 3  # members: two that send to each other may be stages of a pipeline
# Times the silence between calls of one exchange: another one begins. The calls of an exchange are
# enqueued one after the other; between two exchanges a host launches at least the kernels of an
# expert, each of which takes it as long as a call.
LONGER = 3.0
PER_MEETING = 1 << 16  # exchanges between two shared collectives, at most
APART = 1 << 48  # above all numbers of exchanges that every member recorded

Rows = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class _Launches:
    """Exchanges, one row per member: its first send, when it began and ended, and its size.

    `met_ns` is when the shared collective before it ended, `meeting` its sequence number, and `nth`
    counts the exchanges since then.
    """

    first: Rows
    entry_ns: Ints
    end_ns: Ints
    size_bytes: Ints
    met_ns: Ints
    meeting: Ints
    nth: Ints


def join_exchanges(collectives: Collectives) -> Collectives:
    """Return the collectives with one row per exchange and member instead of sends and receives."""
    pairwise = np.flatnonzero(collectives.has_op(POINT_TO_POINT_OPS) & (collectives.peer >= 0))
    kept = np.ones(len(collectives), bool)
    joined: list[Collectives] = []
    for comm in np.unique(collectives.comm[pairwise]):
        rows = pairwise[collectives.comm[pairwise] == comm]
        meetings = _meetings(collectives, rows) if _is_between_all(collectives, rows) else None
        if meetings is not None:
            kept[rows] = False
            launches = _launches(collectives, rows, meetings)
            joined.append(_as_rows(collectives, launches, len(meetings)))
    return concat([collectives.take(kept), *joined]) if joined else collectives


def _is_between_all(collectives: Collectives, rows: Rows) -> bool:
    is_send = collectives.has_op({"Send"})[rows]
    rank, peer = collectives.rank[rows], collectives.peer[rows]
    ends = np.stack([np.where(is_send, rank, peer), np.where(is_send, peer, rank)], 1)
    pairs = {(int(a), int(b)) for a, b in np.unique(ends, axis=0) if a != b}
    is_mutual = all((b, a) in pairs for a, b in pairs)  # else each passes on what it gets
    if len({a for a, _ in pairs}) < FEWEST:
        return is_mutual and is_swap(collectives, rows)
    return is_mutual and is_exchange(pairs)


def _meetings(collectives: Collectives, rows: Rows) -> dict[int, Rows] | None:
    """Return per member the rows of the busiest communicator that all members share.

    They are in the order of their enqueue. None where members share nothing else, and where the
    GPU timed no exchange of some member.
    """
    timed = collectives.is_gpu_timed
    members = np.unique(collectives.who[rows])
    if len(np.unique(collectives.who[rows[timed[rows]]])) < len(members):
        return None
    numbered = np.isin(collectives.who, members) & (collectives.seq >= 0)
    numbered &= timed & ~collectives.has_op(POINT_TO_POINT_OPS)
    shared = np.flatnonzero(numbered)
    shared = shared[np.argsort(collectives.start_ns[shared], kind="stable")]
    best: dict[int, Rows] | None = None
    for comm in np.unique(collectives.comm[shared]):
        mine = shared[collectives.comm[shared] == comm]
        found = {int(who): mine[collectives.who[mine] == who] for who in members}
        fewest = min(len(each) for each in found.values())
        if fewest and (best is None or fewest > min(len(each) for each in best.values())):
            best = found
    return best


def _launches(collectives: Collectives, rows: Rows, meetings: dict[int, Rows]) -> _Launches:
    parts = [
        _launches_of_member(collectives, rows[collectives.who[rows] == who], met)
        for who, met in meetings.items()
    ]
    return _Launches(
        *(np.concatenate([getattr(p, name) for p in parts]) for name in _Launches.__slots__)
    )


def _launches_of_member(collectives: Collectives, rows: Rows, met: Rows) -> _Launches:
    """Group the sends and receives of one member: none comes twice in an exchange.

    Single sends may be without times, or have those of an exchange before, so the latest count.
    """
    rows = rows[np.argsort(collectives.start_ns[rows], kind="stable")]
    before = np.searchsorted(collectives.start_ns[met], collectives.start_ns[rows]) - 1
    rows, before = rows[before >= 0], before[before >= 0]
    at = _begins(collectives, rows)
    meeting = before[at]
    runs = np.flatnonzero(np.r_[True, meeting[1:] != meeting[:-1]]) if len(at) else at
    is_send, timed = collectives.has_op({"Send"})[rows], collectives.is_gpu_timed[rows]
    others = int(collectives.nranks[rows].max(initial=1)) - 1

    def latest(values: Ints, counted: Mask) -> Ints:
        chosen = np.where(counted, values, 0)
        return np.maximum.reduceat(chosen, at) if len(at) else chosen[:0]

    entry, end = (latest(each[rows], timed) for each in (collectives.entry_ns, collectives.end_ns))
    entry, end = _unshifted(
        entry, end, meeting, np.append(collectives.end_ns[met], np.iinfo(np.int64).max)
    )
    return _Launches(
        first=rows[at],
        entry_ns=entry,
        end_ns=end,
        size_bytes=latest(collectives.size_bytes[rows], is_send) * others,
        met_ns=collectives.end_ns[met][meeting],
        meeting=collectives.seq[met][meeting],
        nth=np.arange(len(at)) - np.repeat(runs, np.diff(np.r_[runs, len(at)])),
    )


def _unshifted(entry: Ints, end: Ints, meeting: Ints, met_ns: Ints) -> tuple[Ints, Ints]:
    """Return when exchanges began and ended, where NCCL reports the times of the following one.

    The last exchange before a meeting then seems to begin after it, which it cannot.
    """
    is_late = np.bincount(meeting, entry > met_ns[meeting + 1], len(met_ns)) > 0
    from_before = is_late[meeting] & (np.arange(len(entry)) > 0)
    before = np.arange(len(entry)) - from_before
    return entry[before], end[before]


def _begins(collectives: Collectives, rows: Rows) -> Rows:
    """Return which calls of one member, in the order of their enqueue, begin an exchange.

    No call comes twice in an exchange, unless at once, for another tensor. Where one was not
    recorded, the exchanges after it begin with the call that follows the silence between two.
    """
    kinds = np.stack([collectives.peer[rows], collectives.op[rows]], 1)
    call = np.unique(kinds, axis=0, return_inverse=True)[1].reshape(-1)
    silence = np.diff(collectives.start_ns[rows], prepend=0)
    usual = [float(np.median(silence[call == each])) for each in range(call.max(initial=-1) + 1)]
    first = int(np.argmax(usual)) if len(usual) > 1 else UNKNOWN
    if first >= 0 and usual[first] < LONGER * max(np.delete(usual, first).max(), 1.0):
        first = UNKNOWN
    begins, seen = [], set[int]()
    is_more = np.r_[False, call[1:] == call[:-1]] & (silence <= NEAR_NS)
    for index, each in enumerate(call.tolist()):
        if not seen or ((each in seen or each == first) and not is_more[index]):
            begins.append(index)
            seen.clear()
        seen.add(each)
    return np.array(begins, np.intp)


def _as_rows(collectives: Collectives, each: _Launches, members: int) -> Collectives:
    """Return launches as rows that end together, where every member recorded as many of them."""
    number = each.meeting * PER_MEETING + each.nth
    _, of_number, counts = np.unique(number, return_inverse=True, return_counts=True)
    _, of_meeting = np.unique(each.meeting, return_inverse=True)
    unclear = (counts[of_number] != members) | (each.end_ns == 0)
    broken = np.bincount(of_meeting, unclear) > 0
    whole = ~broken[of_meeting]
    ready, spent = np.full(len(counts), -APART), np.full(len(counts), APART)
    np.maximum.at(ready, of_number, each.entry_ns - each.met_ns)
    np.minimum.at(spent, of_number, each.end_ns - each.entry_ns)
    together = np.maximum(each.end_ns, each.met_ns + (ready + spent)[of_number])
    part = collectives.take(each.first)
    known_ns = np.where(each.end_ns > 0, each.end_ns, part.end_ns)
    end = np.where(whole, together, known_ns)
    return replace(
        part,
        op=np.zeros_like(part.op),
        ops=(EXCHANGE,),
        peer=np.full_like(part.peer, UNKNOWN),
        seq=np.where(whole, number, APART * (1 + part.rank.astype(np.int64)) + number),
        size_bytes=each.size_bytes,
        end_ns=end,
        gpu_duration_ns=np.where(each.end_ns > 0, end - each.entry_ns, UNKNOWN),
    )
