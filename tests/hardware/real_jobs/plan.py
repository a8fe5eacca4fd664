"""Which jobs are run, what slows them in which phase, and for how long."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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


CALM_GOAL_S = 300.5  # of each job, over all runs
LEAST = Lengths(40.0, 16.0, 14.0)
# Until all ranks are judged, and then long enough to know the usual step.
LEAST_HEALTHY_S = {"pp": 58.0, "1f1b": 58.0, "small": 50.0, "hsdp": 70.0}
HEALTHY_SHARE = 0.4  # of the calm time; the rest is spent around the faults


def _usual(
    gpu: tuple[int, float], host: tuple[int, float], stall: int
) -> dict[str, dict[str, Any]]:
    return {
        "gpu": {"rank": gpu[0], "gpu": gpu[1]},
        "host": {"rank": host[0], "host": host[1]},
        "stall": {"rank": stall, "host": 1.5, "every": 10},
    }


# Shares are those of a calm step, chosen so that the job loses at least 5 % by what earlier runs
# lost. GPUs of FSDP, of tensor parallelism and of launch-bound jobs wait for their hosts, and those
# of a pipeline for other stages: more of a delay is hidden there. So are sleeps of their hosts.
# Hosts that run ahead of their GPU hide everything that is shorter than their lead.
FAULTS = {
    "ddp": _usual((6, 0.08), (3, 0.10), 2),
    "accum": _usual((3, 0.10), (5, 0.15), 1),
    "fsdp": _usual((1, 0.24), (4, 0.17), 6),
    "pp": _usual((5, 0.18), (2, 0.32), 7),
    "ep": _usual((2, 0.08), (7, 0.10), 4),
    "tp": _usual((3, 0.18), (5, 0.18), 6),
    "small": _usual((4, 0.60), (1, 0.20), 5),
    "ahead": _usual((6, 0.08), (3, 0.90), 2),
    "hsdp": _usual((1, 0.20), (4, 0.17), 6),
    "ring": _usual((2, 0.10), (7, 0.15), 4),
    "1f1b": _usual((5, 0.18), (2, 0.32), 7),
}
CAUSES = {
    "lock": {"rank": 2, "lock": 0.15},
    "read": {"rank": 5, "read": 0.15},
    "collect": {"rank": 1, "collect": 1.5, "every": 10},
    "hog": {"rank": 6, "hog": 1},
    "quota": {"rank": 3, "quota": 0.6},
}


def phases_of(mode: str, lengths: Lengths, kinds: Sequence[str]) -> list[Phase]:
    """Return the phases of a job: calm, then every fault with a calm phase after it."""
    phases = [Phase("healthy", CALM, lengths.healthy, {})]
    for kind in kinds:
        fault = (FAULTS[mode] | CAUSES)[kind]
        phases.append(Phase(f"rank_{fault['rank']}_{kind}", kind, lengths.fault, fault))
        phases.append(Phase(f"calm_after_{kind}", CALM, lengths.calm, {}))
    return phases


def least_lengths(mode: str) -> Lengths:
    """The shortest phases in which faults of this job can be judged."""
    return Lengths(LEAST_HEALTHY_S.get(mode, LEAST.healthy), LEAST.fault, LEAST.calm)


def lengths_for(mode: str, calm_s: float, faults: int) -> Lengths:
    """Spread this much calm time over a job, as far as its faults leave a choice."""
    least = least_lengths(mode)
    healthy = max(least.healthy, HEALTHY_SHARE * calm_s) if faults else calm_s
    calm = max(least.calm, (calm_s - healthy) / faults) if faults else 0.0
    return Lengths(healthy, least.fault, calm)


def counted_calm(rows: Iterable[dict[str, Any]], mode: str) -> list[dict[str, Any]]:
    """Return the calm phases of a job that count: those of engines that named nobody wrongly.

    An engine that blamed a rank of this job, in whatever phase, says nothing about the present one:
    all its phases of this job are left out, unless it is the last one that ran.
    """
    mine = [row for row in rows if row["job"] == mode and row["kind"] != "overhead"]
    last = mine[-1]["commit"] if mine else None
    wrong = {row["commit"] for row in mine if row["others"]} - {last}
    return [row for row in mine if row["kind"] == CALM and row["commit"] not in wrong]


def calm_wanted(rows: Iterable[dict[str, Any]], mode: str) -> float:
    """Return the calm seconds that this job still lacks."""
    known = sum(row["seconds"] for row in counted_calm(rows, mode))
    return max(CALM_GOAL_S - known, 0.0)
