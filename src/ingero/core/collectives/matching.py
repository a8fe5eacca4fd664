"""Matching: which rows are the same collective, as seen by each rank that took part in it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ingero.contract.collective import POINT_TO_POINT_OPS
from ingero.core.collectives.columns import Collectives, Floats, Ints, Mask

Groups = NDArray[np.intp]

_MIX = np.uint64(0x9E3779B97F4A7C15)  # spreads communicator hashes and ranks evenly


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchPolicy:
    """How records without a sequence number are matched, and how many are held per cluster."""

    bucket_s: float = 1.0
    tolerance_s: float = 0.25
    max_age_s: float = 2.0
    max_groups: int = 10_000
    max_comms: int = 1_024


def match_collectives(collectives: Collectives, policy: MatchPolicy | None = None) -> Groups:
    """Return a dense group code per row: rows of one group are the same collective on its ranks."""
    comm = comm_codes(collectives.comm)
    op, edge = _pair_codes(collectives)
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


def count_ranks(collectives: Collectives, groups: Groups, size: int) -> NDArray[np.intp]:
    """Count the distinct ranks of each group; a record that was delivered twice counts once."""
    counts, whole = find_whole_groups(collectives, groups, size)
    rest = np.flatnonzero(~whole[groups])
    if not len(rest):
        return counts
    pair = np.sort(groups[rest].astype(np.int64) << 32 | collectives.rank[rest])
    fresh = np.ones(len(pair), bool)
    fresh[1:] = pair[1:] != pair[:-1]
    return np.where(whole, counts, np.bincount(pair[fresh] >> 32, minlength=size))


def find_whole_groups(
    collectives: Collectives, groups: Groups, size: int
) -> tuple[NDArray[np.intp], Mask]:
    """Return the rows per group, and whether they hold every rank exactly once.

    The sum of fingerprints of the ranks tells whether a group is whole, without a sort.
    """
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


def _fingerprints(count: int) -> Floats:
    """Return a fixed pseudo-random number of 30 bits per rank.

    Sums of a million of them are exact in a double.
    """
    mixed = np.arange(1, count + 1, dtype=np.uint64) * _MIX
    return ((mixed ^ (mixed >> np.uint64(29))) >> np.uint64(34)).astype(np.float64)


def _pair_codes(collectives: Collectives) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return operation codes and pair codes.

    Send and Recv share one operation code; their pair code stands for sender and receiver, so that
    the two directions between two ranks are apart. All other operations have pair code zero.
    """
    op = collectives.op.astype(np.intp)
    pairwise = collectives.has_op(POINT_TO_POINT_OPS) & (collectives.peer >= 0)
    if not pairwise.any():
        return op, np.zeros(len(op), np.intp)
    rank, peer = collectives.rank.astype(np.intp), collectives.peer.astype(np.intp)
    is_send = collectives.has_op({"Send"})
    source, target = np.where(is_send, rank, peer), np.where(is_send, peer, rank)
    edge = np.where(pairwise, 1 + source * (int(max(rank.max(), peer.max())) + 1) + target, 0)
    return np.where(pairwise, len(collectives.ops), op), _dense(edge)


def comm_codes(comm: NDArray[np.uint64]) -> NDArray[np.intp]:
    """Return dense codes of communicators.

    There are few of them: those found in a sample are looked up in a table. Only when another one
    turns up are all rows sorted.
    """
    known = np.unique(comm[:: max(1, len(comm) // 4096)])
    slot = (known * _MIX) >> np.uint64(52)
    if len(np.unique(slot)) < len(known):
        return _dense(comm)
    table = np.zeros(4096, np.intp)
    table[slot] = np.arange(len(known))
    code: NDArray[np.intp] = table[((comm * _MIX) >> np.uint64(52)).astype(np.intp)]
    return code if len(comm) and (known[code] == comm).all() else _dense(comm)


def _pack(*columns: NDArray[np.integer]) -> Groups:
    """Return a dense code per distinct row of several non-negative columns."""
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


def _dense(values: NDArray[np.generic]) -> NDArray[np.intp]:
    codes: Groups = np.unique(values, return_inverse=True)[1].astype(np.intp)
    return codes


def _dense_codes(key: Ints) -> Groups:
    highest = int(key.max(initial=0))
    if highest < 8 * len(key) + 1024:  # dense keys: a table is faster than a sort
        seen = np.zeros(highest + 1, np.intp)
        seen[key] = 1
        return np.asarray((np.cumsum(seen) - 1)[key], np.intp)
    bits = len(key).bit_length()
    if highest.bit_length() + bits <= 63:  # sorting plain integers is faster than sorting an index
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
    """Return the time bucket of each row.

    A row near an edge of its bucket moves to the neighbouring bucket if that holds more of its
    peers and not yet its own rank.
    """
    width, tolerance = int(policy.bucket_s * 1e9), int(policy.tolerance_s * 1e9)
    bucket = entry_ns // width
    if not len(bucket):
        return bucket
    offset = entry_ns - bucket * width
    bucket -= bucket.min() - 1
    for step, near in ((-1, offset < tolerance), (1, offset >= width - tolerance)):
        own, other = _ranks_in(base, bucket, rank, 0), _ranks_in(base, bucket, rank, step)
        # Of two buckets with equally many ranks the earlier one wins.
        more = other[0] >= own[0] if step < 0 else other[0] > own[0]
        bucket = np.where(near & more & ~other[1], bucket + step, bucket)
    return bucket


def _ranks_in(base: Groups, bucket: Ints, rank: NDArray[np.int32], step: int) -> tuple[Ints, Mask]:
    """Return how many ranks the bucket `step` away holds, and whether it holds the row's own."""
    span, ranks = int(bucket.max()) + 2, int(rank.max()) + 1
    held = np.unique((base * span + bucket) * ranks + rank)
    places, counts = np.unique(held // ranks, return_counts=True)
    wanted = base * span + bucket + step
    at = np.minimum(np.searchsorted(places, wanted), len(places) - 1)
    count = np.where(places[at] == wanted, counts[at], 0)
    mine = wanted * ranks + rank
    found = np.minimum(np.searchsorted(held, mine), len(held) - 1)
    return count, held[found] == mine
