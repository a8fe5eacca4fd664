"""What-if: the recorded collectives replayed with other own times.

Each rank spends its own time and then enters the next collective. A collective ends for all members
when the last one has arrived, plus the transfer. Waits follow from that and are never added up, so
nothing is counted twice.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ingero.core.collectives.columns import Collectives, Floats
from ingero.core.collectives.matching import match_collectives

MAX_ROWS = 200_000  # the last ones of a longer recording are replayed


@dataclass(frozen=True, slots=True)
class Chain:
    """Records in the order of replay; `before` is the previous row of the same rank, or -1."""

    rows: NDArray[np.intp]
    gap_s: Floats
    transfer_s: Floats
    before: NDArray[np.intp]
    group: NDArray[np.intp]
    sequence: tuple[tuple[int, ...], ...]


def build_chain(collectives: Collectives) -> Chain | None:
    """Return order, gaps and transfers; None when ranks disagree about the order of collectives."""
    order = np.lexsort((collectives.entry_ns, collectives.who))
    if len(order) > MAX_ROWS:
        recent = np.sort(collectives.end_ns)[-MAX_ROWS]
        order = order[collectives.end_ns[order] >= recent]
    part = collectives.take(order)
    group = match_collectives(part)
    first = np.r_[True, part.who[1:] != part.who[:-1]]
    before = np.where(first, -1, np.arange(len(part)) - 1)
    entry, end = part.entry_ns, part.end_ns
    gap = np.where(first, 0.0, (entry - end[np.maximum(before, 0)]) / 1e9)
    shortest = np.full(int(group.max(initial=-1)) + 1, np.inf)
    np.minimum.at(shortest, group, part.duration_ns / 1e9)
    sequence = _sequence(group, part.who)
    if sequence is None:
        return None
    return Chain(order, gap, shortest[group], before, group, sequence)


def replay_chain(chain: Chain, gap_s: Floats) -> Floats:
    """Return the end of each row, in seconds from the start, with gaps of `gap_s`."""
    end = np.zeros(len(chain.rows))
    begin = gap_s
    before = chain.before
    for members in chain.sequence:
        arrival = max((end[before[m]] if before[m] >= 0 else 0.0) + begin[m] for m in members)
        done = arrival + chain.transfer_s[members[0]]
        for m in members:
            end[m] = done
    return end


def _sequence(
    group: NDArray[np.intp], who: NDArray[np.int32]
) -> tuple[tuple[int, ...], ...] | None:
    """Return the groups in an order that keeps the order of each rank's collectives."""
    members: dict[int, list[int]] = {}
    for row, code in enumerate(group.tolist()):
        members.setdefault(code, []).append(row)
    waiting = {code: len(rows) for code, rows in members.items()}
    last = np.r_[who[1:] != who[:-1], True] if len(who) else np.empty(0, bool)
    heads = (
        deque(np.flatnonzero(np.r_[True, who[1:] != who[:-1]]).tolist()) if len(who) else deque()
    )
    sequence: list[tuple[int, ...]] = []
    codes = group.tolist()
    while heads:
        code = codes[heads.popleft()]
        waiting[code] -= 1
        if waiting[code] == 0:
            sequence.append(tuple(members[code]))
            heads.extend(row + 1 for row in members[code] if not last[row])
    return tuple(sequence) if sum(map(len, sequence)) == len(codes) else None
