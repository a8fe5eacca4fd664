"""Peer lag: which ranks took part in the same collective, and who came late.

Two numbers, never mixed up. *Peer lag* keeps the published definition: own duration minus the peers' median, so the
late rank shows the lowest. *Lateness* is ours: positive means this rank came late. Where the GPU timed the operation it
is the longest duration minus the own one, each on its own clock; else own entry minus the earliest, after clocks were
aligned, and then it is worth no more than the error bar beside it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ingero.contract.collective import POINT_TO_POINT_OPS
from ingero.core.clocks.offsets import ClockFit
from ingero.core.collectives.columns import Collectives, Floats, Ints, Mask
from ingero.core.robust import group_medians

Groups = NDArray[np.intp]

SYNCHRONISING_OPS = (
    frozenset({"AllReduce", "AllGather", "ReduceScatter", "AllToAll"}) | POINT_TO_POINT_OPS
)
_MIX = np.uint64(0x9E3779B97F4A7C15)  # spreads communicator hashes and ranks evenly
GPU_TIMER_MS = 0.001  # the GPU's global timer ticks at up to one microsecond


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchPolicy:
    """How records without a sequence number are matched by time, and how much is held per cluster."""

    bucket_s: float = 1.0
    tolerance_s: float = 0.25
    max_age_s: float = 2.0
    max_groups: int = 10_000
    max_comms: int = 1_024


@dataclass(frozen=True, slots=True)
class PeerLag:
    """One row per record. Lateness is NaN where nothing can be said; below `error_ms` it must not be shown."""

    peer_lag_ms: Floats
    lateness_ms: Floats
    error_ms: Floats
    transfer_ms: Floats
    present: NDArray[np.int32]
    is_quorate: Mask

    @property
    def shown_lateness_ms(self) -> Floats:
        """Lateness that stands above its error bar, zero where the rank was on time, NaN where unknown."""
        shown = np.where(self.lateness_ms > self.error_ms, self.lateness_ms, self.lateness_ms * 0.0)
        return np.where(np.isinf(self.error_ms), np.nan, shown)


def match_collectives(collectives: Collectives, policy: MatchPolicy | None = None) -> Groups:
    """Dense group code of every row: the same operation of the same communicator as seen by its ranks."""
    comm = _comm_codes(collectives.comm)
    op, edge = _edges(collectives)
    sequence = collectives.seq
    if len(sequence) and sequence.min() >= 0:
        return _pack(comm, op, edge, sequence)
    timed = sequence < 0
    groups = np.zeros(len(comm), np.intp)
    groups[~timed] = _pack(comm[~timed], op[~timed], edge[~timed], sequence[~timed])
    rows = np.flatnonzero(timed)
    base = _pack(comm[rows], op[rows], edge[rows], np.zeros(len(rows), np.int64))
    bucket = _buckets(
        base, collectives.rank[rows], collectives.entry_ns[rows], policy or MatchPolicy()
    )
    groups[rows] = _pack(base, bucket) + groups[~timed].max(initial=-1) + 1
    return groups


def measure_lag(
    collectives: Collectives, groups: Groups, clocks: Mapping[int, ClockFit] | None = None
) -> PeerLag:
    """Published lag and lateness of every row against its group. `clocks` maps recorders to their fitted clocks."""
    duration = np.maximum(collectives.duration_ns, 0)  # a clock that stepped back measured nothing
    size = int(groups.max(initial=-1)) + 1
    rows, whole = _whole(collectives, groups, size)
    present = rows if whole.all() else count_ranks(collectives, groups, size)
    median, longest, shortest = _duration_stats(collectives, groups, duration, rows, whole)
    needed = _quorum(collectives.nranks)
    quorate = present[groups] >= needed
    lag = np.where(quorate, (duration - median[groups]) / 1e6, np.nan)
    synchronising = _is_op(collectives, SYNCHRONISING_OPS)
    all_gpu = (np.bincount(groups, collectives.is_gpu_timed, size) == rows)[groups]
    clock_free = quorate & synchronising & all_gpu
    lateness = np.where(clock_free, (longest[groups] - duration) / 1e6, np.nan)
    error = np.where(clock_free, GPU_TIMER_MS, np.nan)
    by_entry = quorate & ~clock_free
    if by_entry.any():
        entry, entry_error = _aligned_entries(collectives, clocks)
        first, _ = _extremes(groups, -entry, size)
        worst, _ = _extremes(groups, entry_error, size)
        lateness = np.where(by_entry, (entry + first[groups]) / 1e6, lateness)
        error = np.where(by_entry, worst[groups] / 1e6, error)
    transfer = np.where(quorate & synchronising, shortest[groups] / 1e6, np.nan)
    return PeerLag(lag, lateness, error, transfer, present[groups].astype(np.int32), quorate)


def count_ranks(collectives: Collectives, groups: Groups, size: int) -> NDArray[np.intp]:
    """Distinct ranks in every group: a record delivered twice counts once."""
    counts, whole = _whole(collectives, groups, size)
    rest = np.flatnonzero(~whole[groups])
    if not len(rest):
        return counts
    pair = np.sort(groups[rest].astype(np.int64) << 32 | collectives.rank[rest])
    fresh = np.ones(len(pair), bool)
    fresh[1:] = pair[1:] != pair[:-1]
    return np.where(whole, counts, np.bincount(pair[fresh] >> 32, minlength=size))


def _whole(collectives: Collectives, groups: Groups, size: int) -> tuple[NDArray[np.intp], Mask]:
    """Rows per group, and whether they are every rank once, told by the sum of the ranks' fingerprints."""
    counts = np.bincount(groups, minlength=size)
    if not size:
        return counts, np.zeros(0, bool)
    prints = _fingerprints(int(max(collectives.rank.max(), collectives.nranks.max())) + 1)
    wanted = np.zeros(size, np.intp)
    wanted[groups] = collectives.nranks
    expected = np.concatenate(([0.0], np.cumsum(prints)))[np.maximum(wanted, 0)]
    return counts, (counts == wanted) & (
        np.bincount(groups, prints[collectives.rank], size) == expected
    )


def _duration_stats(
    collectives: Collectives, groups: Groups, duration: Ints, counts: NDArray[np.intp], whole: Mask
) -> tuple[Floats, Floats, Floats]:
    """Median, longest and shortest of every group. Whole groups become rows of a matrix, which needs no global sort."""
    median, longest, shortest = (np.zeros(len(counts)) for _ in range(3))
    for width in np.unique(counts[whole]).tolist():
        chosen = whole & (counts == width)
        line = np.cumsum(chosen) - 1
        rows = slice(None) if chosen.all() else np.flatnonzero(chosen[groups])
        cells = np.empty((int(line[-1]) + 1) * width, np.int64)
        cells[line[groups[rows]] * width + collectives.rank[rows]] = duration[rows]
        ordered = np.sort(cells.reshape(-1, width), axis=1)
        shortest[chosen], longest[chosen] = ordered[:, 0], ordered[:, -1]
        median[chosen] = (ordered[:, (width - 1) // 2] + ordered[:, width // 2]) / 2
    rest = np.flatnonzero(~whole[groups])
    if len(rest):
        code = np.cumsum(~whole) - 1
        few = int(code[-1]) + 1
        median[~whole] = group_medians(code[groups[rest]], duration[rest], few)
        longest[~whole], shortest[~whole] = _extremes(
            code[groups[rest]], duration[rest].astype(np.float64), few
        )
    return median, longest, shortest


def _fingerprints(count: int) -> Floats:
    """A fixed pseudo-random number of 30 bits for every rank; sums of a million of them are exact in a double."""
    mixed = np.arange(1, count + 1, dtype=np.uint64) * _MIX
    return ((mixed ^ (mixed >> np.uint64(29))) >> np.uint64(34)).astype(np.float64)


def _quorum(nranks: NDArray[np.int32]) -> NDArray[np.int32]:
    """At least three and at least half of the ranks, but never more than there are."""
    return np.minimum(nranks, np.maximum(3, (nranks + 1) // 2))


def _aligned_entries(
    collectives: Collectives, clocks: Mapping[int, ClockFit] | None
) -> tuple[Floats, Floats]:
    """Entries on the reference clock and their error, infinite for a clock without a fit.

    No fits at all is the caller's word that one clock wrote everything: the error is zero.
    """
    entry = collectives.entry_ns - collectives.entry_ns.min()
    if clocks is None:
        return entry.astype(np.float64), np.zeros(len(entry))
    aligned, error = entry.astype(np.float64), np.full(len(entry), np.inf)
    for who, fit in clocks.items():
        rows = collectives.who == who
        aligned[rows] = fit.to_reference(collectives.entry_ns[rows]) - collectives.entry_ns.min()
        error[rows] = fit.error_ns
    return aligned, error


def _extremes(groups: Groups, values: Floats, size: int) -> tuple[Floats, Floats]:
    highest, lowest = np.full(size, -np.inf), np.full(size, np.inf)
    np.maximum.at(highest, groups, values)
    np.minimum.at(lowest, groups, values)
    return highest, lowest


def _is_op(collectives: Collectives, names: frozenset[str]) -> Mask:
    known: Mask = np.array([op in names for op in collectives.ops] or [False], bool)
    return known[collectives.op]


def _edges(collectives: Collectives) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Operation codes with Send and Recv as one, and the unordered pair of ranks for these two, else zero."""
    op = collectives.op.astype(np.intp)
    pairwise = _is_op(collectives, POINT_TO_POINT_OPS) & (collectives.peer >= 0)
    if not pairwise.any():
        return op, np.zeros(len(op), np.intp)
    low = np.minimum(collectives.rank, collectives.peer).astype(np.intp)
    high = np.maximum(collectives.rank, collectives.peer).astype(np.intp)
    edge = np.where(pairwise, 1 + low * (int(high.max()) + 1) + high, 0)
    return np.where(pairwise, len(collectives.ops), op), _dense(edge)


def _dense(values: NDArray[np.generic]) -> NDArray[np.intp]:
    codes: Groups = np.unique(values, return_inverse=True)[1].astype(np.intp)
    return codes


def _comm_codes(comm: NDArray[np.uint64]) -> NDArray[np.intp]:
    """Dense codes of communicators. There are few: those of a sample are looked up, all are sorted if more turn up."""
    known = np.unique(comm[:: max(1, len(comm) // 4096)])
    slot = (known * _MIX) >> np.uint64(52)
    if len(np.unique(slot)) < len(known):
        return _dense(comm)
    table = np.zeros(4096, np.intp)
    table[slot] = np.arange(len(known))
    code: NDArray[np.intp] = table[((comm * _MIX) >> np.uint64(52)).astype(np.intp)]
    return code if len(comm) and (known[code] == comm).all() else _dense(comm)


def _pack(*columns: NDArray[np.integer]) -> Groups:
    """Dense codes of the rows of several non-negative columns."""
    key = np.zeros(len(columns[0]), np.int64)
    room = 63
    for column in columns:
        span = int(column.max(initial=0)) + 1
        room -= span.bit_length()
        if room < 0:
            return _dense(np.rec.fromarrays([_dense(each) for each in columns]))
        if span > 1:
            key = key * span + column
    return _dense_codes(key)


def _dense_codes(key: Ints) -> Groups:
    highest = int(key.max(initial=0))
    if (
        highest < 8 * len(key) + 1024
    ):  # close together: a table of those that occur is smaller than a sort
        seen = np.zeros(highest + 1, np.intp)
        seen[key] = 1
        return np.asarray((np.cumsum(seen) - 1)[key], np.intp)
    bits = len(key).bit_length()
    if highest.bit_length() + bits <= 63:  # sorting plain integers beats sorting an index
        ordered = np.sort(key << bits | np.arange(len(key)))
        order = ordered & ((1 << bits) - 1)
        ordered >>= bits
    else:
        order = np.argsort(key)
        ordered = key[order]
    fresh = np.zeros(len(key), np.intp)
    fresh[1:] = ordered[1:] != ordered[:-1]
    codes = np.empty(len(key), np.intp)
    codes[order] = np.cumsum(fresh)
    return codes


def _buckets(base: Groups, rank: NDArray[np.int32], entry_ns: Ints, policy: MatchPolicy) -> Ints:
    """Time bucket of every row; a row near an edge joins the neighbour that holds more of its peers but not itself."""
    width, tolerance = int(policy.bucket_s * 1e9), int(policy.tolerance_s * 1e9)
    bucket = entry_ns // width
    if not len(bucket):
        return bucket
    offset = entry_ns - bucket * width
    bucket -= bucket.min() - 1
    for step, near in ((-1, offset < tolerance), (1, offset >= width - tolerance)):
        own, other = _ranks_in(base, bucket, rank, 0), _ranks_in(base, bucket, rank, step)
        more = (
            other[0] >= own[0] if step < 0 else other[0] > own[0]
        )  # between equal halves the earlier one wins
        bucket = np.where(near & more & ~other[1], bucket + step, bucket)
    return bucket


def _ranks_in(base: Groups, bucket: Ints, rank: NDArray[np.int32], step: int) -> tuple[Ints, Mask]:
    """For every row: how many ranks the bucket `step` away holds, and whether the row's own rank is among them."""
    span, ranks = int(bucket.max()) + 2, int(rank.max()) + 1
    held = np.unique((base * span + bucket) * ranks + rank)
    places, counts = np.unique(held // ranks, return_counts=True)
    wanted = base * span + bucket + step
    at = np.minimum(np.searchsorted(places, wanted), len(places) - 1)
    count = np.where(places[at] == wanted, counts[at], 0)
    mine = wanted * ranks + rank
    found = np.minimum(np.searchsorted(held, mine), len(held) - 1)
    return count, held[found] == mine
