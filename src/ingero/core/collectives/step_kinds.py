"""Kinds of collectives of one rank, as integer codes: what repeats from step to step.

A kind is an operation with its size and the width of its communicator, and for sends and receives
the direction of the peer. Where sizes change from call to call, as in an exchange of tokens between
experts, the kind leaves the size out.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ingero.contract.collective import POINT_TO_POINT_OPS
from ingero.core.collectives.columns import UNKNOWN, Collectives, Floats, Ints, Mask

# A call is light below both: so many bytes, and this share of all bytes. Flags, losses and norms
# have a few bytes; gradients, parameters and activations have many.
LIGHT_BYTES, LIGHT_SHARE = 1 << 16, 1e-3
OFTEN = 1.5  # times as often as any larger call: flags, losses and norms come once per step
EXCHANGES = POINT_TO_POINT_OPS | {"AllToAll", "SendRecv"}  # their sizes may depend on the data
_MIX = np.uint64(0x9E3779B97F4A7C15)


class Detail(IntEnum):
    """How closely kinds are told apart, the closest first."""

    SIZES = 0  # every size is a kind
    EXCHANGES = 1  # exchanges of all sizes are one kind per operation, width and direction
    OPERATIONS = 2  # all sizes are one kind
    COLLECTIVES = 3  # as SIZES; exchanges are left out, since even their number changes


class Kind(NamedTuple):
    """`size_bytes` is -1 for all sizes; `direction` is the sign of peer - rank, 0 if no peer."""

    op: str
    size_bytes: int
    width: int
    direction: int


@dataclass(frozen=True, slots=True)
class KindCodes:
    """A code per row into `kinds`, or -1 for rows that the detail leaves out."""

    code: Ints
    kinds: tuple[Kind, ...]


def code_kinds(columns: Collectives, detail: Detail) -> KindCodes:
    """Return the kind of each row; kinds are numbered in their own order, equal on every rank."""
    size, direction, exchange = _features(columns, detail)
    mixed = (
        (size.astype(np.uint64) * _MIX)
        ^ (columns.op.astype(np.uint64) << np.uint64(56))
        ^ (columns.nranks.astype(np.uint64) << np.uint64(24))
        ^ (direction + 1).astype(np.uint64)
    )
    _, first, inverse = np.unique(mixed, return_index=True, return_inverse=True)
    found = [
        Kind(columns.ops[columns.op[row]], int(size[row]), int(columns.nranks[row]), int(turn))
        for row, turn in zip(first.tolist(), direction[first].tolist(), strict=True)
    ]
    kinds = tuple(sorted(found))
    code_of = {kind: code for code, kind in enumerate(kinds)}
    code = np.array([code_of[kind] for kind in found] or [0], np.int64)[inverse]
    if detail is Detail.COLLECTIVES:
        code = np.where(exchange, UNKNOWN, code)
    return KindCodes(code, kinds)


def code_followers(code: Ints, depth: int) -> tuple[Ints, Ints]:
    """Return a code per row for its kind and the kinds of the next `depth` rows, and these.

    The second result has a line of kinds per code. Rows with fewer rows after them have code -1.
    """
    result = np.full(len(code), UNKNOWN, np.int64)
    if len(code) <= depth:
        return result, np.empty((0, depth + 1), np.int64)
    windows = np.lib.stride_tricks.sliding_window_view(code, depth + 1)
    distinct, inverse = np.unique(windows, axis=0, return_inverse=True)
    result[: len(windows)] = inverse.reshape(-1)
    return result, distinct


def find_small(coded: KindCodes, weight: Floats, *, is_known: bool) -> tuple[Mask, Mask]:
    """Return which kinds are light, and which others are small but come several times per step.

    Light ones are flags, losses and norms. Statistics of batches are not: they are shared in every
    layer. Where all calls are small, nobody knows. `weight` is the share of bytes of each kind,
    if bytes are known.
    """
    if not is_known:
        return np.zeros(len(weight), bool), np.zeros(len(weight), bool)
    sizes = np.array([kind.size_bytes for kind in coded.kinds])
    counts = np.bincount(coded.code, minlength=len(coded.kinds))
    large = (sizes > LIGHT_BYTES) | (sizes == UNKNOWN)
    often = ~large & large.any() & (counts > OFTEN * counts[large].max(initial=0))
    return (sizes <= LIGHT_BYTES) & (weight < LIGHT_SHARE) & ~often, often


def row_weights(columns: Collectives) -> Floats:
    """Return the bytes of each row; where no size is known, every row weighs the same."""
    known = columns.size_bytes > 0
    return np.where(known, columns.size_bytes, 0.0) if known.any() else np.ones(len(columns))


def joined_comms(columns: Collectives, calls: int) -> set[int]:
    """Return the communicators that carry more than flags: each of them is used in every step.

    Those with at most so many `calls` are left out.
    """
    comms, which, counts = np.unique(columns.comm, return_inverse=True, return_counts=True)
    volume = row_weights(columns)
    share = np.bincount(which, volume) / max(float(volume.sum()), 1.0)
    return set(comms[(share >= LIGHT_SHARE) & (counts > calls)].tolist())


def _features(columns: Collectives, detail: Detail) -> tuple[Ints, Ints, NDArray[np.bool_]]:
    exchange = columns.has_op(EXCHANGES)
    pairwise = columns.has_op(POINT_TO_POINT_OPS) & (columns.peer >= 0)
    direction = np.where(pairwise, np.sign(columns.peer - columns.rank), 0).astype(np.int64)
    if detail is Detail.OPERATIONS:
        return np.full(len(columns), UNKNOWN, np.int64), direction, exchange
    without = exchange & (detail is Detail.EXCHANGES)
    return np.where(without, UNKNOWN, columns.size_bytes), direction, exchange
