"""When kernels that send and receive were over, in a recording of all ranks.

The end that NCCL notes is too early (`kernels`): the wait for a late partner is then nowhere in the
record, and the rank seems to work for longer. Its kernel cannot have ended before the other end of
each of its transfers had begun and the data had come.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ingero.contract.collective import POINT_TO_POINT_OPS
from ingero.core.clocks.offsets import ClockFit, align_clocks
from ingero.core.collectives.columns import Collectives, Ints, Mask
from ingero.core.collectives.lag import SYNCHRONISING_OPS
from ingero.core.collectives.matching import match_collectives
from ingero.core.collectives.pairs.kernels import Kernels, Rows, find_kernels

EXITS = 256  # collectives by which clocks are compared; more only take longer
MIN_MEETINGS = 2
NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class _Meetings:
    """Collectives of one rank: when it enqueued each, and when that ended by the common clock."""

    began_ns: Ints
    ended_ns: Ints

    def before(self, started_ns: Ints) -> Rows:
        """Return the meeting before each call of the rank, -1 before the first one."""
        return np.searchsorted(self.began_ns, started_ns) - 1


def end_with_peers(collectives: Collectives) -> Collectives:
    """Return sends and receives of one kernel with one begin, and the end that partners allow.

    Once a rank has begun its next kernel, the one before was over, whatever the clocks of others
    say.
    """
    timed = np.flatnonzero(collectives.is_gpu_timed & (collectives.peer >= 0))
    kernels = find_kernels(collectives, timed)
    if not kernels.is_swap.any():
        return collectives
    calls, kernel = kernels.calls, kernels.of_call
    began_ns, next_ns = _begins(collectives, kernels)
    clocks = _fit_clocks(collectives)
    entry_ns, length_ns = collectives.entry_ns[calls], collectives.gpu_duration_ns[calls]
    begin_ns = _common_times(clocks, collectives.who[calls], entry_ns)
    other = _other_ends(collectives, calls, _meetings(collectives, clocks))
    is_known = other >= 0
    late_ns = np.where(is_known, np.maximum(begin_ns[other] - begin_ns, 0), 0)
    spent_ns = np.where(is_known, np.minimum(length_ns, length_ns[other]), length_ns)
    needed_ns = entry_ns + np.maximum(late_ns + spent_ns, length_ns)
    over_ns = np.zeros(len(kernels.is_swap), np.int64)
    np.maximum.at(over_ns, kernel, needed_ns)
    np.minimum(over_ns, next_ns, out=over_ns)
    np.maximum.at(over_ns, kernel, collectives.end_ns[calls])
    swaps, kernel = calls[kernels.is_swap[kernel]], kernel[kernels.is_swap[kernel]]
    end_ns, duration_ns = collectives.end_ns.copy(), collectives.gpu_duration_ns.copy()
    end_ns[swaps] = over_ns[kernel]
    duration_ns[swaps] = (over_ns - began_ns)[kernel]
    return replace(collectives, end_ns=end_ns, gpu_duration_ns=duration_ns)


def _begins(collectives: Collectives, kernels: Kernels) -> tuple[Ints, Ints]:
    """Return when each kernel began, and when the next one of its rank and communicator did."""
    began_ns = np.full(len(kernels.is_swap), NEVER)
    np.minimum.at(began_ns, kernels.of_call, collectives.entry_ns[kernels.calls])
    first = kernels.calls[np.flatnonzero(np.diff(kernels.of_call, prepend=-1))]
    who, comm = collectives.who[first], collectives.comm[first]
    is_same = (who[1:] == who[:-1]) & (comm[1:] == comm[:-1])
    return began_ns, np.append(np.where(is_same, began_ns[1:], NEVER), NEVER)


def _fit_clocks(collectives: Collectives) -> dict[int, ClockFit]:
    rows = np.flatnonzero(_meets(collectives))
    groups = match_collectives(collectives)[rows]
    kept = groups % max(1, len(np.unique(groups)) // EXITS) == 0
    rows, groups = rows[kept], groups[kept]
    return align_clocks(collectives.who[rows], groups, collectives.end_ns[rows])


def _common_times(clocks: dict[int, ClockFit], who: NDArray[np.int32], times_ns: Ints) -> Ints:
    common_ns = times_ns.copy()
    for each, fit in clocks.items():
        common_ns[who == each] = fit.to_reference(times_ns[who == each])
    return common_ns


def _meets(collectives: Collectives) -> Mask:
    meets = collectives.has_op(SYNCHRONISING_OPS - POINT_TO_POINT_OPS)
    return np.asarray(meets & collectives.is_gpu_timed, bool)


def _meetings(collectives: Collectives, clocks: dict[int, ClockFit]) -> dict[int, _Meetings]:
    """Return the collectives that divide the calls of each rank: those of its busiest group."""
    found = {}
    meets = _meets(collectives)
    for who in clocks:
        rows = np.flatnonzero(meets & (collectives.who == who))
        of_comm = np.unique(collectives.comm[rows], return_inverse=True)[1].reshape(-1)
        rows = rows[of_comm == np.bincount(of_comm).argmax()]
        rows = rows[np.argsort(collectives.start_ns[rows], kind="stable")]
        if len(rows) >= MIN_MEETINGS:
            ended_ns = _common_times(clocks, collectives.who[rows], collectives.end_ns[rows])
            found[who] = _Meetings(collectives.start_ns[rows], ended_ns)
    return found


def _other_ends(collectives: Collectives, calls: Rows, meetings: dict[int, _Meetings]) -> Rows:
    """Return for each call the position of its other end among the calls, -1 where unclear.

    The n-th send after a meeting belongs to the n-th receive after it, where both ranks recorded
    as many of them until the next one.
    """
    is_send = collectives.has_op({"Send"})[calls]
    columns = (collectives.who, collectives.rank, collectives.peer)
    who, rank, peer = (column[calls] for column in columns)
    comm = np.unique(collectives.comm[calls], return_inverse=True)[1].reshape(-1)
    ends = np.stack([comm, np.where(is_send, rank, peer), np.where(is_send, peer, rank)], axis=1)
    pair = np.unique(ends, axis=0, return_inverse=True)[1].reshape(-1)
    other = np.full(len(calls), -1, np.intp)
    order = np.lexsort((collectives.start_ns[calls], is_send, pair))
    side = 2 * pair[order] + is_send[order]
    bounds = np.searchsorted(side, np.arange(2 * (int(pair.max(initial=-1)) + 1) + 1))
    for code in range(len(bounds) // 2):
        received, sent = (order[bounds[at] : bounds[at + 1]] for at in (2 * code, 2 * code + 1))
        if not len(received) or not len(sent):
            continue
        theirs, mine = (meetings.get(int(who[each[0]])) for each in (received, sent))
        if theirs is None or mine is None:
            continue
        same = _same_meeting(mine, theirs)[theirs.before(collectives.start_ns[calls[received]])]
        sends, receives = _pair_up(mine.before(collectives.start_ns[calls[sent]]), same)
        other[sent[sends]], other[received[receives]] = received[receives], sent[sends]
    return other


def _same_meeting(one: _Meetings, other: _Meetings) -> Rows:
    """Return for each meeting of the other rank the one of this rank at that time, -1 for none."""
    after = np.searchsorted(one.ended_ns, other.ended_ns).clip(1, len(one.ended_ns) - 1)
    before_ns, after_ns = one.ended_ns[after - 1], one.ended_ns[after]
    nearest = after - (other.ended_ns - before_ns < after_ns - other.ended_ns)
    apart_ns = np.abs(one.ended_ns[nearest] - other.ended_ns)
    is_near = apart_ns <= 0.5 * np.median(np.diff(one.ended_ns))
    # The last entry is for calls before the first meeting.
    return np.append(np.where(is_near, nearest, -1), -1)


def _pair_up(sent: Rows, received: Rows) -> tuple[Rows, Rows]:
    """Return which sends belong to which receives, given the meeting before each of them."""
    size = int(max(sent.max(initial=-1), received.max(initial=-1))) + 1
    counts = [np.bincount(each[each >= 0], minlength=size) for each in (sent, received)]
    is_clear = (counts[0] == counts[1]) & (counts[0] > 0)
    chosen = [np.flatnonzero((each >= 0) & is_clear[each]) for each in (sent, received)]
    return chosen[0], chosen[1]
