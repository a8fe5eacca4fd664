"""Roles of ranks, found from what they communicate: only ranks that do the same work are compared.

Ranks with the same set of operations have the same role, unless they send to each other: then they
are different pipeline stages. In that case, ranks have one role when communicators connect them in
which no member sends to another one.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ingero.contract.collective import POINT_TO_POINT_OPS
from ingero.core.collectives.columns import Collectives
from ingero.core.collectives.live_roles import is_exchange
from ingero.core.collectives.pairs.swaps import is_swap


def find_roles(collectives: Collectives, ranks: Sequence[int]) -> NDArray[np.intp]:
    """Return a role number for each recorder code in `ranks`."""
    signatures = [_signature(collectives, who) for who in ranks]
    stage = _stages(collectives, ranks)
    keys = {
        key: code for code, key in enumerate(dict.fromkeys(zip(signatures, stage, strict=True)))
    }
    return np.array([keys[key] for key in zip(signatures, stage, strict=True)], np.intp)


def _signature(collectives: Collectives, who: int) -> frozenset[tuple[int, int, int]]:
    """Return operations, widths and sizes that this rank uses regularly.

    Rare ones belong to start-up and checkpoints. Sizes of exchanges depend on the data.
    """
    rows = np.flatnonzero(collectives.who == who)
    size = np.where(collectives.has_op({"AllToAll"}), 0, collectives.size_bytes)[rows]
    keys = np.stack([collectives.op[rows], collectives.nranks[rows], size], axis=1)
    found, counts = np.unique(keys, axis=0, return_counts=True)
    if len(found) > 64:  # sizes that differ from call to call do not describe the role
        found, counts = np.unique(keys[:, :2], axis=0, return_counts=True)
        found = np.c_[found, np.zeros(len(found), np.int64)]
    regular = found[counts * 20 >= counts.max()] if len(counts) else found
    return frozenset((int(op), int(width), int(size)) for op, width, size in regular)


def _stages(collectives: Collectives, ranks: Sequence[int]) -> list[int]:
    """Return the component of each rank over communicators without sends between members."""
    is_edge = np.isin(
        collectives.op, [i for i, op in enumerate(collectives.ops) if op in POINT_TO_POINT_OPS]
    )
    if not is_edge.any():
        return [0] * len(ranks)
    members: dict[int, set[int]] = {}
    position: dict[tuple[int, int], int] = {}
    triples = np.unique(
        np.stack([collectives.comm.view(np.int64), collectives.who, collectives.rank], 1), axis=0
    )
    for comm, who, rank in triples.tolist():
        members.setdefault(comm, set()).add(who)
        position[comm, rank] = who
    edges = _edges(collectives, is_edge, position)
    if not edges:  # everybody sends to everybody: an exchange, not a pipeline
        return [0] * len(ranks)
    parent = {who: who for who in ranks}

    def root(who: int) -> int:
        while parent[who] != who:
            who = parent[who]
        return who

    for group in members.values():
        if not any((a, b) in edges for a in group for b in group):
            known = sorted(group & parent.keys())
            for other in known[1:]:
                parent[root(other)] = root(known[0])
    roots = {r: code for code, r in enumerate(dict.fromkeys(root(who) for who in ranks))}
    return [roots[root(who)] for who in ranks]


def _edges(
    collectives: Collectives, is_edge: NDArray[np.bool_], position: dict[tuple[int, int], int]
) -> set[tuple[int, int]]:
    """Return who sends to whom, by recorder; exchanges between all members do not count."""
    rows = np.flatnonzero(is_edge & (collectives.peer >= 0))
    is_send = collectives.has_op({"Send"})[rows]
    rank, peer = collectives.rank[rows], collectives.peer[rows]
    seen = np.unique(
        np.stack(
            [
                collectives.comm[rows].view(np.int64),
                np.where(is_send, rank, peer),
                np.where(is_send, peer, rank),
            ],
            1,
        ),
        axis=0,
    )
    sends: dict[int, set[tuple[int, int]]] = {}
    for comm, source, target in seen.tolist():
        sends.setdefault(comm, set()).add((source, target))
    comm_of = collectives.comm[rows].view(np.int64)
    return {
        each
        for comm, pairs in sends.items()
        if not is_exchange(pairs) and not is_swap(collectives, rows[comm_of == comm])
        for source, target in pairs
        if (comm, source) in position and (comm, target) in position
        for each in (
            (position[comm, source], position[comm, target]),
            (position[comm, target], position[comm, source]),
        )
    }
