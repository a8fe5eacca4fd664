"""What happens when: a fault every minute, and one real straggler.

Every service is killed in the first part only. In the second half, which is judged, faults go on,
but end only the second process of agents: all others live on, so that a slope of their memory is
one of a single life, and their start is long over. The disk is full in the first part only, too: it
may end the store process, which Echo then replaces.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from tests.soak.ledger import Injected

KILLS_UNTIL = 0.40  # share of the run after which only the second process of agents is killed
JUDGED_FROM = 0.50
STRAGGLER_FROM, STRAGGLER_SHARE = 0.60, 0.20
SHORTEST_STRAGGLER_S = 45.0
SHORTEST_FOR_ONE_A_MINUTE = 16  # minutes; a shorter run has as many faults, closer together
RANK_WARM_UP_S = 180.0  # ranks that Fleet has forgotten need so long before one can be named
STRAGGLER_NODE = "soak-007"


class Kind(Enum):
    """What is done to the services."""

    KILL = "kill -9"
    CUT = "cut all connections"
    FILL = "fill the disk of Echo"
    JUMP = "clock jump"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    `target` is the service that is killed, or how many hours the clock is ahead.
    """

    at_s: float
    kind: Kind
    target: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole run."""

    length_s: float
    gap_s: float
    faults: tuple[Fault, ...]
    straggler: Injected

    @property
    def judged_from_s(self) -> float:
        return self.length_s * JUDGED_FROM

    @property
    def expects_rank(self) -> bool:
        """Can Fleet know the ranks by the time that one of them becomes slow?"""
        last_s = max(
            (f.at_s for f in self.faults if f.target == "fleet"),
            default=0.0,
        )
        return self.straggler.from_s - last_s >= RANK_WARM_UP_S


def make_plan(minutes: float) -> Plan:
    """Return the plan of a run: the same for the same length."""
    length_s = minutes * 60
    gap_s = 60.0 if minutes >= SHORTEST_FOR_ONE_A_MINUTE else length_s / SHORTEST_FOR_ONE_A_MINUTE
    jumps = itertools.cycle(["1", "0", "-1", "0"])
    first = _cycle(["fleet", "echo", "store", "recorder", "agents-2", "agents"], jumps)
    second = _cycle(["agents-2"], jumps)
    faults = []
    for number in range(1, int(length_s / gap_s)):
        at_s = number * gap_s
        kind, target = next(first if at_s < length_s * KILLS_UNTIL else second)
        faults.append(Fault(at_s, kind, target))
    begin_s = length_s * STRAGGLER_FROM
    end_s = begin_s + max(SHORTEST_STRAGGLER_S, length_s * STRAGGLER_SHARE)
    slow = Injected(STRAGGLER_NODE, begin_s, end_s)
    return Plan(length_s, gap_s, tuple(faults), slow)


def _cycle(services: list[str], jumps: Iterator[str]) -> Iterator[tuple[Kind, str]]:
    """Kill one service after the other, with other kinds of faults in between."""
    is_first = len(services) > 1
    kinds = [Kind.CUT, Kind.FILL, Kind.JUMP] if is_first else [Kind.CUT, Kind.JUMP]
    others = itertools.cycle(kinds)
    turn = itertools.cycle(services)
    while True:
        for _ in range(2 if is_first else 1):
            yield Kind.KILL, next(turn)
        for _ in range(1 if is_first else 2):
            other = next(others)
            yield other, next(jumps) if other is Kind.JUMP else ""
