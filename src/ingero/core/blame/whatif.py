"""What-if: the recorded collectives replayed with other own times.

Each rank spends its own time and then enters the next collective. A collective ends for all members
when the last one has arrived, plus the transfer. Waits follow from that and are never added up, so
nothing is counted twice. A send waits for its receive as well, unless the recorded order shows that
sends are buffered: then only the receive waits.
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
    """Records in the order of replay; `before` is the previous row of the same rank, or -1.

    `awaits` is the send that a receive waits for where sends are buffered, else -1.
    """

    rows: NDArray[np.intp]
    gap_s: Floats
    transfer_s: Floats
    before: NDArray[np.intp]
    group: NDArray[np.intp]
    awaits: NDArray[np.intp]
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
    awaits = np.full(len(part), -1, np.intp)
    sequence = _sequence(group, part.who, awaits)
    transfer = shortest[group]
    if sequence is None:
        group, awaits = _buffered(part, group)
        sequence = _sequence(group, part.who, awaits)
    if sequence is None:
        return None
    return Chain(order, gap, transfer, before, group, awaits, sequence)


def replay_chain(chain: Chain, gap_s: Floats) -> Floats:
    """Return the end of each row, in seconds from the start, with gaps of `gap_s`."""
    end = [0.0] * (len(chain.rows) + 1)  # the last one stands for no row
    begin, before, awaits = gap_s.tolist(), chain.before.tolist(), chain.awaits.tolist()
    transfer = chain.transfer_s.tolist()
    for members in chain.sequence:
        arrival = max(end[before[m]] + begin[m] for m in members)
        first = members[0]
        done = max(arrival, end[awaits[first]]) + transfer[first]
        for m in members:
            end[m] = done
    return np.array(end[:-1])


def _buffered(
    part: Collectives, group: NDArray[np.intp]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return groups in which sends stand alone, and the send that each receive waits for."""
    is_send, is_receive = (part.has_op({op}) for op in ("Send", "Recv"))
    sender = np.full(int(group.max(initial=-1)) + 1, -1, np.intp)
    sender[group[is_send]] = np.flatnonzero(is_send)
    alone = group.copy()
    alone[is_send] = len(sender) + np.arange(int(is_send.sum()))
    return alone, np.where(is_receive, sender[group], -1)


def _sequence(
    group: NDArray[np.intp], who: NDArray[np.int32], awaits: NDArray[np.intp]
) -> tuple[tuple[int, ...], ...] | None:
    """Return the groups in an order that keeps the order of each rank's collectives."""
    codes, needed = group.tolist(), awaits.tolist()
    members: dict[int, list[int]] = {}
    for row, code in enumerate(codes):
        members.setdefault(code, []).append(row)
    waiting = {code: len(rows) for code, rows in members.items()}
    starts = np.r_[True, who[1:] != who[:-1]] if len(who) else np.empty(0, bool)
    last = np.r_[starts[1:], True] if len(who) else starts
    heads = deque(np.flatnonzero(starts).tolist())
    done, parked = [False] * len(codes), dict[int, int]()
    sequence: list[tuple[int, ...]] = []
    while heads:
        row = heads.popleft()
        if needed[row] >= 0 and not done[needed[row]]:
            parked[needed[row]] = row
            continue
        code = codes[row]
        waiting[code] -= 1
        if waiting[code] == 0:
            sequence.append(tuple(members[code]))
            for member in members[code]:
                done[member] = True
                if member in parked:
                    heads.append(parked.pop(member))
                if not last[member]:
                    heads.append(member + 1)
    return tuple(sequence) if sum(map(len, sequence)) == len(codes) else None
