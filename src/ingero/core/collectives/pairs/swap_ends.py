"""When the sends and receives of one kernel were over, in a recording of all ranks.

A rank that sends and receives in one kernel, as stages of a pipeline do with a neighbour and ranks
of a ring with two, is timed until the first warp of that kernel is done. That is mostly the send,
which fills a buffer, while another warp still waits for the data of a rank that is late. The wait
is then nowhere in the record, and the rank seems to work for longer. Its kernel cannot have ended
before the other end of each of its transfers had begun and the data had come.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ingero.contract.collective import POINT_TO_POINT_OPS
from ingero.core.clocks.offsets import ClockFit, align_clocks
from ingero.core.collectives.columns import Collectives, Ints, Mask
from ingero.core.collectives.lag import SYNCHRONISING_OPS
from ingero.core.collectives.matching import match_collectives

NEAR_NS = 20_000  # between the calls of one kernel, which NCCL enqueues one after the other
EXITS = 256  # collectives by which clocks are compared; more only take longer
MIN_MEETINGS = 2
NEVER = np.iinfo(np.int64).max

Rows = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class _Meetings:
    """Collectives of one rank: when it enqueued each, and when that ended by the common clock."""

    began_ns: Ints
    ended_ns: Ints

    def before(self, started_ns: Ints) -> Rows:
        """Return the meeting before each call of the rank, -1 before the first one."""
        return np.searchsorted(self.began_ns, started_ns) - 1


@dataclass(frozen=True, slots=True)
class _Kernels:
    """Sends and receives by rank, communicator and enqueue, with the kernel of each.

    Of each kernel: whether it sends and receives, when it began, and when the next one of its rank
    did.
    """

    calls: Rows
    kernel: Rows
    is_swap: Mask
    began_ns: Ints
    next_ns: Ints


def end_with_peers(collectives: Collectives) -> Collectives:
    """Return sends and receives of one kernel with one begin, and the end that partners allow.

    Once a rank has begun its next kernel, the one before was over, whatever the clocks of others
    say.
    """
    kernels = _find_kernels(collectives)
    if not kernels.is_swap.any():
        return collectives
    calls, kernel = kernels.calls, kernels.kernel
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
    np.minimum(over_ns, kernels.next_ns, out=over_ns)
    np.maximum.at(over_ns, kernel, collectives.end_ns[calls])
    swaps, kernel = calls[kernels.is_swap[kernel]], kernel[kernels.is_swap[kernel]]
    end_ns, duration_ns = collectives.end_ns.copy(), collectives.gpu_duration_ns.copy()
    end_ns[swaps] = over_ns[kernel]
    duration_ns[swaps] = (over_ns - kernels.began_ns)[kernel]
    return replace(collectives, end_ns=end_ns, gpu_duration_ns=duration_ns)


def swaps_of(collectives: Collectives) -> Mask:
    """Return which rows are sends and receives of one kernel."""
    kernels = _find_kernels(collectives)
    found = np.zeros(len(collectives), bool)
    found[kernels.calls] = kernels.is_swap[kernels.kernel]
    return found


def _find_kernels(collectives: Collectives) -> _Kernels:
    is_pairwise = collectives.has_op(POINT_TO_POINT_OPS) & (collectives.peer >= 0)
    calls = np.flatnonzero(is_pairwise & collectives.is_gpu_timed)
    who, comm = collectives.who[calls], collectives.comm[calls]
    calls = calls[np.lexsort((collectives.start_ns[calls], comm, who))]
    who, comm = collectives.who[calls], collectives.comm[calls]
    is_other = (who[1:] != who[:-1]) | (comm[1:] != comm[:-1])
    is_new = is_other | (np.diff(collectives.start_ns[calls]) > NEAR_NS)
    kernel = np.concatenate((np.zeros(min(len(calls), 1), np.intp), np.cumsum(is_new)))
    size = int(kernel.max(initial=-1)) + 1
    began_ns = np.full(size, NEVER)
    np.minimum.at(began_ns, kernel, collectives.entry_ns[calls])
    next_ns = np.full(size, NEVER)
    next_ns[:-1] = np.where(is_other[is_new], NEVER, began_ns[1:])
    sends = np.bincount(kernel, collectives.has_op({"Send"})[calls], size)
    is_swap = (sends > 0) & (sends < np.bincount(kernel, minlength=size))
    return _Kernels(calls, kernel, is_swap, began_ns, next_ns)


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
