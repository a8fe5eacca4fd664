"""The collectives in which a job waits for each of its ranks, live.

What a rank adds to a step is charged to the collective at which it added most. Charges fade within
half a minute, so that those of an episode outweigh what came before it.
"""

import math
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ingero.core.collectives.columns import Collectives
from ingero.core.collectives.live_arrivals import Arrivals, member_of

FADE_S: Final = 20.0
CLEAR: Final = 0.05  # of all charges of a rank: below, they are forgotten
MAX_KINDS: Final = 256  # of one rank
MAX_COMMS: Final = 65_536
MAX_LISTED: Final = 8
Kind = tuple[int, str, int]  # communicator, operation, bytes


def describe_collective(op: str, size_bytes: int, ranks: str) -> str:
    """Return an operation as people say it: `AllReduce of 25.2 MB among all 8 ranks`."""
    return f"{op} of {size_text(size_bytes)} {ranks}"


def size_text(size_bytes: int) -> str:
    """Return bytes in decimal units with three digits, as network speeds are given."""
    value, unit = float(size_bytes), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 999.5:
            break
        value, unit = value / 1000, larger
    return f"{value:.3g} {unit}"


def ranks_text(ranks: list[int], width: int, world: int) -> str:
    """Return the members of a communicator: all ranks of the job, or a list of them."""
    if width >= world > 0:
        return f"among all {width} ranks"
    if len(ranks) < width or not ranks:
        return f"among {width} ranks"
    shown = ", ".join(str(rank) for rank in ranks[:MAX_LISTED])
    return f"among ranks {shown}" + (f" … ({width} of them)" if width > MAX_LISTED else "")


@dataclass(slots=True)
class _Comm:
    width: int
    ranks: set[int] = field(default_factory=set)  # global ones that were seen


class ChargedPlaces:
    """What each member of one cluster is charged, by collective."""

    def __init__(self) -> None:
        self._charges: dict[int, dict[Kind, float]] = {}
        self._comms: dict[int, _Comm] = {}
        self._at_s = -math.inf

    def take(self, arrivals: Arrivals, rows: Collectives, now_s: float) -> None:
        """Add charges; `arrivals` are those at the collectives of `rows`."""
        self._fade(now_s)
        most = _largest_of_steps(arrivals)
        row = most.row
        ops = [rows.ops[code] for code in rows.op[row].tolist()]
        places = zip(rows.comm[row].tolist(), ops, rows.size_bytes[row].tolist(), strict=True)
        members = member_of(most.key).tolist()
        for member, kind, charge in zip(members, places, most.advance_s.tolist(), strict=True):
            charges = self._charges.setdefault(member, {})
            if kind in charges or len(charges) < MAX_KINDS:
                charges[kind] = charges.get(kind, 0.0) + charge
        self._note_ranks(rows, arrivals.row)

    def describe(self, member: int, world: int) -> str:
        """Return the collective at which the job waits most for a member; empty if unknown."""
        charges = self._charges.get(member)
        if not charges:
            return ""
        comm, op, size_bytes = max(charges, key=lambda kind: (charges[kind], kind))
        known = self._comms.get(comm, _Comm(0))
        ranks = ranks_text(sorted(known.ranks), known.width, world)
        return describe_collective(op, size_bytes, ranks)

    def forget(self, member: int) -> None:
        """Drop what is known about a member that is gone."""
        self._charges.pop(member, None)

    def _fade(self, now_s: float) -> None:
        factor = math.exp((self._at_s - now_s) / FADE_S)
        self._at_s = now_s
        for member, charges in self._charges.items():
            total = sum(charges.values())
            self._charges[member] = {
                kind: factor * charge for kind, charge in charges.items() if charge > CLEAR * total
            }

    def _note_ranks(self, rows: Collectives, chosen: np.ndarray) -> None:
        """Note the members of communicators that are not known completely."""
        for comm in np.unique(rows.comm[chosen]).tolist():
            known = self._comms.get(comm)
            if known is not None and len(known.ranks) >= known.width:
                continue
            mine = chosen[rows.comm[chosen] == np.uint64(comm)]
            if known is None:
                if len(self._comms) >= MAX_COMMS:
                    self._comms.pop(next(iter(self._comms)))
                known = self._comms[comm] = _Comm(int(rows.nranks[mine].max()))
            for who in np.unique(rows.who[mine]).tolist():
                rank = rows.recorders[who].global_rank
                if rank is not None:
                    known.ranks.add(rank)


def _largest_of_steps(arrivals: Arrivals) -> Arrivals:
    """Return the largest advance of each member and step that is charged."""
    charged = arrivals.take(np.flatnonzero((arrivals.advance_s > 0) & (arrivals.row >= 0)))
    ordered = charged.take(np.lexsort((charged.advance_s, charged.key)))
    return ordered.take(np.append(ordered.key[1:] != ordered.key[:-1], True)[: len(ordered)])
