"""The step times that each rank of a job writes about itself."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FIGURES = ("ms", "launched_ms", "fault_host_ms")


@dataclass(frozen=True)
class Steps:
    """The steps of one rank: when each ended (Unix seconds) and how long it took.

    `launched_ms` is the time until the host had launched all of a step, and `fault_host_ms` the
    part of it that a GPU fault took; both are empty where a job does not say so. `changes` says
    when the rank saw the control file change.
    """

    ended_s: NDArray[np.float64]
    ms: NDArray[np.float64]
    changes: list[dict[str, Any]] = field(default_factory=list)
    launched_ms: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    fault_host_ms: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))

    def between(self, begin_s: float, end_s: float, figure: str = "ms") -> NDArray[np.float64]:
        """Return the milliseconds of the steps that ended in this time."""
        values: NDArray[np.float64] = getattr(self, figure)
        if len(values) != len(self.ended_s):
            return np.empty(0)
        return values[(self.ended_s >= begin_s) & (self.ended_s < end_s)]


def read_steps(path: Path) -> Steps:
    """Read one rank's file; an incomplete last line is left out."""
    ended: list[NDArray[np.float64]] = []
    figures: dict[str, list[NDArray[np.float64]]] = {name: [] for name in FIGURES}
    changes = []
    for text in path.read_text().splitlines() if path.exists() else ():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if "ms" in line:
            ms = np.asarray(line["ms"], float)
            ended.append(line["at"] - (ms[::-1].cumsum()[::-1] - ms) / 1e3)
            for name in FIGURES:
                figures[name].append(np.asarray(line.get(name, ()), float))
        elif "fault" in line:
            changes.append(line)
    empty = [np.empty(0)]
    whole = {name: np.concatenate(parts or empty) for name, parts in figures.items()}
    return Steps(np.concatenate(ended or empty), changes=changes, **whole)


def read_job(folder: Path) -> list[Steps]:
    """Read the files of all ranks, in the order of ranks."""
    files = sorted(folder.glob("steps_*.jsonl"), key=lambda path: int(path.stem.split("_")[1]))
    return [read_steps(path) for path in files]
