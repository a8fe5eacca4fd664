"""Which jobs are run, what slows them in which phase, and for how long."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

CALM = "calm"
DRIVEN = ("hog", "quota")  # what the driver does to a rank from outside, see pressure.py
PERIODIC = ("stall", "collect")
# the class that a verdict should give
CLASSES = {
    "gpu": ("compute",),
    "host": ("host",),
    "stall": ("stall", "host"),
    "lock": ("host",),
    "read": ("host",),
    "collect": ("stall", "host"),
    "hog": ("host",),
    "quota": ("host", "stall"),
}


@dataclass(frozen=True)
class Phase:
    """A part of a run; `fault` is empty while nothing is slowed."""

    name: str
    kind: str
    seconds: float
    fault: dict[str, Any]


@dataclass(frozen=True)
class Lengths:
    """Seconds of the first calm phase, of each fault, and of the calm phases after faults."""

    healthy: float
    fault: float
    calm: float


LENGTHS = {"short": Lengths(35, 20, 15), "full": Lengths(60, 30, 30)}


def _usual(
    gpu: tuple[int, float], host: tuple[int, float], stall: int
) -> dict[str, dict[str, Any]]:
    return {
        "gpu": {"rank": gpu[0], "gpu": gpu[1]},
        "host": {"rank": host[0], "host": host[1]},
        "stall": {"rank": stall, "host": 1.5, "every": 10},
    }


# Shares are those of a calm step. A stage of a pipeline works half of the time, so that 12 % more
# work costs about as much as 6 % elsewhere; hosts of FSDP run ahead and hide short sleeps.
FAULTS = {
    "ddp": _usual((6, 0.06), (3, 0.10), 2),
    "accum": _usual((3, 0.06), (5, 0.10), 1),
    "fsdp": _usual((1, 0.06), (4, 0.15), 6),
    "pp": _usual((5, 0.12), (2, 0.10), 7),
    "ep": _usual((2, 0.06), (7, 0.10), 4),
    "tp": _usual((3, 0.06), (5, 0.10), 6),
    "small": _usual((4, 0.06), (1, 0.10), 5),
}
CAUSES = {
    "lock": {"rank": 2, "lock": 0.15},
    "read": {"rank": 5, "read": 0.15},
    "collect": {"rank": 1, "collect": 1.5, "every": 10},
    "hog": {"rank": 6, "hog": 1},
    "quota": {"rank": 3, "quota": 0.6},
}


def phases_of(mode: str, lengths: Lengths, kinds: tuple[str, ...]) -> list[Phase]:
    """Return the phases of a job alone: calm, then every fault with a calm phase after it."""
    return take_turns({mode: kinds}, lengths)[mode]


def take_turns(jobs: Mapping[str, Sequence[str]], lengths: Lengths) -> dict[str, list[Phase]]:
    """Return phases of the same lengths for jobs that run side by side.

    Only one job has a fault at a time, and both sides of a fault are calm for all of them: what a
    fault costs is measured against steps beside a neighbour that is calm, too.
    """
    phases = {mode: [Phase("healthy", CALM, lengths.healthy, {})] for mode in jobs}
    turns = zip_longest(*([(mode, kind) for kind in kinds] for mode, kinds in jobs.items()))
    for mode, kind in (turn for each in turns for turn in each if turn is not None):
        fault = (FAULTS[mode] | CAUSES)[kind]
        for other in jobs:
            if other == mode:
                slowed, after = f"rank_{fault['rank']}_{kind}", f"calm_after_{kind}"
                phases[other].append(Phase(slowed, kind, lengths.fault, fault))
            else:
                slowed, after = f"calm_beside_{mode}_{kind}", f"calm_after_{mode}_{kind}"
                phases[other].append(Phase(slowed, CALM, lengths.fault, {}))
            phases[other].append(Phase(after, CALM, lengths.calm, {}))
    return phases
